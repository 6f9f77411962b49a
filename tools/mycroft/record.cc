// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <ctime>

#include "tools/mycroft/build_info.h"
#include "tools/mycroft/exit_codes.h"
#include "tools/mycroft/verbs.h"
#include "tools/mycroft/watch.h"
#include "userspace/base/log.h"
#include "userspace/base/units.h"
#include "userspace/report/metrics/endpoint.h"
#include "userspace/report/metrics/job_metrics.h"
#include "userspace/report/text.h"
#include "userspace/store/recording.h"

namespace mycroft {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

std::string DefaultName() {
  char host[256] = "host";
  ::gethostname(host, sizeof host - 1);
  const time_t now = ::time(nullptr);
  struct tm local {};
  char stamp[32] = "";
  if (::localtime_r(&now, &local) != nullptr) {
    std::strftime(stamp, sizeof stamp, "%Y%m%dT%H%M%S", &local);
  }
  return "mycroft-" + std::string(host) + "-" + stamp + ".mycroft";
}

// Complains once when storing fails, and once when it works again.
class StoreWatch {
 public:
  void Check(const absl::Status& status) {
    if (!status.ok() && ok_) {
      LogWarning("not stored: " + StatusText(status) + "; still watching, trying again");
    }
    if (status.ok() && !ok_) LogInfo("storing again");
    ok_ = status.ok();
  }

 private:
  bool ok_ = true;
};

}  // namespace

int RunRecord(const Config& config, const Options& options) {
  if (options.append && options.output.empty()) {
    LogError("--append needs the recording to go on with: -o FILE");
    return kExitUsage;
  }
  absl::StatusOr<ListenAddress> listen = ListenAddress();
  if (!config.metrics_listen.empty()) {
    listen = ParseListenAddress(config.metrics_listen);
    if (!listen.ok()) {
      LogError("metrics.listen: " + StatusText(listen.status()));
      return kExitUsage;
    }
  }
  const absl::StatusOr<uint64_t> duration =
      options.duration.empty() ? UINT64_MAX : ParseDuration(options.duration);
  if (!duration.ok()) return Fail(duration.status());

  const absl::StatusOr<Live> live = OpenLive(config, options);
  if (!live.ok()) return Fail(live.status());
  LiveSource& source = *live->source;
  std::shared_ptr<JobMetrics> metrics;
  std::unique_ptr<MetricsEndpoint> endpoint;
  if (!config.metrics_listen.empty()) {
    metrics = std::make_shared<JobMetrics>(MetricsOptions{MYCROFT_VERSION, BuildRevision(), 512});
    absl::StatusOr<std::unique_ptr<MetricsEndpoint>> created =
        MetricsEndpoint::Create(*listen, config.metrics_listen_public, metrics);
    if (!created.ok()) {
      LogError(StatusText(created.status()));
      return absl::IsPermissionDenied(created.status()) ? kExitUsage : kExitFailure;
    }
    endpoint = *std::move(created);
  }
  RecordingOptions recording;
  recording.max_bytes = config.record_max_bytes;
  recording.max_age_ns = config.record_max_age_ns;
  recording.append = options.append;
  const std::string path = options.output.empty() ? DefaultName() : options.output;
  absl::StatusOr<std::unique_ptr<RecordingWriter>> writer =
      RecordingWriter::Create(path, recording);
  if (!writer.ok()) return Fail(writer.status());

  // From the first word on, a signal ends the recording in good order.
  std::optional<InterruptOnSignal> interrupt(std::in_place, source);
  LogInfo("recording to " + path + ", every " + ExactDuration(config.interval_ns) +
          (options.duration.empty() ? "; Ctrl-C ends it" : " for " + options.duration));
  if (endpoint) LogInfo("metrics on " + endpoint->url());

  Pipeline pipeline(MakePipelineOptions(config));
  IncidentTracker tracker;
  StoreWatch store;
  bool observed = false, waiting_said = false;
  uint64_t first_ns = 0, metrics_ns = 0, now_ns = 0, wall_ns = 0;
  absl::Status failure;

  const auto report = [&](bool last) {
    for (const IncidentEvent& event : tracker.Update(pipeline.incidents())) {
      if (options.json) {
        // Nobody listens any more: go on recording.
        (void)PrintOut(EventJson(event, now_ns, wall_ns) + "\n");
      } else {
        LogInfo(EventText(event, wall_ns));
      }
    }
    for (const Incident& incident :
         tracker.Changed(pipeline.incidents(), now_ns, last ? 0 : kSecond)) {
      store.Check((*writer)->PutIncident(incident));
    }
  };

  for (;;) {
    absl::StatusOr<std::optional<Snapshot>> next = source.Next();
    if (!next.ok()) {
      failure = next.status();
      break;
    }
    if (!*next) break;
    const Snapshot& snapshot = **next;
    now_ns = snapshot.t_ns;
    wall_ns = snapshot.wall_ns;
    if (first_ns == 0) first_ns = now_ns;
    pipeline.Feed(snapshot);
    ArmSuspected(pipeline, snapshot.host, source);
    report(false);
    const bool seen = source.process_count() > 0;
    if (seen && !observed) {
      LogInfo("watching " + std::to_string(source.process_count()) +
              (source.process_count() == 1 ? " process" : " processes"));
    }
    observed = observed || seen;
    if (!observed && !waiting_said && now_ns - first_ns > 2 * kSecond) {
      waiting_said = true;
      LogInfo(source.saw_process_without_plugin()
                  ? "processes use NCCL, but without the plugin; 'mycroft doctor' says what to "
                    "set"
                  : "no process with the plugin yet; start one with 'mycroft run -- COMMAND'");
    }
    if (metrics) {
      metrics->Observe(snapshot);
      if (now_ns >= metrics_ns + kSecond) {
        metrics_ns = now_ns;
        metrics->Update(pipeline.View(), pipeline.incidents(), pipeline.BlindSpots().size());
        metrics->SetRecordingLost((*writer)->snapshots_lost());
      }
    }
    store.Check((*writer)->Append(*std::move(*next)));
    if (now_ns - first_ns >= *duration) break;
  }
  interrupt.reset();
  pipeline.Finish();
  report(true);
  const absl::Status flushed = (*writer)->Flush();
  const uint64_t bytes = (*writer)->bytes_written(), lost = (*writer)->snapshots_lost();
  writer->reset();
  if (!flushed.ok()) return Fail(flushed);
  if (!failure.ok()) return Fail(failure);
  LogInfo("recorded " + ShortDuration(now_ns - first_ns) + ", " + BytesText(bytes) + " in " + path +
          (lost > 0 ? "; " + std::to_string(lost) + " snapshots could not be stored" : ""));
  if (!pipeline.incidents().empty()) return kExitStall;
  return observed ? kExitOk : kExitNothing;
}

}  // namespace mycroft
