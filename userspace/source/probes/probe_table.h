// SPDX-License-Identifier: Apache-2.0
//
// The probes as a table of data: the question each answers, the ways to answer it
// in order of preference, and what is lost by each poorer way. `mycroft doctor`
// prints the table as it was attached; ProbeSet (probe_set.h) carries it out.
//
// To add a probe: an id in enum mc_probe (bpf/abi/probes.h), programs in
// bpf/probes/OBJECT.bpf.c, a row here. Constant data, thread-safe.
#ifndef MYCROFT_USERSPACE_SOURCE_PROBES_PROBE_TABLE_H_
#define MYCROFT_USERSPACE_SOURCE_PROBES_PROBE_TABLE_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "bpf/abi/probes.h"

namespace mycroft {

enum class ProbeMethod : uint8_t {
  kFentry,      // fentry/fexit of a kernel function, or tp_btf
  kKprobe,      // kprobe/kretprobe of a kernel function
  kTracepoint,  // tracepoint or raw tracepoint
  kUprobe,      // function of a library; attached when a process is added
  kPoll,        // no program: the owner of the question reads files now and then
  kNone,        // nothing
};
const char* ProbeMethodName(ProbeMethod method);  // "fentry", ...
// fentry, kprobe or tracepoint: attached when the set is created, not by an owner.
bool IsKernelHook(ProbeMethod method);

// One way to answer. All its programs must attach, else the next way is tried.
struct ProbeAlternative {
  ProbeMethod method = ProbeMethod::kNone;
  std::vector<const char*> programs;  // names in the object; none for kPoll and kUprobe's owner
  const char* target = "";            // for people: "rxe_post_send", "ras:aer_event", "/sys/..."
  const char* lost = "";              // what this way does not see and the first one would
};

enum class ProbeRunLevel : uint8_t { kAlways = 0, kDeep = 1 };

struct ProbeSpec {
  mc_probe id = MC_PROBE_MAX;
  const char* name = "";      // "verbs.post_send"
  const char* object = "";    // "verbs": bpf/probes/verbs.bpf.c
  const char* question = "";  // "what does each queue pair send?"
  ProbeRunLevel level = ProbeRunLevel::kAlways;
  std::vector<ProbeAlternative> alternatives;  // best first
  const char* lost = "";                       // what is not known when none attaches
  const char* blind = "";                      // what it cannot see even so
};

// All probes, in the order of the report.
const std::vector<ProbeSpec>& ProbeTable();

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_PROBES_PROBE_TABLE_H_
