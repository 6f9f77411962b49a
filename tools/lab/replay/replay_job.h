// SPDX-License-Identifier: Apache-2.0
//
// A recorded job brought back to life: one child process per rank file (or one
// for all), each with the plugin loaded, all moved forward together by the
// parent under a virtual clock, or left running in real time.
//
//   parent                                child N
//   Start()      -- pids of all ------->  dlopen(plugin)
//   AdvanceTo(T) -- T ----------------->  all calls with t <= T
//                <-- done, or ended ----  (ended: exits, or kills itself like the
//                                         recorded process did)
//
// A child is reaped before AdvanceTo returns, so that /proc shows what it would
// have shown then. Children never outlive the parent. Not thread-safe; create it
// before any other thread of the process exists (it forks).
#ifndef MYCROFT_TOOLS_LAB_REPLAY_REPLAY_JOB_H_
#define MYCROFT_TOOLS_LAB_REPLAY_REPLAY_JOB_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/lab/replay/player.h"

namespace mycroft {

struct ReplayJobOptions {
  std::string plugin;
  bool one_process = false;
  bool real_time = false;
};

// rank<N>.jsonl and rank<N>.jsonl.gz of a folder, by N. Errors: NotFound (no such
// folder, none in it), InvalidArgument (a rank twice).
[[nodiscard]] absl::StatusOr<std::vector<std::string>> FindRankFiles(const std::string& folder);

class ReplayJob {
 public:
  // Checks the first lines of all files, starts the children and loads the plugin
  // in each. Errors name the file.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<ReplayJob>> Start(
      const std::vector<std::string>& files, const ReplayJobOptions& options);
  ~ReplayJob();  // ends and reaps what still runs
  ReplayJob(const ReplayJob&) = delete;
  ReplayJob& operator=(const ReplayJob&) = delete;

  uint64_t first_t_ns() const { return first_t_ns_; }
  int64_t wall_minus_mono_ns() const { return wall_minus_mono_ns_; }
  std::set<uint32_t> pids() const;  // of all children, also of those that have ended
  bool running() const;             // any child

  // Virtual time: all calls up to t_ns in all children.
  [[nodiscard]] absl::Status AdvanceTo(uint64_t t_ns);
  // Real time: calls are made at their time + shift_ns; returns at once. Then Poll
  // until running() is false.
  [[nodiscard]] absl::Status RunInRealTime(int64_t shift_ns);
  [[nodiscard]] absl::Status Poll();

  const PluginFaults& faults() const { return faults_; }  // of ended children
  uint64_t calls() const { return calls_; }

 private:
  struct Child {
    pid_t pid = -1;
    int socket = -1;
    std::vector<std::string> files;
    bool running = false;
  };
  ReplayJob() = default;
  // Takes the answer of a child; reaps it when it has ended.
  [[nodiscard]] absl::Status Receive(Child& child, bool wait);
  [[nodiscard]] absl::Status Send(Child& child, const void* data, size_t size);
  [[nodiscard]] absl::Status Lost(Child& child);

  uint64_t first_t_ns_ = 0;
  int64_t wall_minus_mono_ns_ = 0;
  std::vector<Child> children_;
  PluginFaults faults_;
  uint64_t calls_ = 0;
};

}  // namespace mycroft

#endif  // MYCROFT_TOOLS_LAB_REPLAY_REPLAY_JOB_H_
