// SPDX-License-Identifier: Apache-2.0
#include "userspace/decode/live_source.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <unordered_map>
#include <utility>

#include "userspace/base/clock.h"
#include "userspace/decode/board_decode.h"
#include "userspace/decode/gpu_board_decode.h"
#include "userspace/decode/gpu_work.h"
#include "userspace/decode/hardware_source.h"
#include "userspace/source/board_map.h"
#include "userspace/source/gpu_board_map.h"
#include "userspace/source/proc.h"

namespace mycroft {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kSecond = 1000 * kMs;
// A line that has not moved for so long while its operation is in flight stands still.
constexpr uint64_t kStillNs = 300 * kMs;
// A line that changes at every tick is sampled this often.
constexpr uint64_t kRepeatNs = kSecond;
// An operation is forgotten when it was complete and unchanged for so long ...
constexpr uint64_t kSettledNs = kStillNs;
// ... or gave no sign of life at all (operations without any observable progress).
constexpr uint64_t kSilentNs = 30 * kSecond;
// A turn of activity records: two readings of a GPU board.
constexpr uint64_t kActivityNs = 2 * kSecond;
constexpr uint32_t kMaxOpsPerTick = 65536;
constexpr uint64_t kMaxRescanNs = 10 * kSecond;
constexpr uint64_t kMaxScanPauseNs = 5 * kSecond;
constexpr size_t kMaxProcesses = 256;

std::string Trim(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

struct WatchedOp {
  uint64_t id = 0;
  BoardMap::OpSeq seq;
  bool read = false;  // `current` holds something
  bool emitted_complete = false;
  uint64_t first_seen_ns = 0;
  uint64_t changed_ns = 0;  // tick at which the words last changed
  uint64_t emitted_ns = 0;  // 0: never
  uint64_t emitted_change_ns = 0;
};

struct WatchedFlow {
  bool used = false;
  uint64_t op_id = 0;
  uint64_t op_since_ns = 0;  // tick at which it was first seen in this operation
  uint64_t emitted_ns = 0;
  uint32_t emitted_seq = 0;
};

// The GPU board of a process, when it has one.
struct Gpu {
  std::optional<GpuBoardMap> board;
  std::string problem;  // why the board that is there cannot be read
  uint64_t next_find_ns = 0, find_wait_ns = 0;
  uint64_t next_read_ns = 0;
  bool was_still = false;
  bool denied = false;            // its level cannot be changed
  uint64_t armed_until_ns = 0;    // as requested; 0: not
  uint64_t sampled_until_ns = 0;  // its turn of records lasts; 0: it is not its turn
  GpuWorkSampler sampler;
  std::optional<GpuWorkSample> last;
};

// What is read of a thread each second.
struct ThreadFiles {
  explicit ThreadFiles(const std::string& task)
      : stat(task + "/stat"),
        schedstat(task + "/schedstat"),
        wchan(task + "/wchan"),
        cgroup(task + "/cgroup") {}
  KeptFile stat, schedstat, wchan, cgroup;
};

struct Tracked {
  Tracked(BoardMap map, const std::string& proc_root, const ProcessKey& process)
      : key(process), board(std::move(map)), stat(proc_root, process.pid) {}
  ProcessKey key;
  BoardMap board;
  ProcStatFile stat;
  bool end_is_told = false;  // by EndedProcesses
  std::string name;
  std::string container;
  bool announced = false;
  uint64_t next_op = 1;
  std::vector<WatchedOp> ops;  // in order of id
  std::vector<WatchedFlow> flows;
  std::vector<CommSample> comms;           // as last emitted, by index
  std::map<uint32_t, uint32_t> outer_tid;  // of the agent's namespace, by inner tid
  std::set<uint32_t> role_tids;            // inner tids of the threads on its board
  std::map<uint32_t, ThreadFiles> files;   // of these threads, by outer tid
  ProcessSample last;                      // header fields as last emitted
  uint64_t torn = 0;
  uint64_t next_host_ns = 0;
  bool still = false;
  Gpu gpu;
};

struct Candidate {
  uint64_t scan = 0;  // in which it was last seen
  uint64_t next_scan_ns = 0;
  uint64_t wait_ns = 0;
  bool nccl_without_board = false;
  bool denied = false;
};

class LiveSourceImpl final : public LiveSource {
 public:
  LiveSourceImpl(const LiveOptions& options, int event_fd)
      : options_(options), event_fd_(event_fd) {
    utsname names{};
    uname(&names);
    host_ = names.nodename;
    if (options.hardware) {
      HardwareOptions hardware;
      hardware.proc_root = options.proc_root;
      hardware.sys_root = options.sys_root;
      hardware.inline_poll = options.now_ns != nullptr;
      hardware.probes = options.probes;
      hardware.gpu_health = options.gpu_health;
      hardware_ = std::make_unique<HardwareSource>(hardware);
    }
    host_id_ = Trim(ReadSmallFile("/etc/machine-id", 64).value_or("")) + "/" +
               Trim(ReadSmallFile("/proc/sys/kernel/random/boot_id", 64).value_or(""));
  }
  ~LiveSourceImpl() override { close(event_fd_); }

  absl::StatusOr<std::optional<Snapshot>> Next() override {
    if (!options_.now_ns) {
      if (!SleepUntilTick()) return std::optional<Snapshot>();
    }
    uint64_t now = options_.now_ns ? options_.now_ns() : MonotonicNs();
    if (now >= next_scan_ns_) {
      const uint64_t begin = ReadClockNs(CLOCK_THREAD_CPUTIME_ID);
      Scan(now);
      const uint64_t took = ReadClockNs(CLOCK_THREAD_CPUTIME_ID) - begin;
      // A host with thousands of processes is listed less often: a percent of a CPU at most.
      const uint64_t pause = std::min(100 * took, kMaxScanPauseNs);
      next_scan_ns_ = now + std::max(options_.scan_interval_ns, pause);
      blind_spots_due_ = true;
    }
    if (options_.gpu_sampling_ns != 0) SampleActivity(now);
    Snapshot snapshot;
    snapshot.host = host_;
    snapshot.host_id = host_id_;
    snapshot.t_ns = now;
    snapshot.wall_ns = options_.wall_ns ? options_.wall_ns() : ReadClockNs(CLOCK_REALTIME);
    snapshot.interval_ns = options_.interval_ns;
    HardwareReading hardware;
    if (hardware_ && hardware_->Due(now)) {
      blind_spots_due_ = true;
      hardware = hardware_->Sample(now, Watched());
      snapshot.hardware = std::move(hardware.host);
    }
    const std::set<const ProcStatFile*> ended = ended_.Ended();
    throttles_.clear();
    snapshot.processes.reserve(tracked_.size());
    for (auto it = tracked_.begin(); it != tracked_.end();) {
      const bool may_be_gone = !it->second->end_is_told || ended.count(&it->second->stat) != 0;
      const bool gone = may_be_gone && Gone(*it->second);
      ProcessSample sample;
      bool changed = SampleProcess(*it->second, now, gone, &sample);
      if (auto found = hardware.processes.find(it->first); found != hardware.processes.end()) {
        sample.hardware = std::move(found->second);
        changed = true;
      }
      if (gone) {
        sample.status = ProcessStatus::kExited;
        changed = true;
      }
      if (changed) snapshot.processes.push_back(std::move(sample));
      it = gone ? tracked_.erase(it) : std::next(it);
    }
    if (blind_spots_due_) {
      blind_spots_due_ = false;
      std::vector<BlindSpot> blind = BlindSpots();
      if (blind != blind_ || first_) {
        snapshot.blind_spots = blind;
        snapshot.blind_spots_changed = true;
        blind_ = std::move(blind);
      }
      first_ = false;
    }
    return std::optional<Snapshot>(std::move(snapshot));
  }

  void Interrupt() override {
    interrupted_.store(true);
    uint64_t one = 1;
    [[maybe_unused]] ssize_t n = write(event_fd_, &one, sizeof(one));
  }

  size_t process_count() const override { return tracked_.size(); }

  void RequestLevel(mc_level level) override {
    for (auto& [key, process] : tracked_) {
      if (!process->board.RequestLevel(level)) level_denied_ = blind_spots_due_ = true;
    }
    requested_level_ = level;
  }

  void ReadAhead() override {
    if (hardware_) hardware_->ReadAhead();
  }

  void ArmDeep(const std::vector<ProcessKey>& processes, uint64_t until_ns) override {
    if (hardware_) hardware_->ArmDeep(processes, until_ns);
    armed_.clear();
    if (until_ns != 0) armed_.insert(processes.begin(), processes.end());
    armed_until_ns_ = until_ns;
    for (auto& [key, process] : tracked_) RequestGpuLevel(key, process->gpu);
  }

  bool saw_process_without_plugin() const override {
    for (const auto& [pid, candidate] : candidates_) {
      if (candidate.nccl_without_board) return true;
    }
    return false;
  }

 private:
  static bool Gone(const Tracked& process) {
    const auto stat = process.stat.Read();
    return !stat || stat->start_time != process.key.start_time || stat->state == 'Z' ||
           stat->state == 'X';
  }

  // False when interrupted.
  bool SleepUntilTick() {
    uint64_t now = MonotonicNs();
    if (next_tick_ns_ == 0 || now > next_tick_ns_ + 10 * options_.interval_ns) next_tick_ns_ = now;
    while (!interrupted_.load()) {
      now = MonotonicNs();
      if (now >= next_tick_ns_) {
        next_tick_ns_ += options_.interval_ns;
        return true;
      }
      uint64_t left = next_tick_ns_ - now;
      timespec timeout{static_cast<time_t>(left / kSecond), static_cast<long>(left % kSecond)};
      pollfd wait{event_fd_, POLLIN, 0};
      ppoll(&wait, 1, &timeout, nullptr);
    }
    return false;
  }

  bool Wanted(uint32_t pid) const {
    if (options_.pids.empty()) return true;
    for (int depth = 0; depth < 32 && pid > 1; ++depth) {
      if (options_.pids.count(pid) != 0) return true;
      auto stat = ReadProcStat(options_.proc_root, pid);
      if (!stat) return false;
      pid = stat->parent;
    }
    return false;
  }

  void Scan(uint64_t now) {
    std::set<uint32_t> tracked;
    for (const auto& [key, process] : tracked_) tracked.insert(key.pid);
    denied_ = false;
    ++scans_;
    for (uint32_t pid : ListNumericEntries(options_.proc_root)) {
      if (tracked.count(pid) != 0) continue;
      const auto it = candidates_.try_emplace(pid).first;
      Candidate& candidate = it->second;
      // Of a process that is not due nothing is read: a host has thousands of them.
      if (now >= candidate.next_scan_ns && !Look(now, pid, &candidate)) {
        candidates_.erase(it);
        continue;
      }
      candidate.scan = scans_;
      denied_ |= candidate.denied;
    }
    std::erase_if(candidates_, [&](const auto& one) { return one.second.scan != scans_; });
    for (auto it = unusable_.begin(); it != unusable_.end();) {
      const bool gone = IsGone(options_.proc_root + "/" + std::to_string(it->first.pid));
      it = gone ? unusable_.erase(it) : std::next(it);
    }
  }

  // False: it is no candidate (any more): gone, or it has a board.
  bool Look(uint64_t now, uint32_t pid, Candidate* candidate) {
    const auto stat = ReadProcStat(options_.proc_root, pid);
    if (!stat) return false;
    candidate->denied = candidate->nccl_without_board = false;
    const bool kernel_thread = pid == 2 || stat->parent == 2;
    const bool never = kernel_thread || !Wanted(pid);  // but for another process of this number
    candidate->wait_ns =
        never ? kMaxRescanNs
              : std::min(std::max(options_.scan_interval_ns, candidate->wait_ns * 3 / 2),
                         kMaxRescanNs);
    candidate->next_scan_ns = now + candidate->wait_ns;
    if (never || stat->state == 'Z') return true;
    if (TryOpen({pid, stat->start_time}, *stat, &candidate->denied)) return false;
    candidate->nccl_without_board = MapsContain(options_.proc_root, pid, "libnccl.so");
    return true;
  }

  bool TryOpen(const ProcessKey& key, const ProcStat& stat, bool* denied) {
    for (const std::string& path :
         FindMemfds(options_.proc_root, key.pid, MC_BOARD_MEMFD_NAME, denied)) {
      auto map = BoardMap::Open(path);
      if (!map.ok()) {
        unusable_[key] = std::string(map.status().message());
        continue;
      }
      // A forked child inherits the descriptor of its parent's board.
      auto inner = ReadInnerPid(options_.proc_root + "/" + std::to_string(key.pid) + "/status");
      if (inner && *inner != map->Header().pid) continue;
      if (tracked_.size() >= kMaxProcesses) {
        unusable_[key] = "more than " + std::to_string(kMaxProcesses) + " processes with a board";
        return false;
      }
      auto process = std::make_unique<Tracked>(*std::move(map), options_.proc_root, key);
      process->name = PrintableName(stat.name);
      process->container =
          ContainerId(ReadSmallFile(options_.proc_root + "/" + std::to_string(key.pid) + "/cgroup")
                          .value_or(""));
      if (requested_level_ != MC_LEVEL_UNSET && !process->board.RequestLevel(requested_level_)) {
        level_denied_ = true;
      }
      unusable_.erase(key);
      process->end_is_told = ended_.Watch(process->stat);
      tracked_[key] = std::move(process);
      return true;
    }
    return false;
  }

  bool SampleProcess(Tracked& process, uint64_t now, bool gone, ProcessSample* out) {
    mc_board_header header = process.board.Header();
    out->key = process.key;
    out->profiler_api = header.profiler_api;
    out->level = header.level;
    out->last_callback_ns = header.last_callback_ns;
    for (int i = 0; i < MC_LOSS_COUNT; ++i) out->lost[i] = header.lost[i];
    bool changed = !process.announced || out->level != process.last.level ||
                   out->lost != process.last.lost || out->profiler_api != process.last.profiler_api;
    if (!process.announced) {
      out->name = process.name;
      out->container = process.container;
      process.announced = true;
    }
    SampleComms(process, header, out);
    process.still = false;
    SampleOps(process, header, now, gone, out);
    SampleFlows(process, header, now, gone, out);
    if (options_.host_samples && !gone && (now >= process.next_host_ns || process.still)) {
      out->host = SampleHost(process, header);
      process.next_host_ns = now + kSecond;
    }
    if (options_.gpu_work && !gone) SampleGpu(process, now, out);
    out->torn_reads = process.torn;
    process.last.level = out->level;
    process.last.lost = out->lost;
    process.last.profiler_api = out->profiler_api;
    return changed || !out->comms.empty() || !out->ops.empty() || !out->flows.empty() ||
           out->host.has_value() || out->gpu_work.has_value();
  }

  // While a process stands still its board is read at once, then once a second like others.
  void SampleGpu(Tracked& process, uint64_t now, ProcessSample* out) {
    Gpu& gpu = process.gpu;
    if (!gpu.board.has_value() && now >= gpu.next_find_ns) FindGpuBoard(process, now);
    const bool came_to_rest = process.still && !gpu.was_still;
    gpu.was_still = process.still;
    if (!gpu.board.has_value() || (now < gpu.next_read_ns && !came_to_rest)) return;
    gpu.next_read_ns = now + kSecond;
    // Its events are not read: the sums say enough.
    GpuWorkSample sample = gpu.sampler.Sample(ReadGpuBoard(*gpu.board, UINT64_MAX, now));
    if (gpu.last == sample) return;
    gpu.last = sample;
    out->gpu_work = std::move(sample);
  }

  void FindGpuBoard(Tracked& process, uint64_t now) {
    Gpu& gpu = process.gpu;
    gpu.find_wait_ns = std::min(std::max(kSecond, gpu.find_wait_ns * 3 / 2), kMaxRescanNs);
    gpu.next_find_ns = now + gpu.find_wait_ns;
    gpu.problem.clear();
    const std::string base = options_.proc_root + "/" + std::to_string(process.key.pid);
    for (const std::string& path :
         FindMemfds(options_.proc_root, process.key.pid, MC_GPU_BOARD_MEMFD_NAME, nullptr)) {
      auto map = GpuBoardMap::Open(path);
      if (!map.ok()) {
        gpu.problem = std::string(map.status().message());
        continue;
      }
      const auto inner = ReadInnerPid(base + "/status");
      const mc_gpu_header header = map->Header();
      if (inner && *inner != header.pid) continue;  // inherited over a fork
      // Of a library that was loaded twice: the newest.
      if (gpu.board.has_value() && gpu.board->Header().created_ns > header.created_ns) continue;
      gpu.board.emplace(*std::move(map));
    }
    if (!gpu.board.has_value()) return;
    gpu.problem.clear();
    RequestGpuLevel(process.key, gpu);
  }

  // Gives each process its turn of records.
  void SampleActivity(uint64_t now) {
    const uint64_t at = now % options_.gpu_sampling_ns;
    uint64_t begin = 0;
    for (auto& [key, process] : tracked_) {
      const bool turn = at >= begin && at < begin + kActivityNs;
      process->gpu.sampled_until_ns = turn ? now - at + begin + kActivityNs : 0;
      RequestGpuLevel(key, process->gpu);
      begin += options_.gpu_sampling_ns / tracked_.size();
    }
  }

  // Asks for activity records of a suspect or of one whose turn it is, and takes the request
  // back when it is neither.
  void RequestGpuLevel(const ProcessKey& key, Gpu& gpu) {
    const uint64_t until =
        std::max(armed_.count(key) != 0 ? armed_until_ns_ : 0, gpu.sampled_until_ns);
    // It grows with every tick while there is suspicion.
    const bool same = until == 0 ? gpu.armed_until_ns == 0
                                 : gpu.armed_until_ns != 0 && until >= gpu.armed_until_ns &&
                                       until - gpu.armed_until_ns < kSecond;
    if (!gpu.board.has_value() || same) return;
    const mc_gpu_level level = until != 0 ? MC_GPU_LEVEL_ACTIVITY : MC_GPU_LEVEL_UNSET;
    gpu.denied = !gpu.board->RequestLevel(level, until);
    gpu.armed_until_ns = until;
  }

  std::vector<WatchedProcess> Watched() const {
    std::vector<WatchedProcess> watched;
    for (const auto& [key, process] : tracked_) {
      WatchedProcess one;
      one.key = key;
      for (const auto& [inner, outer] : process->outer_tid) {
        if (process->role_tids.count(inner) != 0) one.tids.push_back(outer);
      }
      watched.push_back(std::move(one));
    }
    return watched;
  }

  void SampleComms(Tracked& process, const mc_board_header& header, ProcessSample* out) {
    uint32_t used = std::min(header.comms_used, process.board.comm_capacity());
    if (process.comms.size() < used) process.comms.resize(used);
    for (uint32_t i = 0; i < used; ++i) {
      mc_board_comm line{};
      if (!process.board.ReadComm(i, &line)) {
        ++process.torn;
        continue;
      }
      CommSample sample = DecodeComm(i, line);
      if (sample.state == MC_COMM_FREE) continue;
      // The call counters move all the time: they alone are no reason to emit.
      CommSample compare = sample;
      const CommSample& old = process.comms[i];
      compare.coll_count = old.coll_count;
      compare.p2p_count = old.p2p_count;
      compare.api_enter_ns = old.api_enter_ns;
      compare.api_leave_ns = old.api_leave_ns;
      compare.in_api = old.in_api;
      if (compare == old) continue;
      process.comms[i] = sample;
      out->comms.push_back(std::move(sample));
    }
  }

  // What moves is emitted again after this long. An operation that lasts must not look as if
  // it stood still.
  static uint64_t RepeatNs(uint64_t lasts_ns) {
    return lasts_ns >= kStillNs ? kStillNs : kRepeatNs;
  }

  void SampleOps(Tracked& process, const mc_board_header& header, uint64_t now, bool gone,
                 ProcessSample* out) {
    uint64_t end = header.next_op_id;
    uint64_t capacity = process.board.op_capacity();
    if (end > process.next_op) {
      uint64_t begin = process.next_op;
      uint64_t most = std::min<uint64_t>(capacity, kMaxOpsPerTick);
      if (end - begin > most) begin = end - most;
      for (uint64_t id = begin; id < end; ++id) {
        WatchedOp& watched = process.ops.emplace_back();
        watched.id = id;
        watched.first_seen_ns = now;
      }
      process.next_op = end;
    }
    // True: nothing more is to be seen of this operation.
    const auto sampled = [&](WatchedOp& watched) {
      const uint64_t id = watched.id;
      if (process.next_op - id > capacity) return true;  // its slot was given away
      BoardMap::OpSeq seq = process.board.ReadOpSeq(id);
      bool moved = !(watched.read && seq == watched.seq);
      if (moved) watched.changed_ns = now;
      bool still = !moved && now - watched.changed_ns >= kStillNs;
      bool pending = watched.emitted_ns == 0 || watched.emitted_change_ns != watched.changed_ns;
      bool emit = false;
      OpSample sample;
      if (moved || (pending && (still || gone))) {
        mc_board_op line{};
        if (!process.board.ReadOp(id, &line)) {
          ++process.torn;
          return false;
        }
        if (line.id != id) {  // not written yet, or overwritten
          return line.id > id || now - watched.first_seen_ns > kSecond;
        }
        watched.seq = seq;
        watched.read = true;
        sample = DecodeOp(line);
        bool complete = sample.complete();
        emit = watched.emitted_ns == 0 || (complete && !watched.emitted_complete) || still ||
               gone || now - watched.emitted_ns >= RepeatNs(now - watched.first_seen_ns);
        watched.emitted_complete = complete;
      }
      if (emit) {
        watched.emitted_ns = now;
        watched.emitted_change_ns = watched.changed_ns;
        if (out->ops.empty()) out->ops.reserve(4);  // large: growing step by step copies much
        out->ops.push_back(std::move(sample));
      }
      if (!watched.emitted_complete && still) process.still = true;
      uint64_t quiet = now - watched.changed_ns;
      if (watched.read && watched.emitted_complete && quiet >= kSettledNs &&
          watched.emitted_change_ns == watched.changed_ns) {
        return true;
      }
      return watched.read && !watched.emitted_complete && quiet >= kSilentNs &&
             watched.seq.proxy == 0 && watched.seq.kernel == 0;
    };
    size_t kept = 0;
    for (WatchedOp& watched : process.ops) {
      if (sampled(watched)) continue;
      if (&process.ops[kept] != &watched) process.ops[kept] = watched;
      ++kept;
    }
    process.ops.resize(kept);
  }

  void SampleFlows(Tracked& process, const mc_board_header& header, uint64_t now, bool gone,
                   ProcessSample* out) {
    uint32_t used = std::min(header.flows_used, process.board.flow_capacity());
    if (process.flows.size() < used) process.flows.resize(used);
    for (uint32_t i = 0; i < used; ++i) {
      WatchedFlow& watched = process.flows[i];
      uint32_t seq = process.board.FlowSeq(i);
      if (watched.used && seq == watched.emitted_seq) continue;
      mc_board_flow line{};
      if (!process.board.ReadFlow(i, &line)) {
        ++process.torn;
        continue;
      }
      FlowSample sample = DecodeFlow(i, line);
      bool still = sample.open_ops > 0 && sample.moved_ns + kStillNs <= now;
      if (still) process.still = true;
      if (!watched.used || watched.op_id != sample.op_id) {
        watched.op_id = sample.op_id;
        watched.op_since_ns = now;
      }
      const uint64_t repeat = RepeatNs(now - watched.op_since_ns);
      if (watched.used && !still && !gone && now - watched.emitted_ns < repeat) continue;
      watched.used = true;
      watched.emitted_ns = now;
      watched.emitted_seq = line.seq;
      out->flows.push_back(std::move(sample));
    }
  }

  HostSample SampleHost(Tracked& process, const mc_board_header& header) {
    HostSample host;
    std::string base = options_.proc_root + "/" + std::to_string(process.key.pid);
    if (const auto stat = process.stat.Read()) {
      host.state = stat->state;
      host.major_faults = stat->major_faults;
    }
    uint32_t used = std::min(header.threads_used, process.board.thread_capacity());
    bool resolve = false;
    std::vector<mc_board_thread> lines;
    for (uint32_t i = 0; i < used; ++i) {
      mc_board_thread line{};
      if (!process.board.ReadThread(i, &line) || line.tid == 0) continue;
      lines.push_back(line);
      if (process.outer_tid.count(line.tid) == 0) resolve = true;
    }
    if (resolve) {
      for (uint32_t tid : ListNumericEntries(base + "/task")) {
        auto inner = ReadInnerPid(base + "/task/" + std::to_string(tid) + "/status");
        if (inner) process.outer_tid[*inner] = tid;
      }
    }
    std::vector<std::string> folders;
    process.role_tids.clear();
    for (const mc_board_thread& line : lines) {
      process.role_tids.insert(line.tid);
      auto outer = process.outer_tid.find(line.tid);
      if (outer == process.outer_tid.end()) continue;
      ThreadFiles& files =
          process.files
              .try_emplace(outer->second, base + "/task/" + std::to_string(outer->second))
              .first->second;
      ThreadSample thread;
      thread.tid = outer->second;
      thread.roles = line.roles & (MC_THREAD_LAUNCH | MC_THREAD_PROGRESS);
      if (auto text = files.stat.Read(4096)) {
        if (auto stat = ParseProcStat(*text)) thread.state = stat->state;
      } else {
        if (IsGone(base + "/task/" + std::to_string(outer->second))) thread.state = 'X';
        process.files.erase(outer->second);  // its number may become another thread's
        host.threads.push_back(std::move(thread));
        continue;
      }
      if (auto text = files.schedstat.Read(256)) {
        if (auto sched = ParseSchedstat(*text)) {
          thread.run_ns = sched->run_ns;
          thread.runq_wait_ns = sched->runq_wait_ns;
          thread.slices = sched->slices;
        }
      }
      if (auto text = files.wchan.Read(64); text && *text != "0") {
        thread.wchan = PrintableName(*text);
      }
      if (auto text = files.cgroup.Read(8192)) {
        for (std::string& folder : CpuCgroupFolders(*text)) {
          if (std::find(folders.begin(), folders.end(), folder) == folders.end()) {
            folders.push_back(std::move(folder));
          }
        }
      }
      host.threads.push_back(std::move(thread));
    }
    if (process.files.size() > host.threads.size()) {
      std::erase_if(process.files, [&](const auto& of) {
        return std::none_of(host.threads.begin(), host.threads.end(),
                            [&](const ThreadSample& t) { return t.tid == of.first; });
      });
    }
    // Threads may sit in different groups (v1): the sum over the groups.
    for (const std::string& folder : folders) {
      // Ranks often share a group: each is read once in a sample.
      auto [known, added] = throttles_.try_emplace(folder);
      std::optional<CpuStat>& stat = known->second;
      if (added) {
        const auto text = ReadSmallFile(folder + "/cpu.stat", 4096);
        if (text) stat = ParseCpuStat(*text);
      }
      if (!stat) continue;
      host.throttled_ns += stat->throttled_ns;
      host.throttled_periods += stat->throttled_periods;
    }
    return host;
  }

  std::vector<BlindSpot> BlindSpots() const {
    std::vector<BlindSpot> blind;
    std::string without;
    size_t count = 0;
    for (const auto& [pid, candidate] : candidates_) {
      if (!candidate.nccl_without_board) continue;
      if (++count <= 8) without += (without.empty() ? "" : ", ") + std::to_string(pid);
    }
    if (count > 0) {
      blind.push_back({std::to_string(count) + " process(es) use NCCL without the plugin: pid " +
                           without + (count > 8 ? ", ..." : ""),
                       "their operations and flows are not visible",
                       "start them with `mycroft run -- CMD`"});
    }
    for (const auto& [key, problem] : unusable_) {
      blind.push_back({"pid " + std::to_string(key.pid) + ": " + problem,
                       "this process is not visible",
                       "use the plugin and the agent of one release"});
      if (blind.size() > 16) break;
    }
    if (hardware_) {
      const auto& spots = hardware_->blind_spots();
      blind.insert(blind.end(), spots.begin(), spots.end());
    }
    if (denied_) {
      blind.push_back({"some processes of other users cannot be read in /proc",
                       "boards of these processes are not found",
                       "run as root, or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"});
    }
    AddGpuBlindSpots(&blind);
    if (level_denied_) {
      blind.push_back({"a board cannot be opened for writing",
                       "the level of detail of that process cannot be changed", ""});
    }
    return blind;
  }

  // Where the CUPTI library was loaded and does not see everything. Where it was not, nobody
  // expects it.
  void AddGpuBlindSpots(std::vector<BlindSpot>* blind) const {
    std::map<std::string, std::pair<size_t, std::string>> by_problem;  // count, pids
    for (const auto& [key, process] : tracked_) {
      const Gpu& gpu = process->gpu;
      std::string problem = gpu.problem.empty() ? "" : "GPU board: " + gpu.problem;
      if (gpu.last.has_value() && gpu.last->state != MC_GPU_STARTING) {
        const bool watching = gpu.last->state == MC_GPU_WATCHING || gpu.last->state == MC_GPU_ARMED;
        // Before its first operation no kernel of NCCL is missed.
        const bool none_due = watching && gpu.last->nccl_launches == 0 && process->next_op <= 1;
        if (!none_due && !gpu.last->problem.empty()) problem = gpu.last->problem;
      }
      if (gpu.denied && problem.empty()) problem = "its GPU board cannot be opened for writing";
      if (problem.empty()) continue;
      auto& [count, pids] = by_problem[problem];
      if (++count <= 8) pids += (count == 1 ? "" : ", ") + std::to_string(key.pid);
    }
    for (const auto& [problem, who] : by_problem) {
      blind->push_back({problem + " (pid " + who.second + (who.first > 8 ? ", ..." : "") + ")",
                        "what runs on the GPUs of " +
                            std::string(who.first == 1 ? "this process" : "these processes") +
                            " is not, or not fully, visible",
                        ""});
      if (blind->size() > 32) break;
    }
  }

  LiveOptions options_;
  int event_fd_;
  std::atomic<bool> interrupted_{false};
  std::string host_, host_id_;
  std::unique_ptr<HardwareSource> hardware_;
  uint64_t next_tick_ns_ = 0;
  uint64_t next_scan_ns_ = 0;
  uint64_t scans_ = 0;
  EndedProcesses ended_;
  std::map<std::string, std::optional<CpuStat>> throttles_;  // by folder, of this sample
  std::map<ProcessKey, std::unique_ptr<Tracked>> tracked_;
  std::map<uint32_t, Candidate> candidates_;  // by pid: processes without a board
  std::map<ProcessKey, std::string> unusable_;
  std::vector<BlindSpot> blind_;
  bool first_ = true;
  bool blind_spots_due_ = true;  // they may have changed: looked at when something was read
  bool denied_ = false;
  bool level_denied_ = false;
  mc_level requested_level_ = MC_LEVEL_UNSET;
  std::set<ProcessKey> armed_;
  uint64_t armed_until_ns_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LiveSource>> LiveSource::Create(const LiveOptions& options) {
  if (options.interval_ns < 10 * kMs || options.interval_ns > kSecond) {
    return absl::InvalidArgumentError("sampling interval must be 10 ms to 1 s, got " +
                                      std::to_string(options.interval_ns / kMs) + " ms");
  }
  if (ListNumericEntries(options.proc_root).empty()) {
    return absl::PermissionDeniedError("cannot list processes in " + options.proc_root +
                                       ": is it mounted and readable?");
  }
  int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) {
    return absl::ResourceExhaustedError(std::string("eventfd: ") + std::strerror(errno));
  }
  return std::unique_ptr<LiveSource>(std::make_unique<LiveSourceImpl>(options, fd));
}

}  // namespace mycroft
