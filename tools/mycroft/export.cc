// SPDX-License-Identifier: Apache-2.0
#include "userspace/report/export.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "tools/mycroft/exit_codes.h"
#include "tools/mycroft/verbs.h"
#include "tools/mycroft/watch.h"
#include "userspace/base/log.h"
#include "userspace/base/units.h"
#include "userspace/report/text.h"
#include "userspace/store/recording.h"

namespace mycroft {
namespace {

using Clock = std::chrono::steady_clock;

// On a terminal only, and only when it takes longer than a second.
class ProgressBar {
 public:
  ProgressBar() : on_(::isatty(STDERR_FILENO) != 0 && GetVerbosity() != Verbosity::kQuiet) {}
  ~ProgressBar() {
    if (shown_) std::fputs("\r\x1b[K", stderr);
  }
  // `share` of the part from `from` to `to` of the whole.
  void Show(double share, double from, double to) {
    if (!on_) return;
    const Clock::time_point now = Clock::now();
    if (now - start_ < std::chrono::seconds(1) || now - last_ < std::chrono::milliseconds(100)) {
      return;
    }
    last_ = now;
    shown_ = true;
    const double whole = from + (to - from) * std::min(std::max(share, 0.0), 1.0);
    const int cells = static_cast<int>(whole * 40);
    std::fprintf(stderr, "\r[%-40s] %3d%%", std::string(static_cast<size_t>(cells), '#').c_str(),
                 static_cast<int>(whole * 100));
    std::fflush(stderr);
  }

 private:
  bool on_;
  bool shown_ = false;
  Clock::time_point start_ = Clock::now(), last_{};
};

// Removes the draft unless it became the result.
class Draft {
 public:
  explicit Draft(std::string path) : path_(std::move(path)) {}
  ~Draft() {
    std::error_code error;
    if (!path_.empty()) std::filesystem::remove(path_, error);
  }
  const std::string& path() const { return path_; }
  absl::Status Become(const std::string& target) {
    std::error_code error;
    std::filesystem::rename(path_, target, error);
    if (error) return absl::PermissionDeniedError(target + ": " + error.message());
    path_.clear();
    return absl::OkStatus();
  }

 private:
  std::string path_;
};

}  // namespace

int RunExport(const Config& config, const Options& options) {
  const std::optional<ExportFormat> format = ParseExportFormat(options.format);
  if (!format) {
    LogError("unknown format '" + options.format + "'");
    return kExitUsage;
  }
  absl::StatusOr<std::unique_ptr<RecordingReader>> reader = RecordingReader::Open(options.file);
  if (!reader.ok()) return Fail(reader.status());
  std::error_code same;
  if (options.output != "-" && std::filesystem::equivalent(options.file, options.output, same)) {
    LogError("-o names the recording itself; choose another file");
    return kExitUsage;
  }

  // First pass: the verdicts, as `diagnose` finds them, and the span of time.
  ProgressBar bar;
  const RecordingInfo info = (*reader)->info();
  Pipeline pipeline(MakePipelineOptions(config));
  uint64_t first_ns = 0, last_ns = 0, count = 0;
  for (;;) {
    absl::StatusOr<std::optional<Snapshot>> next = (*reader)->Next();
    if (!next.ok()) return Fail(next.status());
    if (!*next) break;
    if (count++ == 0) first_ns = (*next)->t_ns;
    last_ns = std::max(last_ns, (*next)->t_ns);
    pipeline.Feed(**next);
    if (info.snapshots > 0) {
      bar.Show(static_cast<double>(count) / static_cast<double>(info.snapshots), 0, 0.4);
    }
  }
  pipeline.Finish();

  ExportOptions what;
  what.clocks = info.clocks;
  if (!options.since.empty()) {
    const absl::StatusOr<uint64_t> since = ParseTimePoint(options.since, first_ns, last_ns);
    if (!since.ok()) {
      LogError("--since: " + StatusText(since.status()));
      return kExitUsage;
    }
    what.since_ns = *since;
  }
  if (!options.until.empty()) {
    const absl::StatusOr<uint64_t> until = ParseTimePoint(options.until, first_ns, last_ns);
    if (!until.ok()) {
      LogError("--until: " + StatusText(until.status()));
      return kExitUsage;
    }
    what.until_ns = *until;
  }
  if (what.since_ns >= what.until_ns || (count > 0 && what.since_ns > last_ns) ||
      what.until_ns < first_ns) {
    LogError("nothing lies between --since and --until; the recording spans " +
             ShortDuration(last_ns - first_ns) + ", from " + std::to_string(first_ns) + " to " +
             std::to_string(last_ns));
    return kExitUsage;
  }
  if (!options.max_bytes.empty()) what.max_bytes = ParseBytes(options.max_bytes).value_or(0);
  what.progress = [&bar](double share) { bar.Show(share, 0.4, 1); };
  (*reader)->Rewind();

  if (options.output == "-") {
    const absl::Status status = Export(**reader, pipeline.incidents(), *format, what, std::cout);
    std::cout.flush();
    return status.ok() ? kExitOk : Fail(status);
  }
  Draft draft(options.output + ".partial");
  uint64_t bytes = 0;
  {
    std::ofstream out(draft.path(), std::ios::binary | std::ios::trunc);
    if (!out) {
      LogError("cannot write " + draft.path() + ": " + std::strerror(errno));
      return kExitFailure;
    }
    const absl::Status status = Export(**reader, pipeline.incidents(), *format, what, out);
    if (!status.ok()) return Fail(status);
    bytes = static_cast<uint64_t>(std::max<std::streamoff>(out.tellp(), 0));
    out.close();
    if (!out) {
      LogError("cannot write " + draft.path() + ": " + std::strerror(errno) +
               "; is the disk full?");
      return kExitFailure;
    }
  }
  const absl::Status status = draft.Become(options.output);
  if (!status.ok()) return Fail(status);
  if (info.truncated) LogWarning(options.file + " is damaged: " + info.problem);
  LogInfo("wrote " + options.output + ", " + BytesText(bytes));
  return kExitOk;
}

}  // namespace mycroft
