// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/replay/replay_command.h"

#include <signal.h>
#include <time.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "tools/lab/replay/replay_job.h"
#include "tools/lab/replay/snapshot_dump.h"
#include "userspace/attribute/pipeline.h"
#include "userspace/base/clock.h"
#include "userspace/base/install.h"
#include "userspace/decode/live_source.h"
#include "userspace/report/verdict.h"
#include "userspace/store/recording.h"

namespace mycroft {
namespace {

constexpr uint64_t kMs = 1'000'000;
// How long the agent goes on looking after the last process has ended.
constexpr uint64_t kGraceNs = 2'000 * kMs;

enum ExitCode { kOk = 0, kFailure = 1, kUsage = 2, kIncident = 3, kNothing = 5 };

struct ReplayOptions {
  std::string folder;
  std::string plugin;
  std::string recording;
  bool json = false;
  bool real_time = false;
  bool one_process = false;
  bool dump = false;
  bool verbose = false;
  uint64_t interval_ms = 100;
};

int Fail(const absl::Status& status, int code = kFailure) {
  std::fprintf(stderr, "mycroft-lab replay: %s\n", std::string(status.message()).c_str());
  return code;
}

// The plugin named by option or environment, else the one of this build.
std::string PluginPath(const ReplayOptions& options) {
  std::string configured = options.plugin;
  if (configured.empty()) {
    if (const char* env = std::getenv("MYCROFT_PLUGIN"); env != nullptr) configured = env;
  }
  return FindPlugin(configured, ExecutableDirectory()).path;
}

LiveSource* g_source = nullptr;  // for the signal handler
volatile sig_atomic_t g_interrupted = 0;
void OnSignal(int) {
  g_interrupted = 1;
  if (g_source != nullptr) g_source->Interrupt();
}

// What is done with each snapshot.
class Sink {
 public:
  Sink(Pipeline* pipeline, RecordingWriter* writer, SnapshotDump* dump)
      : pipeline_(pipeline), writer_(writer), dump_(dump) {}

  absl::Status Take(const Snapshot& snapshot) {
    ++snapshots_;
    for (const ProcessSample& process : snapshot.processes) seen_.insert(process.key);
    if (dump_ != nullptr) dump_->Add(snapshot);
    pipeline_->Feed(snapshot);
    if (writer_ == nullptr) return absl::OkStatus();
    if (absl::Status s = writer_->Append(snapshot); !s.ok()) return s;
    return PutIncidents();
  }

  absl::Status Finish() {
    pipeline_->Finish();
    if (writer_ == nullptr) return absl::OkStatus();
    if (absl::Status s = PutIncidents(); !s.ok()) return s;
    return writer_->Flush();
  }

  size_t processes_seen() const { return seen_.size(); }
  uint64_t snapshots() const { return snapshots_; }

 private:
  // Only what is new or has changed.
  absl::Status PutIncidents() {
    const std::vector<Incident>& now = pipeline_->incidents();
    for (size_t i = 0; i < now.size(); ++i) {
      if (i < stored_.size() && stored_[i] == now[i]) continue;
      if (absl::Status s = writer_->PutIncident(now[i]); !s.ok()) return s;
    }
    stored_ = now;
    return absl::OkStatus();
  }

  Pipeline* pipeline_;
  RecordingWriter* writer_;
  SnapshotDump* dump_;
  std::set<ProcessKey> seen_;
  std::vector<Incident> stored_;
  uint64_t snapshots_ = 0;
};

absl::Status RunVirtual(ReplayJob& job, LiveSource& source, uint64_t interval_ns, uint64_t* now_ns,
                        Sink& sink) {
  uint64_t end_ns = UINT64_MAX;
  while (*now_ns <= end_ns) {
    if (absl::Status s = job.AdvanceTo(*now_ns); !s.ok()) return s;
    absl::StatusOr<std::optional<Snapshot>> snapshot = source.Next();
    if (!snapshot.ok()) return snapshot.status();
    if (!snapshot->has_value()) return absl::OkStatus();
    if (absl::Status s = sink.Take(**snapshot); !s.ok()) return s;
    if (!job.running() && end_ns == UINT64_MAX) end_ns = *now_ns + kGraceNs;
    *now_ns += interval_ns;
  }
  return absl::OkStatus();
}

absl::Status RunInRealTime(ReplayJob& job, LiveSource& source, uint64_t start_ns, Sink& sink) {
  const int64_t shift = static_cast<int64_t>(start_ns - job.first_t_ns());
  if (absl::Status s = job.RunInRealTime(shift); !s.ok()) return s;
  uint64_t end_ns = UINT64_MAX;
  while (g_interrupted == 0 && MonotonicNs() <= end_ns) {
    absl::StatusOr<std::optional<Snapshot>> snapshot = source.Next();
    if (!snapshot.ok()) return snapshot.status();
    if (!snapshot->has_value()) break;
    if (absl::Status s = sink.Take(**snapshot); !s.ok()) return s;
    if (absl::Status s = job.Poll(); !s.ok()) return s;
    if (!job.running() && end_ns == UINT64_MAX) end_ns = MonotonicNs() + kGraceNs;
  }
  return absl::OkStatus();
}

int Replay(const ReplayOptions& options) {
  absl::StatusOr<std::vector<std::string>> files = FindRankFiles(options.folder);
  if (!files.ok()) {
    return Fail(files.status(), absl::IsNotFound(files.status()) ? kUsage : kFailure);
  }
  const auto started = std::chrono::steady_clock::now();
  absl::StatusOr<std::unique_ptr<ReplayJob>> job =
      ReplayJob::Start(*files, {PluginPath(options), options.one_process, options.real_time});
  if (!job.ok()) return Fail(job.status());

  // In real time the processes get a moment to be found before their first call.
  const uint64_t start_ns = options.real_time ? MonotonicNs() + 200 * kMs : (*job)->first_t_ns();
  uint64_t now_ns = start_ns;
  LiveOptions live;
  live.interval_ns = options.interval_ms * kMs;
  live.pids = (*job)->pids();
  // A replaying process sleeps where the recorded one may have worked: what /proc
  // says of it would be wrong.
  live.host_samples = false;
  live.hardware = false;
  if (!options.real_time) {
    live.now_ns = [&now_ns] { return now_ns; };
    live.wall_ns = [&now_ns, &job] {
      return now_ns + static_cast<uint64_t>((*job)->wall_minus_mono_ns());
    };
  }
  absl::StatusOr<std::unique_ptr<LiveSource>> source = LiveSource::Create(live);
  if (!source.ok()) return Fail(source.status());

  std::unique_ptr<RecordingWriter> writer;
  if (!options.recording.empty()) {
    absl::StatusOr<std::unique_ptr<RecordingWriter>> created =
        RecordingWriter::Create(options.recording);
    if (!created.ok()) return Fail(created.status());
    writer = *std::move(created);
  }
  std::unique_ptr<SnapshotDump> dump;
  if (options.dump) dump = std::make_unique<SnapshotDump>(stdout, (*job)->first_t_ns());

  Pipeline pipeline;
  Sink sink(&pipeline, writer.get(), dump.get());
  absl::Status status;
  if (options.real_time) {
    g_source = source->get();
    signal(SIGINT, OnSignal);
    signal(SIGTERM, OnSignal);
    status = RunInRealTime(**job, **source, start_ns, sink);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    g_source = nullptr;
  } else {
    status = RunVirtual(**job, **source, live.interval_ns, &now_ns, sink);
  }
  if (status.ok()) status = sink.Finish();
  if (!status.ok()) return Fail(status);
  if (dump != nullptr) dump->Finish();

  const PluginFaults& faults = (*job)->faults();
  if (faults.unwritten_handles != 0 || faults.failed_calls != 0) {
    std::fprintf(stderr,
                 "mycroft-lab replay: the plugin broke its contract: %" PRIu64
                 " handles not written, %" PRIu64 " calls failed\n",
                 faults.unwritten_handles, faults.failed_calls);
  }
  if (options.verbose) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
    std::fprintf(stderr,
                 "mycroft-lab replay: %zu rank files, %" PRIu64 " calls, %" PRIu64
                 " snapshots, %zu processes seen, %.2f s\n",
                 files->size(), (*job)->calls(), sink.snapshots(), sink.processes_seen(),
                 took.count());
  }
  if (sink.processes_seen() == 0) {
    return Fail(absl::NotFoundError("no board was seen: the plugin made none, or /proc of its "
                                    "processes is not readable"),
                kNothing);
  }

  const std::vector<Incident>& incidents = pipeline.incidents();
  if (options.json) {
    std::printf("%s\n", VerdictJson(incidents, pipeline.BlindSpots()).c_str());
  } else {
    VerdictTextOptions text;
    text.start_ns = start_ns;
    std::fputs(VerdictText(incidents, pipeline.BlindSpots(), text).c_str(), stdout);
  }
  return incidents.empty() ? kOk : kIncident;
}

}  // namespace

void AddReplayCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<ReplayOptions>();
  CLI::App* replay = app.add_subcommand(
      "replay", "Replay recorded profiler callbacks through the plugin and print the verdict");
  replay->add_option("DIR", options->folder, "Folder with rank<N>.jsonl or rank<N>.jsonl.gz")
      ->required();
  replay->add_flag("--json", options->json, "Print the verdict as JSON");
  replay->add_flag("--realtime", options->real_time,
                   "Make the calls at the recorded pace, not as fast as possible");
  replay->add_option("-o,--output", options->recording, "Also write a recording");
  replay->add_flag("--one-process", options->one_process,
                   "Replay all ranks in one process, not one process per rank");
  replay->add_option("--interval-ms", options->interval_ms, "Sampling interval")
      ->capture_default_str()
      ->check(CLI::Range(10, 1000));
  replay->add_option("--plugin", options->plugin,
                     "Profiler plugin to drive [environment: MYCROFT_PLUGIN; default: "
                     "../lib/libnccl-profiler-mycroft.so beside this program]");
  replay->add_flag("--snapshots-dump", options->dump, "Print each operation as a line of text");
  replay->add_flag("-v,--verbose", options->verbose, "Print what was replayed");
  replay->callback([options, exit_code] { *exit_code = Replay(*options); });
}

}  // namespace mycroft
