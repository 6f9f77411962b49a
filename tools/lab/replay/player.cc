// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/replay/player.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "userspace/base/clock.h"

namespace mycroft {
namespace {

// The plugin's clock takes no argument, so the virtual time is global.
std::atomic<uint64_t> g_virtual_ns{0};
uint64_t VirtualNow() { return g_virtual_ns.load(std::memory_order_relaxed); }

// Lines handed to a thread at once: bounds memory, and how far ahead a file is parsed.
constexpr size_t kMaxBatch = 4096;

// Threads of two recordings may have the same id.
uint64_t ThreadKey(size_t track, uint32_t thread) {
  return static_cast<uint64_t>(track) << 32 | thread;
}

void SleepUntil(uint64_t t_ns) {
  const timespec ts = {static_cast<time_t>(t_ns / 1'000'000'000),
                       static_cast<long>(t_ns % 1'000'000'000)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, nullptr) == EINTR) {
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Player>> Player::Create(const std::vector<std::string>& files) {
  auto player = std::unique_ptr<Player>(new Player());
  for (const std::string& file : files) {
    absl::StatusOr<std::unique_ptr<TraceReader>> reader = TraceReader::Open(file);
    if (!reader.ok()) return reader.status();
    Track track;
    player->headers_.push_back((*reader)->header());
    track.reader = *std::move(reader);
    player->tracks_.push_back(std::move(track));
    if (absl::Status s = player->Step(player->tracks_.back()); !s.ok()) return s;
  }
  return player;
}

absl::Status Player::Step(Track& track) {
  absl::StatusOr<std::optional<TraceLine>> line = track.reader->Next();
  if (!line.ok()) return line.status();
  track.next = *line;
  return absl::OkStatus();
}

uint64_t Player::first_t_ns() const {
  uint64_t first = UINT64_MAX;
  for (const Track& track : tracks_) {
    if (track.next) first = std::min(first, track.next->t_ns);
  }
  return first;
}

absl::Status Player::Load(const std::string& plugin, const std::map<uint32_t, uint32_t>& pids,
                          bool real_time) {
  g_virtual_ns = first_t_ns();
  absl::StatusOr<std::unique_ptr<PluginCaller>> loaded =
      PluginCaller::Load(plugin, real_time ? nullptr : &VirtualNow);
  if (!loaded.ok()) return loaded.status();
  plugin_ = *std::move(loaded);
  for (size_t i = 0; i < tracks_.size(); ++i) {
    std::map<uint32_t, uint32_t> known = pids;
    known[headers_[i].pid] = static_cast<uint32_t>(getpid());
    auto session = plugin_->NewSession(headers_[i].api, std::move(known));
    if (!session.ok()) return session.status();
    tracks_[i].session = *std::move(session);
  }
  return absl::OkStatus();
}

Player::Track* Player::Earliest() {
  Track* earliest = nullptr;
  for (Track& track : tracks_) {
    if (!track.next) continue;
    if (earliest == nullptr || track.next->t_ns < earliest->next->t_ns) earliest = &track;
  }
  return earliest;
}

PlayState Player::State() const {
  bool killed = false;
  for (const Track& track : tracks_) {
    if (track.next) return PlayState::kPlaying;
    killed |= track.killed;
  }
  return killed ? PlayState::kKilled : PlayState::kEnded;
}

absl::StatusOr<PlayState> Player::AdvanceTo(uint64_t t_ns) {
  std::vector<TraceLine> batch;
  while (true) {
    Track* track = Earliest();
    if (track == nullptr || track->next->t_ns > t_ns) break;
    const size_t index = static_cast<size_t>(track - tracks_.data());
    const uint32_t thread = track->next->thread;
    // Consecutive lines of one thread go over in one piece.
    batch.clear();
    while (batch.size() < kMaxBatch && track->next && track->next->thread == thread &&
           track->next->t_ns <= t_ns && track == Earliest()) {
      const TraceLine& line = *track->next;
      if (line.kind == TraceKind::kThread) {
        if (!batch.empty()) break;
        if (line.name != nullptr) threads_.SetName(ThreadKey(index, thread), line.name);
      } else if (line.kind == TraceKind::kEnd) {
        track->killed = line.signal != 0;
      } else {
        batch.push_back(line);
      }
      if (absl::Status s = Step(*track); !s.ok()) return s;
    }
    if (batch.empty()) continue;
    calls_ += batch.size();
    threads_.Run(ThreadKey(index, thread), [&batch, track] {
      for (const TraceLine& line : batch) {
        g_virtual_ns.store(line.t_ns, std::memory_order_relaxed);
        track->session->Call(line);
      }
    });
  }
  // The rest of the interval passes without a call.
  if (t_ns != UINT64_MAX) g_virtual_ns.store(t_ns, std::memory_order_relaxed);
  return State();
}

absl::StatusOr<PlayState> Player::PlayInRealTime(int64_t shift_ns) {
  while (Track* track = Earliest()) {
    SleepUntil(track->next->t_ns + static_cast<uint64_t>(shift_ns));
    // All that is due by now; the plugin takes its time from the real clock.
    const uint64_t now_ns = MonotonicNs() - static_cast<uint64_t>(shift_ns);
    absl::StatusOr<PlayState> state = AdvanceTo(std::max(now_ns, track->next->t_ns));
    if (!state.ok()) return state;
  }
  return State();
}

PluginFaults Player::faults() const {
  PluginFaults sum;
  for (const Track& track : tracks_) {
    if (track.session == nullptr) continue;
    sum.failed_calls += track.session->faults().failed_calls;
    sum.unwritten_handles += track.session->faults().unwritten_handles;
    sum.null_handles += track.session->faults().null_handles;
  }
  return sum;
}

}  // namespace mycroft
