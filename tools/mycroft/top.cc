// SPDX-License-Identifier: Apache-2.0
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "tools/mycroft/exit_codes.h"
#include "tools/mycroft/verbs.h"
#include "tools/mycroft/watch.h"
#include "userspace/base/log.h"
#include "userspace/base/units.h"
#include "userspace/report/top/app.h"
#include "userspace/report/top/feed.h"
#include "userspace/report/top/job_json.h"
#include "userspace/report/top/render.h"
#include "userspace/report/top/rows.h"
#include "userspace/report/top/screen.h"
#include "userspace/store/recording.h"

namespace mycroft {
namespace {

size_t OutputWidth() {
  struct winsize size {};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= kMinWidth) {
    return size.ws_col;
  }
  if (const char* columns = std::getenv("COLUMNS")) {
    const long width = std::strtol(columns, nullptr, 10);
    if (width >= static_cast<long>(kMinWidth) && width <= 1000) return static_cast<size_t>(width);
  }
  return 80;
}

TopState MakeState(const Config& config) {
  TopState state;
  state.refresh_ns = config.top_refresh_ns;
  state.ascii = config.top_ascii;
  state.tree = config.top_tree;
  // UseColour asks for a terminal; interactive or not, standard output is what is drawn on.
  state.colour = UseColour(config, STDOUT_FILENO);
  (void)ParseTopSort(config.top_sort, state.sort);  // the configuration knows the same names
  return state;
}

int PrintFrame(const TopData& data, const TopSource& source, const Config& config,
               const Options& options) {
  std::string text;
  if (options.json) {
    text = TopJson(data) + "\n";
  } else {
    TopState state = MakeState(config);
    const bool colour = state.colour;
    text = FrameText(RenderTop(data, source, state, {OutputWidth(), 0}), colour);
  }
  if (!PrintOut(text)) return kExitFailure;
  if (!OpenIncidents(data).empty()) return kExitStall;
  return Observed(data.job) ? kExitOk : kExitNothing;
}

int TopRecording(const Config& config, const Options& options, bool once) {
  absl::StatusOr<std::unique_ptr<RecordingReader>> reader = RecordingReader::Open(options.file);
  if (!reader.ok()) return Fail(reader.status());
  const RecordingInfo info = (*reader)->info();
  std::unique_ptr<Screen> screen;
  if (!once) {
    absl::StatusOr<std::unique_ptr<Screen>> opened = Screen::Open();
    if (opened.ok()) {
      screen = *std::move(opened);
    } else {
      LogDetail(StatusText(opened.status()) + "; printing one frame");
    }
  }
  RecordingFeed feed(**reader, std::filesystem::path(options.file).filename().string(),
                     info.first_ns, info.last_ns, MakePipelineOptions(config));
  if (!screen) {
    while (!feed.settled()) feed.Poll(1'000'000'000);
    const TopSource source = feed.Source();
    if (info.truncated) LogWarning(options.file + " is damaged: " + info.problem);
    if (!source.problem.empty()) {
      LogError(options.file + ": " + source.problem);
      return kExitFailure;
    }
    return PrintFrame(*feed.Data(), source, config, options);
  }
  TopState state = MakeState(config);
  if (info.truncated) state.message = "damaged: " + info.problem;
  RunTop(feed, *screen, state, {".", UserConfigPath(ProcessEnvironment())});
  return kExitOk;
}

int TopLiveOnce(const Config& config, const Options& options) {
  absl::StatusOr<uint64_t> wait = options.wait.empty()
                                      ? std::max<uint64_t>(3 * config.interval_ns, 1'000'000'000)
                                      : ParseDuration(options.wait);
  if (!wait.ok()) return Fail(wait.status());
  const absl::StatusOr<Live> live = OpenLive(config, options);
  if (!live.ok()) return Fail(live.status());
  LiveSource& source = *live->source;
  Pipeline pipeline(MakePipelineOptions(config));
  uint64_t first_ns = 0;
  const InterruptOnSignal interrupt(source);
  for (;;) {
    absl::StatusOr<std::optional<Snapshot>> next = source.Next();
    if (!next.ok()) return Fail(next.status());
    if (!*next) break;
    if (first_ns == 0) first_ns = (*next)->t_ns;
    pipeline.Feed(**next);
    ArmSuspected(pipeline, (*next)->host, source);
    if ((*next)->t_ns - first_ns >= *wait) break;
  }
  TopData data;
  data.job = pipeline.View();
  data.incidents = pipeline.incidents();
  data.blind_spots = pipeline.BlindSpots();
  TopSource shown;
  shown.live = true;
  shown.name = "live";
  shown.interval_ns = config.interval_ns;
  return PrintFrame(data, shown, config, options);
}

int TopLive(const Config& config, const Options& options) {
  // Before the feed's thread: see guardian.h.
  absl::StatusOr<std::unique_ptr<Screen>> screen = Screen::Open();
  if (!screen.ok()) {
    LogDetail(StatusText(screen.status()) + "; printing one frame");
    return TopLiveOnce(config, options);
  }
  const absl::StatusOr<Live> live = OpenLive(config, options);
  if (!live.ok()) {
    screen->reset();
    return Fail(live.status());
  }
  LiveSource& source = *live->source;
  LiveFeed::AfterFeed arm = [&source](Pipeline& pipeline, const std::string& host) {
    ArmSuspected(pipeline, host, source);
  };
  LiveFeed feed(
      source, [&source] { source.Interrupt(); }, MakePipelineOptions(config), config.interval_ns,
      std::move(arm));
  TopState state = MakeState(config);
  RunTop(feed, **screen, state, {".", UserConfigPath(ProcessEnvironment())});
  return kExitOk;
}

}  // namespace

int RunTopCommand(const Config& config, const Options& options) {
  const bool once = options.once || options.json;
  if (!options.file.empty() && !options.pids.empty()) {
    LogError("--pid chooses among live processes; it does not go with a recording");
    return kExitUsage;
  }
  if (!options.file.empty()) return TopRecording(config, options, once);
  return once ? TopLiveOnce(config, options) : TopLive(config, options);
}

}  // namespace mycroft
