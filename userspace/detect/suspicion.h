// SPDX-License-Identifier: Apache-2.0
//
// Cheap always, deep on suspicion: which threads, queue pairs and devices deserve the
// expensive probes now, and for how long (design section 5.4). It is asked once a tick
// and depends on the snapshots alone, so that a test or a replay sees what the live
// agent would have armed.
//
//   quiet --(no movement for 300 ms and twice the usual, or a long cycle)--> armed
//   armed --(nothing suspicious for 5 s)--> quiet
//   armed --(60 s in a row)--> resting for 60 s: what was to be seen has been seen
//
// Suspected are the workers that stand still or whose cycles have become long, and
// the peers that they wait for: both ends of a path tell more than one. Not
// thread-safe. Bounded: at most kMostThreads, kMostQps, kMostDevices for each host.
#ifndef MYCROFT_USERSPACE_DETECT_SUSPICION_H_
#define MYCROFT_USERSPACE_DETECT_SUSPICION_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "userspace/detect/cycle.h"
#include "userspace/model/hardware.h"
#include "userspace/model/job.h"

namespace mycroft {

// What to arm on one host. Everything that is not in it is to be disarmed.
struct DeepProbes {
  struct Qp {
    ProcessKey process;
    std::string device;
    uint32_t number = 0;
    friend auto operator<=>(const Qp&, const Qp&) = default;
  };
  std::vector<std::pair<ProcessKey, uint32_t>> threads;  // tid in the agent's pid namespace
  std::vector<Qp> qps;                                   // completions, latency
  std::vector<std::string> devices;                      // PCI addresses: fine sampling
  uint64_t until_ns = 0;  // disarm then, whatever happens; 0: arm nothing
  std::string reason;     // one line for people
  bool armed() const { return until_ns != 0; }
  friend bool operator==(const DeepProbes&, const DeepProbes&) = default;
};

class SuspicionPolicy {
 public:
  static constexpr size_t kMostThreads = 64, kMostQps = 256, kMostDevices = 32;

  // Call after the snapshots of a tick. `detectors` by worker index. By host; hosts
  // with nothing to arm are missing.
  std::map<std::string, DeepProbes> Update(const JobModel& job, const HardwareModel& hardware,
                                           const std::map<size_t, CycleDetector>& detectors);

 private:
  struct HostState {
    uint64_t armed_since_ns = 0;  // 0: quiet
    uint64_t last_suspicious_ns = 0;
    uint64_t rests_until_ns = 0;
    DeepProbes probes;
  };
  std::map<std::string, HostState> hosts_;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_DETECT_SUSPICION_H_
