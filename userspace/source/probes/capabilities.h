// SPDX-License-Identifier: Apache-2.0
//
// Giving up rights. Attaching needs much (on some kernels CAP_SYS_ADMIN), reading maps
// and arming deep probes needs little. Changes the calling thread, and threads that it
// starts later: call it before others run.
#ifndef MYCROFT_USERSPACE_SOURCE_PROBES_CAPABILITIES_H_
#define MYCROFT_USERSPACE_SOURCE_PROBES_CAPABILITIES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace mycroft {

// What the agent needs while it runs: CAP_BPF and CAP_PERFMON (maps, deep probes, new
// processes), CAP_SYS_PTRACE (/proc/PID of other users), CAP_DAC_READ_SEARCH
// (libraries inside containers).
const std::vector<int>& CapabilitiesWhileRunning();

// Drops every capability but `keep` (numbers of linux/capability.h; those that are not
// held are not gained) from the permitted, effective, inheritable, ambient and bounding
// sets, and forbids gaining any by exec. Cannot be undone.
absl::Status DropCapabilities(const std::vector<int>& keep = CapabilitiesWhileRunning());

// Names of the effective capabilities, "cap_bpf", ...; sorted by number.
std::vector<std::string> EffectiveCapabilities();

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_PROBES_CAPABILITIES_H_
