// SPDX-License-Identifier: Apache-2.0
//
// What the verbs that watch live jobs have in common: ending on a signal, and
// saying what has changed among the incidents.
#ifndef MYCROFT_TOOLS_MYCROFT_WATCH_H_
#define MYCROFT_TOOLS_MYCROFT_WATCH_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/mycroft/options.h"
#include "userspace/attribute/incident.h"
#include "userspace/attribute/pipeline.h"
#include "userspace/decode/kernel_probes.h"
#include "userspace/decode/live_source.h"

namespace mycroft {

PipelineOptions MakePipelineOptions(const Config& config);

// `probes` must outlive the source.
[[nodiscard]] absl::StatusOr<std::unique_ptr<LiveSource>> OpenLive(const Config& config,
                                                                   const Options& options,
                                                                   KernelProbes* probes = nullptr);

// The kernel probes when `--probes` asks for them, else null. Without rights they are
// there too, and their rows say what is missing.
[[nodiscard]] absl::StatusOr<std::unique_ptr<KernelProbes>> OpenProbes(const Options& options);

// Arms the deep probes of a source for the processes that the pipeline suspects on this
// host; without probes nothing happens.
void ArmSuspected(Pipeline& pipeline, const std::string& host, LiveSource& source);

// While it lives, SIGINT, SIGTERM and SIGHUP interrupt the source; a second signal
// ends the program at once. One at a time.
class InterruptOnSignal {
 public:
  explicit InterruptOnSignal(LiveSource& source);
  ~InterruptOnSignal();
  InterruptOnSignal(const InterruptOnSignal&) = delete;
  InterruptOnSignal& operator=(const InterruptOnSignal&) = delete;
};

struct IncidentEvent {
  enum class Kind : uint8_t { kOpened, kChanged, kCleared };
  Kind kind = Kind::kOpened;
  Incident incident;
};
const char* ToString(IncidentEvent::Kind kind);

// Compares the incidents of one tick with those of the last.
class IncidentTracker {
 public:
  // What a person wants to hear: opened, another verdict, cleared. Growing numbers
  // (seconds lost, more evidence) are no event.
  std::vector<IncidentEvent> Update(const std::vector<Incident>& incidents);
  // Those that differ from what Changed returned last for them, at most once in
  // `interval_ns` each while they are open.
  std::vector<Incident> Changed(const std::vector<Incident>& incidents, uint64_t now_ns,
                                uint64_t interval_ns);

 private:
  struct Stored {
    Incident incident;
    uint64_t at_ns = 0;
  };
  std::map<uint64_t, Incident> told_;
  std::map<uint64_t, Stored> stored_;
};

// "STUCK #1: ...", one line. `wall_ns` 0: without the time of day.
std::string EventText(const IncidentEvent& event, uint64_t wall_ns);
// One JSON object on one line; the incident as in VerdictJson.
std::string EventJson(const IncidentEvent& event, uint64_t t_ns, uint64_t wall_ns);

// True when a process with a board was seen.
bool Observed(const JobView& view);

}  // namespace mycroft

#endif  // MYCROFT_TOOLS_MYCROFT_WATCH_H_
