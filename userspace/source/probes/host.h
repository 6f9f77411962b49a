// SPDX-License-Identifier: Apache-2.0
//
// What the host probes (bpf/probes/host.bpf.c) know of the job's threads and processes:
// how long threads waited for a CPU and slept, direct reclaim, OOM kills, exits, TCP
// retransmits.
//
//   auto set = ProbeSet::Create({});
//   HostProbes host(set->get());
//   host.Watch({{.pid = 4711, .tids = {4711, 4720}}});
//   ... (*set)->ReadEvents([&](const mc_event& h, auto record) { host.TakeRecord(h, record); });
//   for (const ThreadDelayRow& row : host.Threads(now_ns)) ...
//
// Not thread-safe: the thread that uses the ProbeSet. The set must outlive this. Rows are
// copies. Numbers of processes and threads are those of the agent's pid namespace. Times
// are CLOCK_MONOTONIC, ns; counters are cumulative since the first Watch of the thread or
// process and never go back. Without the probes all of it is there and empty.
#ifndef MYCROFT_USERSPACE_SOURCE_PROBES_HOST_H_
#define MYCROFT_USERSPACE_SOURCE_PROBES_HOST_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <future>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bpf/abi/host.h"
#include "userspace/source/probes/kernel_symbols.h"
#include "userspace/source/probes/probe_set.h"

namespace mycroft {

struct HostWatch {
  uint32_t pid = 0;
  uint64_t start_time = 0;     // field 22 of /proc/PID/stat: tells a pid that is used again
  std::vector<uint32_t> tids;  // the main thread is watched in any case
};

// All of a wait or sleep that is still going on is in the sums.
struct ThreadDelayRow {
  uint32_t pid = 0, tid = 0;
  mc_run_state state = MC_RUN_UNKNOWN;
  uint64_t since_ns = 0;  // of that state; 0: unknown
  uint64_t runq_ns = 0, runq_max_ns = 0, runq_count = 0;
  uint64_t off_cpu_ns = 0, off_cpu_max_ns = 0;
  uint64_t blocked_ns = 0, blocked_max_ns = 0;  // part of off_cpu in uninterruptible sleep
  // Functions of the kernel in which it slept longest since ArmStacks, innermost first.
  std::vector<std::string> stack;
  uint64_t stack_sleep_ns = 0;
};

struct ProcessHostRow {
  uint32_t pid = 0;
  std::optional<uint64_t> reclaims, reclaim_ns;  // direct reclaim; empty: not attached
  // TCP segments of its connections, with those from before it was watched.
  std::optional<uint64_t> retransmits;
};

enum class HostEventKind : uint8_t { kExit, kOomKill, kRetransmit };
struct HostEvent {
  uint64_t t_ns = 0;
  HostEventKind kind = HostEventKind::kExit;
  uint32_t pid = 0;     // 0: not known
  uint32_t number = 0;  // kExit: as wait() has it; kRetransmit: segments since the last event
  std::string text;     // "killed by signal 9 (Killed), chosen by the OOM killer"
};

class HostProbes {
 public:
  explicit HostProbes(ProbeSet* set, std::string proc_root = "/proc");
  ~HostProbes();
  HostProbes(const HostProbes&) = delete;
  HostProbes& operator=(const HostProbes&) = delete;

  // What to watch from now on; others are forgotten. Cheap when nothing has changed.
  void Watch(std::span<const HostWatch> processes);

  std::vector<ThreadDelayRow> Threads(uint64_t now_ns);
  // Looks through the descriptors of the processes when a connection of an unknown owner has
  // retransmitted, and makes an event of each of theirs that did: call it once a second.
  std::vector<ProcessHostRow> Processes();

  // True when the record was one of host.bpf.c. Malformed ones are counted.
  bool TakeRecord(const mc_event& header, std::span<const std::byte> record);
  std::vector<HostEvent> TakeEvents();
  uint64_t malformed_records() const { return malformed_; }

  // Stacks of sleep for these watched threads until then, in place of what was armed.
  absl::Status ArmStacks(std::span<const uint32_t> tids, uint64_t until_ns);

 private:
  struct Thread {
    uint32_t pid = 0;
    ThreadDelayRow last;
    uint64_t armed_until_ns = 0;  // 0: not
    mc_host_stack stack = {};     // longest since arming
  };
  struct Connection {
    uint64_t count = 0;
    uint64_t last_ns = 0;
  };
  struct ConnectionLess {
    bool operator()(const mc_host_connection& a, const mc_host_connection& b) const;
  };
  bool Attached(const std::string& probe) const;
  void WatchThread(uint32_t pid, uint32_t tid);
  void TakeStack(uint32_t tid, uint64_t asleep_ns, Thread* thread);
  std::vector<std::string> Names(const mc_host_stack& stack);
  void FindOwners(const std::set<uint64_t>& inodes);

  ProbeSet* set_;
  std::string proc_root_;
  int kallsyms_ = -1;
  std::set<std::string> attached_;
  std::map<uint32_t, uint64_t> processes_;    // pid -> start time
  std::map<uint32_t, Thread> threads_;        // by tid
  std::map<uint32_t, uint64_t> retransmits_;  // by pid
  std::map<uint64_t, uint32_t> owners_;       // inode -> pid, 0: none of ours
  std::map<mc_host_connection, Connection, ConnectionLess> connections_;
  std::vector<HostEvent> events_;
  uint64_t malformed_ = 0;
  std::future<absl::StatusOr<KernelSymbols>> loading_;
  std::optional<KernelSymbols> symbols_;
};

// "exited with status 3", "killed by signal 9 (Killed)".
std::string ExitText(uint32_t code, bool oom);
// "10.0.0.1:4000 to 10.0.0.2:5000"
std::string ConnectionText(const mc_host_connection& connection);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_PROBES_HOST_H_
