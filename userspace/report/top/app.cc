// SPDX-License-Identifier: Apache-2.0
#include "userspace/report/top/app.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <memory>

#include "userspace/base/log.h"
#include "userspace/report/top/render.h"
#include "userspace/report/top/setup.h"
#include "userspace/report/verdict.h"

namespace mycroft {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kIdleWaitMs = 100;  // also the delay until a signal is noticed

std::string Stamp() {
  const time_t now = ::time(nullptr);
  struct tm local {};
  char buffer[32] = "";
  if (::localtime_r(&now, &local) != nullptr) {
    std::strftime(buffer, sizeof buffer, "%Y%m%dT%H%M%S", &local);
  }
  return buffer;
}

}  // namespace

absl::StatusOr<std::string> SaveSnapshot(const TopData& data, const TopSource& source,
                                         const TopState& state, size_t width,
                                         const std::string& directory) {
  TopState whole = state;
  whole.editing = false;
  std::string text = FrameText(RenderTop(data, source, whole, {std::max<size_t>(width, 80), 0}));
  VerdictTextOptions options;
  options.now_ns = data.job.t_ns;
  options.start_ns = source.live ? 0 : source.first_ns;
  text += "\n" + VerdictText(data.incidents, data.blind_spots, options);
  const std::string base = directory + "/mycroft-top-" + Stamp();
  for (int i = 0; i < 100; ++i) {
    const std::string path = base + (i == 0 ? "" : "-" + std::to_string(i)) + ".txt";
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0 && errno == EEXIST) continue;
    if (fd < 0) return absl::PermissionDeniedError(path + ": " + std::strerror(errno));
    size_t done = 0;
    while (done < text.size()) {
      const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      done += static_cast<size_t>(n);
    }
    const int error = errno;
    ::close(fd);
    if (done < text.size()) return absl::DataLossError(path + ": " + std::strerror(error));
    return path;
  }
  return absl::AlreadyExistsError(base + ".txt and 99 more are there already");
}

void RunTop(TopFeed& feed, Screen& screen, TopState& state, const TopPaths& paths) {
  if (!screen.utf8()) state.ascii = true;
  feed.Poll(0);
  std::shared_ptr<const TopData> data = feed.Data();
  TopSource source = feed.Source();
  bool dirty = true;
  Clock::time_point drawn{};
  Clock::time_point played = Clock::now();
  while (!screen.quit()) {
    const auto refresh = std::chrono::nanoseconds(state.refresh_ns);
    Clock::time_point now = Clock::now();
    if (state.playing && !source.live) {
      // At the speed of the original, in steps of the refresh.
      const auto step = std::min<std::chrono::nanoseconds>(refresh, std::chrono::milliseconds(250));
      if (now - played >= step) {
        const uint64_t elapsed = static_cast<uint64_t>(
            std::chrono::duration_cast<std::chrono::nanoseconds>(now - played).count());
        feed.Seek(data->job.t_ns + elapsed);
        if (data->job.t_ns >= source.last_ns) state.playing = false;
        played = now;
        dirty = true;
      }
    } else {
      played = now;
    }
    const bool changed = feed.Poll(30'000'000);
    if (!source.live) {
      if (changed || dirty) data = feed.Data();
      dirty = dirty || changed;
    } else if (!state.paused && (now - drawn >= refresh || (changed && data->job.t_ns == 0))) {
      data = feed.Data();
      dirty = true;
    }
    source = feed.Source();
    if (dirty) {
      screen.Draw(RenderTop(*data, source, state, screen.size()), state.colour);
      drawn = Clock::now();
      dirty = false;
    }
    const int wait = source.reading < 1 ? 0 : state.playing ? 50 : kIdleWaitMs;
    const std::optional<KeyEvent> key = screen.Read(wait);
    if (!key) continue;
    dirty = true;
    const TopAction action = HandleKey(state, *data, source, PageRows(state, screen.size()), *key);
    switch (action.kind) {
      case TopAction::Kind::kNone:
        break;
      case TopAction::Kind::kQuit:
        return;
      case TopAction::Kind::kSeek:
        feed.Seek(action.seek_ns);
        break;
      case TopAction::Kind::kSnapshot: {
        const absl::StatusOr<std::string> path =
            SaveSnapshot(*data, source, state, screen.size().width, paths.snapshot_directory);
        state.message = path.ok() ? "saved to " + *path : "not saved: " + StatusText(path.status());
        break;
      }
      case TopAction::Kind::kSaveSetup: {
        const absl::Status status = SaveSetup(state, paths.preferences);
        state.message =
            status.ok() ? "written to " + paths.preferences : "not written: " + StatusText(status);
        break;
      }
    }
  }
}

}  // namespace mycroft
