// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include "tools/mycroft/exit_codes.h"
#include "tools/mycroft/verbs.h"
#include "tools/mycroft/watch.h"
#include "userspace/base/log.h"
#include "userspace/base/units.h"
#include "userspace/report/verdict.h"
#include "userspace/store/recording.h"

namespace mycroft {
namespace {

constexpr uint64_t kDefaultDurationNs = 5'000'000'000;

int Finish(const Pipeline& pipeline, bool observed, bool live, uint64_t start_ns,
           const Config& config, const Options& options) {
  const std::vector<BlindSpot> blind = pipeline.BlindSpots();
  const std::vector<Incident>& incidents = pipeline.incidents();
  std::string text;
  if (options.json) {
    text = VerdictJson(incidents, blind) + "\n";
  } else {
    VerdictTextOptions form;
    form.colour = UseColour(config, STDOUT_FILENO);
    form.now_ns = live ? pipeline.View().t_ns : 0;
    form.start_ns = live ? 0 : start_ns;
    text = VerdictText(incidents, blind, form);
  }
  if (!PrintOut(text)) return kExitFailure;
  if (!incidents.empty()) return kExitStall;
  if (!observed) {
    LogWarning(live ? "nothing to observe: no process with the plugin; 'mycroft doctor' says why"
                    : "nothing to observe: the recording holds no process");
    return kExitNothing;
  }
  return blind.empty() ? kExitOk : kExitDegraded;
}

bool HasVerdict(const std::vector<Incident>& incidents) {
  for (const Incident& incident : incidents) {
    if (!incident.culprits.empty() && !incident.cleared_ns) return true;
  }
  return false;
}

int DiagnoseRecording(const Config& config, const Options& options) {
  absl::StatusOr<std::unique_ptr<RecordingReader>> reader = RecordingReader::Open(options.file);
  if (!reader.ok()) return Fail(reader.status());
  Pipeline pipeline(MakePipelineOptions(config));
  bool observed = false;
  uint64_t start_ns = 0;
  for (;;) {
    absl::StatusOr<std::optional<Snapshot>> next = (*reader)->Next();
    if (!next.ok()) return Fail(next.status());
    if (!*next) break;
    if (start_ns == 0) start_ns = (*next)->t_ns;
    observed = observed || !(*next)->processes.empty();
    pipeline.Feed(**next);
  }
  pipeline.Finish();
  const RecordingInfo& info = (*reader)->info();
  if (info.truncated) LogWarning(options.file + " is damaged: " + info.problem);
  if (info.snapshots_lost > 0) {
    LogWarning(options.file + " lacks " + std::to_string(info.snapshots_lost) +
               " snapshots that could not be stored");
  }
  return Finish(pipeline, observed, false, start_ns, config, options);
}

int DiagnoseLive(const Config& config, const Options& options) {
  const absl::StatusOr<uint64_t> duration =
      options.duration.empty() ? kDefaultDurationNs : ParseDuration(options.duration);
  if (!duration.ok()) return Fail(duration.status());
  const absl::StatusOr<Live> live = OpenLive(config, options);
  if (!live.ok()) return Fail(live.status());
  LiveSource& source = *live->source;
  LogDetail("watching for " + ExactDuration(*duration));
  Pipeline pipeline(MakePipelineOptions(config));
  bool observed = false;
  uint64_t first_ns = 0;
  const InterruptOnSignal interrupt(source);
  for (;;) {
    absl::StatusOr<std::optional<Snapshot>> next = source.Next();
    if (!next.ok()) return Fail(next.status());
    if (!*next) break;
    if (first_ns == 0) first_ns = (*next)->t_ns;
    pipeline.Feed(**next);
    ArmSuspected(pipeline, (*next)->host, source);
    observed = observed || source.process_count() > 0;
    if (HasVerdict(pipeline.incidents()) || (*next)->t_ns - first_ns >= *duration) break;
  }
  return Finish(pipeline, observed, true, first_ns, config, options);
}

}  // namespace

int RunDiagnose(const Config& config, const Options& options) {
  return options.file.empty() ? DiagnoseLive(config, options) : DiagnoseRecording(config, options);
}

}  // namespace mycroft
