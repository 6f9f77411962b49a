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

// What watches the jobs of this host.
struct Live {
  std::unique_ptr<KernelProbes> probes;  // null: off; outlives the source
  std::unique_ptr<LiveSource> source;
};

// Attaches the probes (configuration key `probes`), makes the source, and gives up the rights
// that are not needed any more: call it before threads are started, and after files that
// need them are open. A probe that cannot attach is a blind spot, and an error with --strict.
[[nodiscard]] absl::StatusOr<Live> OpenLive(const Config& config, const Options& options);

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
