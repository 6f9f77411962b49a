// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/probes/host.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "userspace/base/clock.h"
#include "userspace/source/probes/map_access.h"
#include "userspace/source/proc.h"

namespace mycroft {
namespace {

constexpr size_t kMaxConnections = 4096;   // max_entries of the map
constexpr size_t kMaxDescriptors = 65536;  // of a process that are looked at
constexpr size_t kMaxEvents = 1024;
// A sleep that goes on is worth a look at its stack from here on.
constexpr uint64_t kLongSleepNs = 10'000'000;

auto Tie(const mc_host_connection& c) {
  return std::tuple(c.inode, c.family, c.local_port, c.remote_port,
                    std::string_view(reinterpret_cast<const char*>(c.local), sizeof(c.local)),
                    std::string_view(reinterpret_cast<const char*>(c.remote), sizeof(c.remote)));
}

}  // namespace

bool HostProbes::ConnectionLess::operator()(const mc_host_connection& a,
                                            const mc_host_connection& b) const {
  return Tie(a) < Tie(b);
}

std::string ExitText(uint32_t code, bool oom) {
  std::string text;
  if (const int signal = static_cast<int>(code & 0x7f); signal != 0) {
    const char* name = sigdescr_np(signal);
    text = absl::StrCat("killed by signal ", signal, " (", name == nullptr ? "?" : name, ")");
  } else {
    text = absl::StrCat("exited with status ", (code >> 8) & 0xff);
  }
  if (oom) text += ", chosen by the OOM killer";
  return text;
}

std::string ConnectionText(const mc_host_connection& connection) {
  char local[INET6_ADDRSTRLEN] = "?", remote[INET6_ADDRSTRLEN] = "?";
  inet_ntop(connection.family, connection.local, local, sizeof(local));
  inet_ntop(connection.family, connection.remote, remote, sizeof(remote));
  const bool six = connection.family == AF_INET6;
  const char *open = six ? "[" : "", *close = six ? "]:" : ":";
  return absl::StrCat(open, local, close, connection.local_port, " to ", open, remote, close,
                      connection.remote_port);
}

HostProbes::HostProbes(ProbeSet* set, std::string proc_root)
    : set_(set), proc_root_(std::move(proc_root)) {
  // Opened now: later the rights to see addresses may have been dropped.
  kallsyms_ = open("/proc/kallsyms", O_RDONLY | O_CLOEXEC);
  for (const ProbeRow& row : set_->Rows()) {
    if (IsKernelHook(row.method)) attached_.insert(row.name);
  }
}

HostProbes::~HostProbes() {
  if (loading_.valid()) loading_.wait();
  if (kallsyms_ >= 0) close(kallsyms_);
}

bool HostProbes::Attached(const std::string& probe) const { return attached_.count(probe) != 0; }

void HostProbes::WatchThread(uint32_t pid, uint32_t tid) {
  if (tid == 0 || threads_.count(tid) != 0) return;
  Thread thread;
  thread.pid = pid;
  thread.last.pid = pid;
  thread.last.tid = tid;
  const int fd = set_->MapFd("host", "mc_host_threads");
  mc_host_thread entry = {};
  if (Attached("host.delay") && !WriteMap(fd, tid, entry)) return;  // no room
  // Watched from here on. A thread that sleeps already may never be seen to switch; one
  // that was seen has a state that is better than what /proc says. (If it wakes up between
  // the last two lines, its next switch puts the entry right.)
  const auto stat = ReadProcStat(absl::StrCat(proc_root_, "/", pid, "/task"), tid);
  if (!stat) {  // gone
    DeleteFromMap(fd, tid);
    return;
  }
  if (stat->state == 'S') entry.state = MC_RUN_ASLEEP;
  if (stat->state == 'D') entry.state = MC_RUN_BLOCKED;
  entry.since_ns = MonotonicNs();
  if (entry.state != MC_RUN_UNKNOWN) {
    const auto seen = ReadMap<mc_host_thread>(fd, tid);
    if (seen && seen->state == MC_RUN_UNKNOWN) WriteMap(fd, tid, entry);
  }
  threads_.emplace(tid, std::move(thread));
}

void HostProbes::Watch(std::span<const HostWatch> processes) {
  const int threads_map = set_->MapFd("host", "mc_host_threads");
  const int processes_map = set_->MapFd("host", "mc_host_processes");
  const int stacks_map = set_->MapFd("host", "mc_host_stacks");
  std::map<uint32_t, uint64_t> wanted;
  std::set<std::pair<uint32_t, uint32_t>> tids;
  for (const HostWatch& watch : processes) {
    if (watch.pid == 0) continue;
    wanted[watch.pid] = watch.start_time;
    tids.emplace(watch.pid, watch.pid);
    for (uint32_t tid : watch.tids) tids.emplace(watch.pid, tid);
  }
  // Those that are gone, or are another process by now.
  std::set<uint32_t> forgotten;
  for (auto it = processes_.begin(); it != processes_.end();) {
    const auto still = wanted.find(it->first);
    if (still != wanted.end() && still->second == it->second) {
      ++it;
      continue;
    }
    forgotten.insert(it->first);
    DeleteFromMap(processes_map, it->first);
    retransmits_.erase(it->first);
    it = processes_.erase(it);
  }
  for (auto it = threads_.begin(); it != threads_.end();) {
    const uint32_t pid = it->second.pid;
    if (forgotten.count(pid) == 0 && tids.count({pid, it->first}) != 0) {
      ++it;
      continue;
    }
    DeleteFromMap(threads_map, it->first);
    DeleteFromMap(stacks_map, it->first);
    it = threads_.erase(it);
  }
  std::erase_if(owners_, [&](const auto& owner) { return forgotten.count(owner.second) != 0; });
  bool added = false;
  for (const auto& [pid, start_time] : wanted) {
    if (!processes_.emplace(pid, start_time).second) continue;
    added = true;
    WriteMap(processes_map, pid, mc_host_process{});
  }
  // What belonged to none of ours may belong to the new one.
  if (added) std::erase_if(owners_, [](const auto& owner) { return owner.second == 0; });
  for (const auto& [pid, tid] : tids) WatchThread(pid, tid);
}

std::vector<ThreadDelayRow> HostProbes::Threads(uint64_t now_ns) {
  std::vector<ThreadDelayRow> rows;
  if (!Attached("host.delay")) return rows;
  const int fd = set_->MapFd("host", "mc_host_threads");
  for (auto& [tid, thread] : threads_) {
    const auto entry = ReadMap<mc_host_thread>(fd, tid);
    if (!entry) continue;
    ThreadDelayRow row;
    row.pid = thread.pid;
    row.tid = tid;
    row.state = static_cast<mc_run_state>(std::min<uint32_t>(entry->state, MC_RUN_BLOCKED));
    row.since_ns = entry->since_ns;
    row.runq_ns = entry->runq_ns;
    row.runq_max_ns = entry->runq_max_ns;
    row.runq_count = entry->runq_count;
    row.off_cpu_ns = entry->off_ns;
    row.off_cpu_max_ns = entry->off_max_ns;
    row.blocked_ns = entry->blocked_ns;
    row.blocked_max_ns = entry->blocked_max_ns;
    // What is going on, up to `now`, which is before the entry was read: it cannot be more
    // than what the end of it will add.
    const uint64_t open =
        entry->since_ns != 0 && now_ns > entry->since_ns ? now_ns - entry->since_ns : 0;
    switch (row.state) {
      case MC_RUN_UNKNOWN:
      case MC_RUN_RUNNING:
        break;
      case MC_RUN_RUNNABLE:
        row.runq_ns += open;
        row.runq_max_ns = std::max(row.runq_max_ns, open);
        break;
      case MC_RUN_BLOCKED:
        row.blocked_ns += open;
        row.blocked_max_ns = std::max(row.blocked_max_ns, open);
        [[fallthrough]];
      case MC_RUN_ASLEEP:
        row.off_cpu_ns += open;
        row.off_cpu_max_ns = std::max(row.off_cpu_max_ns, open);
        break;
    }
    // The first state is a guess (WatchThread), and an entry is copied while it is written.
    const ThreadDelayRow& last = thread.last;
    row.runq_ns = std::max(row.runq_ns, last.runq_ns);
    row.runq_max_ns = std::max(row.runq_max_ns, last.runq_max_ns);
    row.runq_count = std::max(row.runq_count, last.runq_count);
    row.off_cpu_ns = std::max(row.off_cpu_ns, last.off_cpu_ns);
    row.off_cpu_max_ns = std::max(row.off_cpu_max_ns, last.off_cpu_max_ns);
    row.blocked_ns = std::max(row.blocked_ns, last.blocked_ns);
    row.blocked_max_ns = std::max(row.blocked_max_ns, last.blocked_max_ns);
    if (thread.armed_until_ns > now_ns) {
      const bool asleep = row.state == MC_RUN_ASLEEP || row.state == MC_RUN_BLOCKED;
      TakeStack(tid, asleep ? open : 0, &thread);
    } else if (thread.armed_until_ns != 0) {
      thread.armed_until_ns = 0;
      DeleteFromMap(set_->MapFd("host", "mc_host_stacks"), tid);
    }
    if (thread.stack.frames != 0) {
      row.stack = Names(thread.stack);
      row.stack_sleep_ns = thread.stack.sleep_ns;
    }
    thread.last = row;
    rows.push_back(std::move(row));
  }
  return rows;
}

void HostProbes::TakeStack(uint32_t tid, uint64_t asleep_ns, Thread* thread) {
  // Of sleeps that are over. The program may be writing: two reads must agree.
  const int fd = set_->MapFd("host", "mc_host_stacks");
  const auto first = ReadMap<mc_host_stack>(fd, tid);
  const auto second = ReadMap<mc_host_stack>(fd, tid);
  if (first && second && std::memcmp(&*first, &*second, sizeof(*first)) == 0 &&
      first->frames != 0 && first->sleep_ns > thread->stack.sleep_ns) {
    thread->stack = *first;
  }
  if (asleep_ns < kLongSleepNs || asleep_ns <= thread->stack.sleep_ns) return;
  mc_host_stack now = {};
  const auto bytes = RunTaskIterator(set_->ProgramFd("host", "host_stack_now"), tid, sizeof(now));
  if (!ReadRecord(bytes, &now) || now.tid != tid || now.frames == 0) return;
  now.sleep_ns = asleep_ns;
  thread->stack = now;
}

std::vector<std::string> HostProbes::Names(const mc_host_stack& stack) {
  std::vector<std::string> names;
  if (!symbols_) {
    if (!loading_.valid() ||
        loading_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      return names;
    }
    absl::StatusOr<KernelSymbols> loaded = loading_.get();
    if (!loaded.ok()) {
      for (const ProbeRow& row : set_->Rows()) {
        if (row.name == "host.sleep_stack") {
          set_->SetRow(row.name, row.attached,
                       absl::StrCat("stacks have no names: ", loaded.status().message()));
        }
      }
      return names;
    }
    symbols_ = *std::move(loaded);
  }
  const uint32_t frames = std::min<uint32_t>(stack.frames, MC_HOST_STACK_DEPTH);
  for (uint32_t i = 0; i < frames; ++i) {
    std::string name = symbols_->Name(stack.ip[i]);
    // The way into the scheduler is the same for all.
    if (names.empty() && (name == "__schedule" || name == "schedule")) continue;
    names.push_back(name.empty() ? "?" : std::move(name));
  }
  return names;
}

absl::Status HostProbes::ArmStacks(std::span<const uint32_t> tids, uint64_t until_ns) {
  if (!tids.empty() && !(Attached("host.delay") && Attached("host.sleep_stack"))) {
    return absl::FailedPreconditionError(
        "stacks of sleep: host.delay or host.sleep_stack is not attached");
  }
  const int fd = set_->MapFd("host", "mc_host_stacks");
  std::vector<uint64_t> targets;
  const std::set<uint32_t> wanted(tids.begin(), tids.end());
  bool dropped = false;
  for (auto& [tid, thread] : threads_) {
    const bool want = wanted.count(tid) != 0;
    if (!want && thread.armed_until_ns != 0) {
      DeleteFromMap(fd, tid);
      dropped = true;
    }
    if (want && thread.armed_until_ns == 0) {
      thread.stack = {};
      mc_host_stack empty = {};
      empty.tid = tid;
      if (!WriteMap(fd, tid, empty)) continue;
    }
    thread.armed_until_ns = want ? until_ns : 0;
    if (want) targets.push_back(tid);
  }
  // Not when it would only be attached again.
  if (dropped || targets.empty()) set_->Disarm("host.sleep_stack");
  if (targets.empty()) return absl::OkStatus();
  if (!symbols_ && !loading_.valid()) {
    loading_ = std::async(std::launch::async, [fd = kallsyms_] { return KernelSymbols::Read(fd); });
  }
  return set_->Arm("host.sleep_stack", targets, until_ns);
}

void HostProbes::FindOwners(const std::set<uint64_t>& inodes) {
  for (uint64_t inode : inodes) owners_[inode] = 0;
  for (const auto& [pid, start_time] : processes_) {
    std::error_code error;
    size_t seen = 0;
    std::filesystem::directory_iterator it(absl::StrCat(proc_root_, "/", pid, "/fd"), error);
    for (; !error && it != std::filesystem::directory_iterator() && seen < kMaxDescriptors;
         it.increment(error), ++seen) {
      std::error_code vanished;
      const std::string target = std::filesystem::read_symlink(it->path(), vanished).string();
      constexpr std::string_view kPrefix = "socket:[";
      if (target.rfind(kPrefix, 0) != 0) continue;
      uint64_t inode = 0;
      std::from_chars(target.data() + kPrefix.size(), target.data() + target.size(), inode);
      const auto owner = owners_.find(inode);
      if (owner != owners_.end() && owner->second == 0) owner->second = pid;
    }
  }
}

std::vector<ProcessHostRow> HostProbes::Processes() {
  if (Attached("host.retransmit")) {
    const int fd = set_->MapFd("host", "mc_host_connections");
    std::map<mc_host_connection, Connection, ConnectionLess> now;
    std::set<uint64_t> unknown, inodes;
    for (const mc_host_connection& key : MapKeys<mc_host_connection>(fd, kMaxConnections)) {
      const auto value = ReadMap<mc_host_retransmits>(fd, key);
      if (!value) continue;
      now[key] = {value->count, value->last_ns};
      if (key.inode == 0) continue;
      inodes.insert(key.inode);
      if (owners_.count(key.inode) == 0) unknown.insert(key.inode);
    }
    std::erase_if(owners_, [&](const auto& owner) { return inodes.count(owner.first) == 0; });
    if (!unknown.empty() && !processes_.empty()) FindOwners(unknown);
    for (const auto& [key, connection] : now) {
      const auto last = connections_.find(key);
      // The map forgets the oldest when it is full: then the count starts again.
      const bool known = last != connections_.end() && last->second.count <= connection.count;
      const uint64_t more = connection.count - (known ? last->second.count : 0);
      const auto owner = owners_.find(key.inode);
      if (more == 0 || owner == owners_.end() || owner->second == 0) continue;
      retransmits_[owner->second] += more;
      if (events_.size() < kMaxEvents) {
        events_.push_back(
            {.t_ns = connection.last_ns,
             .kind = HostEventKind::kRetransmit,
             .pid = owner->second,
             .number = static_cast<uint32_t>(std::min<uint64_t>(more, UINT32_MAX)),
             .text = absl::StrCat(ConnectionText(key), ": ", more, " segments sent again, ",
                                  connection.count, " in all")});
      }
    }
    connections_ = std::move(now);
  }
  std::vector<ProcessHostRow> rows;
  for (const auto& [pid, start_time] : processes_) {
    ProcessHostRow row;
    row.pid = pid;
    if (Attached("host.reclaim")) {
      if (const auto entry =
              ReadMap<mc_host_process>(set_->MapFd("host", "mc_host_processes"), pid)) {
        row.reclaims = entry->reclaims;
        row.reclaim_ns = entry->reclaim_ns;
      }
    }
    if (Attached("host.retransmit")) row.retransmits = retransmits_[pid];
    rows.push_back(row);
  }
  return rows;
}

bool HostProbes::TakeRecord(const mc_event& header, std::span<const std::byte> record) {
  HostEvent event;
  event.t_ns = header.ts_ns;
  event.pid = header.pid;
  if (header.kind == MC_EVENT_HOST_EXIT) {
    mc_event_host_exit exit;
    if (!ReadRecord(record, &exit)) {
      ++malformed_;
      return true;
    }
    event.kind = HostEventKind::kExit;
    event.number = exit.code;
    event.text = ExitText(exit.code, exit.oom != 0);
  } else if (header.kind == MC_EVENT_HOST_OOM) {
    mc_event_host_oom oom;
    if (!ReadRecord(record, &oom)) {
      ++malformed_;
      return true;
    }
    event.kind = HostEventKind::kOomKill;
    event.number = oom.kernel_pid;
    const std::string comm = PrintableName(oom.comm, sizeof(oom.comm));
    event.text = absl::StrCat("the OOM killer chose process ", oom.kernel_pid,
                              comm.empty() ? "" : absl::StrCat(" (", comm, ")"));
  } else {
    return false;
  }
  if (events_.size() < kMaxEvents) events_.push_back(std::move(event));
  return true;
}

std::vector<HostEvent> HostProbes::TakeEvents() {
  std::stable_sort(events_.begin(), events_.end(),
                   [](const HostEvent& a, const HostEvent& b) { return a.t_ns < b.t_ns; });
  return std::exchange(events_, {});
}

}  // namespace mycroft
