// SPDX-License-Identifier: Apache-2.0
//
// For tests only: snapshots with any value in any field, extremes included, in
// which things come back changed a little, as in real ones.
#ifndef MYCROFT_USERSPACE_REPORT_TESTING_RANDOM_SNAPSHOT_H_
#define MYCROFT_USERSPACE_REPORT_TESTING_RANDOM_SNAPSHOT_H_

#include <limits>
#include <optional>
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
    if (Below(3) == 0) Fill(snapshot.hardware.emplace());
    return snapshot;
  }

  void Fill(HardwareSample& h) {
    h.pci.resize(Small() * 2);
    for (PciSample& p : h.pci) {
      if (Below(2) == 0) p = last_pci_;
      const auto set = [&](auto&... fields) { ((Below(3) == 0 ? Set(fields) : void()), ...); };
      p.address = Pick("0000:3b:00.0", "0000:3c:00.0", "0000:3d:00.0");
      p.parent = Pick("", "0000:3a:00.0", "0000:3b:00.0");
      p.driver = Pick("", "nvidia", "mlx5_core");
      SetEnum(p.kind, PciKind::kRootPort);
      set(p.vendor, p.device, p.numa_node, p.present, p.unreachable, p.speed_gts, p.max_speed_gts,
          p.width, p.max_width, p.max_read_request, p.relaxed_ordering, p.acs_redirect,
          p.aer_correctable, p.aer_nonfatal, p.aer_fatal, p.dma_maps, p.dma_bytes, p.dma_ns,
          p.dma_failures, p.interrupts, p.interrupt_ns, p.rx_bytes, p.tx_bytes);
      last_pci_ = p;
    }
    h.nics.resize(Small());
    for (NicPortSample& n : h.nics) {
      n.device = Pick("mlx5_0", "mlx5_1", "rxeA");
      n.port = static_cast<uint32_t>(Below(3));
      n.pci = Pick("", "0000:18:00.0", "0000:19:00.0");
      n.netdev = Pick("", "eth0", "eth1");
      n.state = Pick("", "ACTIVE", "DOWN");
      n.phys_state = Pick("LinkUp", "Polling", "");
      Set(n.rate_gbps), Set(n.netdev_mtu);
      n.gids.resize(Small());
      for (GidEntry& gid : n.gids) {
        Set(gid.index);
        gid.gid = Pick("", "fe80:0000:0000:0000:0000:0000:0000:0001", "x");
        gid.type = Pick("RoCE v2", "IB/RoCE v1", "");
      }
      // Often the same names as before.
      for (const char* name : {"link_downed", "port_xmit_data", "rnr_nak_retry_err"}) {
        if (Below(8) != 0) Set(n.counters[name]);
      }
      for (uint64_t i = Below(6) == 0 ? Below(5) : 0; i > 0; --i) {
        Set(n.counters["c" + std::to_string(Below(9))]);
      }
    }
    h.events.resize(Small());
    for (HardwareEvent& e : h.events) {
      Set(e.t_ns), Set(e.pid), Set(e.number), Set(e.text);
      SetEnum(e.kind, HardwareEventKind::kSxid), SetEnum(e.severity, Severity::kFatal);
      e.device = Pick("", "mlx5_0", "0000:3b:00.0");
    }
    h.probes.resize(Small());
    for (ProbeSample& p : h.probes) {
      p.name = Pick("verbs.post_send", "poll.pcie_link", "host.runq");
      Set(p.question), Set(p.armed), Set(p.attached), Set(p.problem), Set(p.lost);
      Set(p.cost_ns), Set(p.hits), Set(p.dropped);
      SetEnum(p.level, ProbeLevel::kDeep);
    }
    if (Below(2) == 0) h.iommu = Pick("off", "passthrough", "translated");
    Set(h.peer_memory_module);
    Set(h.lost_events);
    h.gpus.resize(Small());
    for (GpuSample& g : h.gpus) {
      if (Below(2) == 0) g = last_gpu_;
      const auto set = [&](auto&... fields) { ((Below(3) == 0 ? Set(fields) : void()), ...); };
      g.address = Pick("0000:3b:00.0", "0000:3c:00.0", "0000:3d:00.0");
      g.uuid = Pick("", "GPU-0", "GPU-1");
      g.name = Pick("", "NVIDIA H100", "x");
      set(g.index, g.lost, g.silent_since_ns, g.hangs, g.sm_mhz, g.sm_max_mhz, g.memory_mhz,
          g.memory_max_mhz, g.power_w, g.power_limit_w, g.clock_reasons, g.temperature_c,
          g.memory_temperature_c, g.slowdown_c, g.utilization_percent, g.memory_used_bytes,
          g.memory_bytes, g.ecc_corrected, g.ecc_uncorrected, g.remapped_rows, g.remap_pending,
          g.remap_failed, g.pcie_replays);
      g.mig.resize(Small());
      for (std::string& uuid : g.mig) uuid = Pick("MIG-0", "MIG-1", "");
      g.nvlinks.resize(Small() * 2);
      for (NvlinkSample& link : g.nvlinks) {
        set(link.link, link.active, link.crc, link.replays, link.recoveries);
      }
      last_gpu_ = g;
    }
  }

  void Fill(ProcessHardware& h) {
    h.gpus.resize(Small());
    for (std::string& gpu : h.gpus) gpu = Pick("0000:3b:00.0", "0000:3c:00.0", "");
    h.rdma_devices.resize(Small());
    for (std::string& device : h.rdma_devices) device = Pick("mlx5_0", "mlx5_1", "");
    Set(h.memlock_limit), Set(h.locked_bytes), Set(h.shm_bytes), Set(h.shm_free_bytes);
    Set(h.direct_reclaim_ns), Set(h.direct_reclaims), Set(h.tcp_retransmits);
    h.qps.resize(Small() * 2);
    for (QpSample& q : h.qps) {
      if (Below(2) == 0) q = last_qp_;
      const auto set = [&](auto&... fields) { ((Below(3) == 0 ? Set(fields) : void()), ...); };
      q.device = Pick("mlx5_0", "mlx5_1", "rxeA");
      q.number = static_cast<uint32_t>(Below(4));
      q.remote_gid = Pick("", "fe80:0000:0000:0000:0000:0000:0000:0001", "y");
      SetEnum(q.state, QpState::kUnknown);
      set(q.port, q.number, q.created_ns, q.destroyed, q.state_ns, q.remote_number, q.gid_index,
          q.path_mtu, q.timeout, q.retry_count, q.rnr_retry, q.min_rnr_timer, q.posts[0],
          q.posts[1], q.posts[2], q.posts[3], q.posts[4], q.bytes, q.receives, q.post_failures,
          q.last_post_ns, q.last_receive_ns, q.post_tid, q.completions_seen, q.completions,
          q.failed_completions, q.receive_completions, q.last_completion_ns, q.latency_sum_ns,
          q.latency_max_ns, q.first_bad_status, q.first_bad_vendor, q.first_bad_ns);
      last_qp_ = q;
    }
    h.mrs.resize(Small());
    for (MrSample& m : h.mrs) {
      m.device = Pick("mlx5_0", "mlx5_1", "rxeA");
      Set(m.registrations), Set(m.dmabuf), Set(m.relaxed_ordering), Set(m.bytes), Set(m.ns);
      Set(m.failures), Set(m.last_errno), Set(m.last_failure_bytes), Set(m.last_failure_ns);
    }
    h.delays.resize(Small());
    for (ThreadDelaySample& d : h.delays) {
      Set(d.tid), Set(d.runq_ns), Set(d.runq_max_ns), Set(d.runq_count), Set(d.off_cpu_ns);
      Set(d.blocked_ns);
      d.stack.resize(Small());
      for (std::string& line : d.stack) line = Pick("schedule", "do_nanosleep+0x1c", "");
    }
  }

  void Fill(GpuWorkSample& w) {
    if (Below(2) == 0) w = last_work_;
    const auto set = [&](auto&... fields) { ((Below(3) == 0 ? Set(fields) : void()), ...); };
    SetEnum(w.state, MC_GPU_FATAL), SetEnum(w.level, MC_GPU_LEVEL_ACTIVITY);
    set(w.problem, w.armed_until_ns, w.launches, w.nccl_launches, w.last_launch_ns, w.finished_ns,
        w.streams_left_out);
    w.streams.resize(Small() * 2);
    for (GpuStreamWork& s : w.streams) {
      SetEnum(s.pending, GpuPending::kUnfinished), SetEnum(s.oldest_work, MC_GPU_WORK_VOID);
      SetEnum(s.front_work, MC_GPU_WORK_VOID);
      set(s.stream, s.stream_id, s.context, s.device, s.launched, s.finished, s.waited_since_ns,
          s.oldest, s.oldest_ns, s.oldest_proved, s.no_nccl, s.front, s.nccl, s.nccl_ns,
          s.nccl_waits_for);
    }
    w.devices.resize(Small());
    for (GpuDeviceWork& d : w.devices) {
      d.pci = Pick("", "0000:3b:00.0", "0000:3c:00.0");
      set(d.device, d.kernels, d.kernel_ns, d.expected_ns, d.nccl_kernels, d.nccl_ns, d.delays,
          d.delay_ns);
      for (size_t i = 0; i < d.copies.size(); ++i) set(d.copies[i], d.copy_bytes[i], d.copy_ns[i]);
    }
    last_work_ = w;
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
        Set(t.tid), Set(t.roles), Set(t.state), Set(t.run_ns), Set(t.runq_wait_ns), Set(t.slices),
            Set(t.wchan);
      }
    }
    if (Below(3) == 0) Fill(p.hardware.emplace());
    if (Below(3) == 0) Fill(p.gpu_work.emplace());
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
  void Set(double& value) { value = Below(4) == 0 ? 0 : static_cast<double>(Value<int64_t>()) / 8; }
  template <class T>
  void Set(std::optional<T>& value) {
    value.reset();
    if (Below(3) != 0) Set(value.emplace());
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
  PciSample last_pci_;
  GpuSample last_gpu_;
  QpSample last_qp_;
  GpuWorkSample last_work_;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_REPORT_TESTING_RANDOM_SNAPSHOT_H_
