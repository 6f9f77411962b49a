// SPDX-License-Identifier: Apache-2.0
//
// The child side of a replay: one process that makes the calls of one or more
// recorded processes into the plugin, each on a thread of its own per recorded
// thread, in the recorded order, under a virtual clock or in real time.
//
// Not thread-safe; one Player per process (the plugin's clock is global).
#ifndef MYCROFT_TOOLS_LAB_REPLAY_PLAYER_H_
#define MYCROFT_TOOLS_LAB_REPLAY_PLAYER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/lab/replay/call_threads.h"
#include "tools/lab/replay/plugin_caller.h"
#include "tools/lab/replay/trace_reader.h"

namespace mycroft {

enum class PlayState : uint8_t {
  kPlaying = 0,
  kEnded = 1,   // all files have ended with their end line
  kKilled = 2,  // all have ended, and a process was killed: no end line, or one with a signal
};

class Player {
 public:
  // Opens the files and reads their first lines. Errors as of TraceReader::Open.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Player>> Create(
      const std::vector<std::string>& files);

  const std::vector<TraceHeader>& headers() const { return headers_; }
  uint64_t first_t_ns() const;  // of the earliest call; UINT64_MAX when there is none

  // Loads the plugin, its clock replaced by the virtual one unless `real_time`.
  // `pids`: processes of the recording -> of the replay; those of its own files are known.
  [[nodiscard]] absl::Status Load(const std::string& plugin,
                                  const std::map<uint32_t, uint32_t>& pids, bool real_time);
  // Makes all calls with t <= t_ns; the plugin's clock is the time of the line in
  // each of them. REQUIRES: Load.
  [[nodiscard]] absl::StatusOr<PlayState> AdvanceTo(uint64_t t_ns);
  // Makes all calls, each when CLOCK_MONOTONIC reaches its time + shift_ns. REQUIRES: Load.
  [[nodiscard]] absl::StatusOr<PlayState> PlayInRealTime(int64_t shift_ns);

  PluginFaults faults() const;
  uint64_t calls() const { return calls_; }

 private:
  struct Track {
    std::unique_ptr<TraceReader> reader;
    std::unique_ptr<PluginCaller::Session> session;
    std::optional<TraceLine> next;  // empty at the end of the file
    bool killed = true;             // until an end line without a signal was seen
  };

  Player() = default;
  Track* Earliest();
  // Reads the line after the present one.
  [[nodiscard]] absl::Status Step(Track& track);
  [[nodiscard]] PlayState State() const;

  std::vector<TraceHeader> headers_;
  std::vector<Track> tracks_;
  std::unique_ptr<PluginCaller> plugin_;
  CallThreads threads_;
  uint64_t calls_ = 0;
};

}  // namespace mycroft

#endif  // MYCROFT_TOOLS_LAB_REPLAY_PLAYER_H_
