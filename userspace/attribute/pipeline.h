// SPDX-License-Identifier: Apache-2.0
//
// Snapshots in, verdicts out: align, model, detect and attribute in one object.
// The same object serves the live agent and a replay; its result depends on the
// snapshots alone (no clock is read, nothing is random).
//
// Not thread-safe. Bounded memory: history per communicator is capped.
#ifndef MYCROFT_USERSPACE_ATTRIBUTE_PIPELINE_H_
#define MYCROFT_USERSPACE_ATTRIBUTE_PIPELINE_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "userspace/attribute/incident.h"
#include "userspace/decode/live_source.h"
#include "userspace/decode/snapshot.h"
#include "userspace/detect/suspicion.h"
#include "userspace/model/hardware.h"
#include "userspace/model/view.h"

namespace mycroft {

struct PipelineOptions {
  uint64_t stuck_min_ns = 1'000'000'000;  // design section 4: max(1 s, k x usual gap)
  double slow_factor = 2.0;               // interval or duration against baseline
};

class Pipeline {
 public:
  explicit Pipeline(const PipelineOptions& options = {});
  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;

  // One tick of one host. Snapshots of one host must come in order of time;
  // hosts may be interleaved. Malformed values are ignored and counted.
  void Feed(const Snapshot& snapshot);

  // No more snapshots will come: settle what is pending.
  void Finish();

  // All incidents so far, open ones included, by id.
  const std::vector<Incident>& incidents() const;
  // Everything that limits what the verdicts rest on, now.
  std::vector<BlindSpot> BlindSpots() const;
  // Ranks, operations and flows as of the last snapshot.
  JobView View() const;
  // What the hosts know of their hardware; valid until the next Feed().
  const HardwareModel& hardware() const;
  // What the deep probes are to watch, by host: see suspicion.h. Call once a tick.
  std::map<std::string, DeepProbes> Suspicions();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Arms the deep kernel probes of a live source for those whom the pipeline suspects on this
// host, and disarms the others. Call once a tick.
void ArmSuspected(Pipeline& pipeline, const std::string& host, LiveSource& source);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_ATTRIBUTE_PIPELINE_H_
