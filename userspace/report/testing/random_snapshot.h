// SPDX-License-Identifier: Apache-2.0
//
// For tests only: snapshots with any value in any field, extremes included, in
// which things come back changed a little, as in real ones.
#ifndef MYCROFT_USERSPACE_REPORT_TESTING_RANDOM_SNAPSHOT_H_
#define MYCROFT_USERSPACE_REPORT_TESTING_RANDOM_SNAPSHOT_H_

#include <limits>
#include <random>
#include <string>
#include <type_traits>

#include "userspace/decode/snapshot.h"

namespace mycroft {

class RandomSnapshot {
 public:
  explicit RandomSnapshot(uint64_t seed) : random_(seed) {}

  Snapshot Next() {
    Snapshot snapshot;
    snapshot.host = Pick("", "node-a", "node-b");
    snapshot.host_id = Pick("", "boot-1", "boot-2");
    Set(snapshot.t_ns), Set(snapshot.wall_ns), Set(snapshot.interval_ns);
    Set(snapshot.blind_spots_changed);
    snapshot.blind_spots.resize(Small());
    for (BlindSpot& spot : snapshot.blind_spots) Set(spot.what), Set(spot.lost), Set(spot.fix);
    snapshot.processes.resize(Small());
    for (ProcessSample& process : snapshot.processes) Fill(process);
    return snapshot;
  }

  void Fill(ProcessSample& p) {
    p.key = {static_cast<uint32_t>(Below(4)), Below(2)};
    if (Below(10) == 0) Set(p.key.pid), Set(p.key.start_time);
    SetEnum(p.status, ProcessStatus::kUnreadable);
    Set(p.problem), Set(p.name), Set(p.container), Set(p.profiler_api), Set(p.level);
    Set(p.last_callback_ns), Set(p.torn_reads);
    if (Below(2) == 0) {
      for (uint64_t& lost : p.lost) Set(lost);
    }
    if (Below(2) == 0) {
      p.host.emplace();
      Set(p.host->state), Set(p.host->throttled_ns), Set(p.host->throttled_periods);
      Set(p.host->major_faults);
      p.host->threads.resize(Small());
      for (ThreadSample& t : p.host->threads) {
        Set(t.tid), Set(t.roles), Set(t.state), Set(t.run_ns), Set(t.runq_wait_ns), Set(t.wchan);
      }
    }
    p.comms.resize(Small());
    for (CommSample& c : p.comms) {
      c.index = static_cast<uint32_t>(Below(4));
      if (Below(10) == 0) Set(c.index);
      Set(c.generation), Set(c.comm_id), Set(c.rank), Set(c.nranks), Set(c.nnodes);
      SetEnum(c.state, MC_COMM_FINALIZED);
      Set(c.init_ns), Set(c.finalize_ns), Set(c.name), Set(c.coll_count), Set(c.p2p_count);
      Set(c.in_api), Set(c.api_enter_ns), Set(c.api_leave_ns);
    }
    p.ops.resize(Small() * 2);
    for (OpSample& op : p.ops) Fill(op);
    p.flows.resize(Small() * 2);
    for (FlowSample& flow : p.flows) Fill(flow);
  }

  void Fill(OpSample& o) {
    // Often one that was there before, changed in some places.
    if (last_op_.id != 0 && Below(2) == 0) o = last_op_;
    const bool all = o.id == 0;
    if (all || Below(4) == 0) o.id = Below(3) == 0 ? Value<uint64_t>() : ++next_id_;
    const auto set = [&](auto&... fields) { ((all || Below(4) == 0 ? Set(fields) : void()), ...); };
    o.comm = static_cast<uint32_t>(Below(3));
    set(o.comm_generation, o.channels, o.flags, o.root_or_peer, o.ordinal, o.nccl_seq, o.count,
        o.stream, o.group_id, o.api_ns, o.start_ns, o.stop_ns, o.proxy_started, o.proxy_progress,
        o.proxy_done, o.proxy_first_ns, o.proxy_progress_ns, o.proxy_last_ns, o.bytes_sent,
        o.bytes_received, o.steps_total, o.steps_done, o.send_steps, o.recv_steps,
        o.send_posted_sum_ns, o.send_done_sum_ns, o.recv_posted_sum_ns, o.recv_data_sum_ns,
        o.kernel_started, o.kernel_stopped, o.kernel_gpu_start, o.kernel_gpu_stop,
        o.kernel_start_seen_ns, o.kernel_stop_seen_ns);
    for (uint64_t& wait : o.wait_ns) set(wait);
    for (uint64_t& wait : o.max_wait_ns) set(wait);
    SetEnum(o.kind, MC_OP_RECV), SetEnum(o.func, MC_FUNC_SENDRECV);
    SetEnum(o.datatype, MC_TYPE_FLOAT8E5M2), SetEnum(o.algo, MC_ALGO_PAT);
    SetEnum(o.proto, MC_PROTO_SIMPLE);
    last_op_ = o;
  }

  void Fill(FlowSample& f) {
    if (Below(2) == 0) f = last_flow_;
    const auto set = [&](auto&... fields) { ((Below(3) == 0 ? Set(fields) : void()), ...); };
    f.index = static_cast<uint32_t>(Below(6));
    SetEnum(f.direction, MC_RECV), SetEnum(f.state, MC_FLOW_RECV_GPU);
    set(f.index, f.comm, f.comm_generation, f.channel, f.peer, f.owner_pid, f.open_ops, f.op_id,
        f.total, f.posted, f.ready, f.transmitted, f.done, f.chunk_bytes, f.state_ns, f.moved_ns,
        f.posted_ns, f.ready_ns, f.transmitted_ns, f.done_ns, f.ops_done, f.steps_done, f.bytes,
        f.wait_ns[0], f.wait_ns[1], f.wait_ns[2], f.last_op_id, f.last_first_ns, f.last_final_ns,
        f.peer_wait_polls);
    last_flow_ = f;
  }

  uint64_t Below(uint64_t n) { return random_() % n; }

 private:
  size_t Small() { return Below(3) == 0 ? 0 : Below(4); }
  std::string Pick(const char* a, const char* b, const char* c) {
    return Below(3) == 0 ? a : Below(2) == 0 ? b : c;
  }

  template <class T>
  T Value() {
    switch (Below(6)) {
      case 0:
        return 0;
      case 1:
        return std::numeric_limits<T>::max();
      case 2:
        return std::numeric_limits<T>::min();
      case 3:
        return static_cast<T>(random_());
      case 4:
        return static_cast<T>(Below(100));
      default:
        return static_cast<T>(1'000'000'000'000 + Below(1'000'000'000));
    }
  }

  template <class T>
  void Set(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      value = Below(2) == 0;
    } else {
      value = Value<T>();
    }
  }
  void Set(std::string& text) {
    text.clear();
    if (Below(3) == 0) return;
    text = Pick("train.py", "futex_wait_queue", "world");
    if (Below(4) == 0) text.resize(Below(300));
    for (char& c : text) {
      if (Below(8) == 0) c = static_cast<char>(random_());
    }
  }
  template <class E>
  void SetEnum(E& value, E last) {
    value = static_cast<E>(Below(static_cast<uint64_t>(last) + 1));
  }

  std::mt19937_64 random_;
  uint64_t next_id_ = 0;
  OpSample last_op_;
  FlowSample last_flow_;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_REPORT_TESTING_RANDOM_SNAPSHOT_H_
