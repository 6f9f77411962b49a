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
// (libraries inside containers). Where uprobes are attached through perf_event_open
// (ProbeSet::AttachesByPerfEvent), CAP_SYS_ADMIN, too, or the verbs of processes that start
// later would not be seen.
std::vector<int> CapabilitiesWhileRunning(bool attaches_by_perf_event);

// Drops every capability but `keep` (numbers of linux/capability.h; those that are not
// held are not gained) from the permitted, effective, inheritable, ambient and bounding
// sets, and forbids gaining any by exec. Cannot be undone.
absl::Status DropCapabilities(const std::vector<int>& keep);

// Names of the effective capabilities, "cap_bpf", ...; sorted by number.
std::vector<std::string> EffectiveCapabilities();

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_PROBES_CAPABILITIES_H_
