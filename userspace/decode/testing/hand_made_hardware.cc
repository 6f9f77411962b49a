// SPDX-License-Identifier: Apache-2.0
#include "userspace/decode/testing/hand_made_hardware.h"

#include <cstdio>

namespace mycroft {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

std::string Bdf(int bus, int device) {
  char text[32];
  std::snprintf(text, sizeof(text), "0000:%02x:%02x.0", bus, device);
  return text;
}

std::string Gid(int rank) {
  char text[64];
  std::snprintf(text, sizeof(text), "0000:0000:0000:0000:0000:ffff:0a09:%04x", rank + 1);
  return text;
}

}  // namespace

HandMadeHardware::HandMadeHardware(HandMadeJob* job, int ranks_per_host, bool deep)
    : job_(job),
      per_host_(ranks_per_host),
      deep_(deep),
      hosts_((job->ranks() + ranks_per_host - 1) / ranks_per_host),
      ranks_(job->ranks()) {
  for (int rank = 0; rank < job->ranks(); ++rank) {
    HostState& host = hosts_[HostOf(rank)];
    auto add = [&](Place place, const std::string& parent, PciKind kind) {
      PciSample pci;
      pci.address = Address(rank, place);
      pci.parent = parent;
      pci.kind = kind;
      pci.speed_gts = pci.max_speed_gts = 16;
      pci.width = pci.max_width = 16;
      pci.aer_correctable = pci.aer_nonfatal = pci.aer_fatal = 0;
      if (kind == PciKind::kBridge) pci.acs_redirect = false;
      host.pci[pci.address] = pci;
    };
    add(kRoot, "", PciKind::kRootPort);
    add(kSwitch, Address(rank, kRoot), PciKind::kBridge);
    add(kAboveGpu, Address(rank, kSwitch), PciKind::kBridge);
    add(kAboveNic, Address(rank, kSwitch), PciKind::kBridge);
    add(kGpu, Address(rank, kAboveGpu), PciKind::kGpu);
    add(kNic, Address(rank, kAboveNic), PciKind::kNic);
    Pci(rank, kGpu).tx_bytes = Pci(rank, kGpu).rx_bytes = 0;
    NicPortSample port;
    port.device = Device(rank);
    port.pci = Address(rank, kNic);
    port.netdev = "eth" + std::to_string(rank % per_host_);
    port.state = "ACTIVE";
    port.phys_state = "LinkUp";
    port.rate_gbps = 200;
    port.netdev_mtu = 4200;
    port.gids = {{0, "fe80:0000:0000:0000:0000:0000:0000:0001", "IB/RoCE v1"},
                 {1, "fe80:0000:0000:0000:0000:0000:0000:0001", "RoCE v2"},
                 {2, Gid(rank), "IB/RoCE v1"},
                 {3, Gid(rank), "RoCE v2"}};
    for (const char* name :
         {"link_downed", "symbol_error", "packet_seq_err", "local_ack_timeout_err",
          "out_of_sequence", "rnr_nak_retry_err", "out_of_buffer", "np_cnp_sent", "rx_prio3_pause",
          "tx_prio3_pause", "port_xmit_data", "port_rcv_data"}) {
      port.counters[name] = 0;
    }
    host.ports[port.device] = port;
    host.sample.iommu = "off";
    host.sample.peer_memory_module = true;
    RankState& r = ranks_[rank];
    r.process.gpus = {Address(rank, kGpu)};
    r.process.rdma_devices = {Device(rank)};
    r.process.memlock_limit = UINT64_MAX;
    r.process.locked_bytes = 1 << 20;
    MrSample mr;
    mr.device = Device(rank);
    mr.registrations = 8;
    r.process.mrs = {mr};
    for (uint32_t tid : {MainTid(rank), ProxyTid(rank)}) {
      ThreadDelaySample delay;
      delay.tid = tid;
      r.process.delays.push_back(delay);
    }
    r.next_number = static_cast<uint32_t>(100 * (rank + 1));
    job->Host(rank).threads = {{.tid = MainTid(rank), .roles = MC_THREAD_LAUNCH, .state = 'S'},
                               {.tid = ProxyTid(rank), .roles = MC_THREAD_PROGRESS, .state = 'R'}};
  }
  for (int rank = 0; rank < job->ranks(); ++rank) {
    Connect(rank, (rank + 1) % job->ranks());
    // The flush: a loop-back connection.
    QpSample& loop = AddQp(rank, rank, rank);
    loop.remote_number = loop.number;
    loop.remote_gid = Gid(rank);
  }
}

std::string HandMadeHardware::Address(int rank, Place place) const {
  const int local = rank % per_host_;
  const int bus = 0x10 * (local / 2 + 1);
  const int half = local % 2;
  switch (place) {
    case kRoot:
      return Bdf(0, local / 2 + 1);
    case kSwitch:
      return Bdf(bus, 0);
    case kAboveGpu:
      return Bdf(bus + 1, 2 * half);
    case kAboveNic:
      return Bdf(bus + 1, 2 * half + 1);
    case kGpu:
      return Bdf(bus + 2 + 2 * half, 0);
    case kNic:
      return Bdf(bus + 3 + 2 * half, 0);
  }
  return "";
}

std::string HandMadeHardware::Device(int rank) const {
  return "mlx5_" + std::to_string(rank % per_host_);
}
PciSample& HandMadeHardware::Pci(int rank, Place place) {
  return hosts_.at(HostOf(rank)).pci.at(Address(rank, place));
}
NicPortSample& HandMadeHardware::Port(int rank) {
  return hosts_.at(HostOf(rank)).ports.at(Device(rank));
}
ProcessHardware& HandMadeHardware::Process(int rank) { return ranks_.at(rank).process; }
GpuSample& HandMadeHardware::Gpu(int rank) {
  const std::string address = Address(rank, kGpu);
  const auto [it, added] = hosts_.at(HostOf(rank)).gpus.try_emplace(address);
  if (!added) return it->second;
  GpuSample& gpu = it->second;
  gpu.address = address;
  gpu.uuid = "GPU-" + std::to_string(rank);
  gpu.name = "NVIDIA H100 80GB HBM3";
  gpu.index = static_cast<uint32_t>(rank % per_host_);
  gpu.sm_mhz = gpu.sm_max_mhz = 1980;
  gpu.memory_mhz = gpu.memory_max_mhz = 2619;
  gpu.power_w = 620;
  gpu.power_limit_w = 700;
  gpu.clock_reasons = 0;
  gpu.temperature_c = 61;
  gpu.slowdown_c = 87;
  gpu.utilization_percent = 100;
  gpu.ecc_corrected = gpu.ecc_uncorrected = gpu.pcie_replays = 0;
  gpu.remapped_rows = 0;
  gpu.remap_pending = gpu.remap_failed = false;
  for (uint32_t link = 0; link < 4; ++link) gpu.nvlinks.push_back({link, true, 0, 0, 0});
  return gpu;
}
MrSample& HandMadeHardware::Mr(int rank) { return Process(rank).mrs.at(0); }
ThreadDelaySample& HandMadeHardware::Delay(int rank, bool proxy) {
  return Process(rank).delays.at(proxy ? 1 : 0);
}
HardwareSample& HandMadeHardware::Host(int rank) { return hosts_.at(HostOf(rank)).sample; }
void HandMadeHardware::Hide(int rank) { hosts_.at(HostOf(rank)).hidden = true; }

void HandMadeHardware::Event(int rank, HardwareEvent event) {
  if (event.t_ns == 0) event.t_ns = job_->now_ns();
  hosts_.at(HostOf(rank)).events.push_back(std::move(event));
}

QpSample& HandMadeHardware::AddQp(int rank, int from, int to) {
  RankState& r = ranks_.at(rank);
  QpSample qp;
  qp.device = Device(rank);
  qp.port = 1;
  qp.number = r.next_number++;
  qp.created_ns = job_->now_ns();
  qp.state = QpState::kReadyToSend;
  qp.state_ns = qp.created_ns;
  qp.gid_index = 3;
  qp.path_mtu = 4096;
  qp.timeout = 14;
  qp.retry_count = 7;
  qp.rnr_retry = 7;
  qp.min_rnr_timer = 12;
  qp.completions_seen = deep_;
  r.ends[{from, to}] = qp.number;
  return r.qps[qp.number] = qp;
}

QpSample& HandMadeHardware::Connect(int from, int to) {
  QpSample& sender = AddQp(from, from, to);
  QpSample& receiver = AddQp(to, from, to);
  sender.remote_number = receiver.number;
  sender.remote_gid = Gid(to);
  receiver.remote_number = sender.number;
  receiver.remote_gid = Gid(from);
  receiver.receives = 64;
  return sender;
}

QpSample& HandMadeHardware::Qp(int rank, int from, int to) {
  RankState& r = ranks_.at(rank);
  return r.qps.at(r.ends.at({from, to}));
}

void HandMadeHardware::Move(double gbytes) {
  const auto bytes = static_cast<uint64_t>(gbytes * 1e9);
  const uint64_t requests = 1 + bytes / (512 << 10);
  for (int rank = 0; rank < job_->ranks(); ++rank) {
    for (auto& [ends, number] : ranks_[rank].ends) {
      QpSample& qp = ranks_[rank].qps.at(number);
      if (qp.destroyed || qp.state != QpState::kReadyToSend) continue;
      const bool sends = ends.first == rank;
      qp.posts[sends ? kQpWrite : kQpSend] += requests;
      qp.bytes += sends ? bytes : 64 * requests;
      qp.last_post_ns = job_->now_ns();
      qp.post_tid = ProxyTid(rank);
      if (ends.second == rank && ends.first != rank) {
        qp.receives += requests;
        qp.last_receive_ns = job_->now_ns();
        if (deep_) qp.receive_completions = qp.receives - 64;
      }
      if (!deep_) continue;
      qp.completions += requests;
      qp.last_completion_ns = job_->now_ns();
    }
    NicPortSample& port = Port(rank);
    port.counters["port_xmit_data"] += bytes / 4;
    port.counters["port_rcv_data"] += bytes / 4;
    PciSample& gpu = Pci(rank, kGpu);
    if (gpu.tx_bytes) *gpu.tx_bytes += bytes;
    if (gpu.rx_bytes) *gpu.rx_bytes += bytes;
  }
}

GpuWorkSample& HandMadeHardware::GpuWork(int rank) {
  std::optional<GpuWorkSample>& work = ranks_[rank].gpu_work;
  if (!work.has_value()) {
    work.emplace();
    work->state = MC_GPU_ARMED;
    work->level = MC_GPU_LEVEL_ACTIVITY;
    work->launches = 1000;
    work->nccl_launches = 100;
    work->devices.emplace_back().pci = Address(rank, kGpu);
  }
  return *work;
}

std::vector<Snapshot> HandMadeHardware::Take() {
  std::vector<Snapshot> snapshots = job_->Take();
  for (size_t h = 0; h < snapshots.size(); ++h) {
    HostState& host = hosts_[h];
    Snapshot& snapshot = snapshots[h];
    if (host.hidden || (host.last_ns != 0 && snapshot.t_ns < host.last_ns + kSecond)) continue;
    HardwareSample& sample = snapshot.hardware.emplace();
    const bool first = host.last_ns == 0;
    host.last_ns = snapshot.t_ns;
    for (const auto& [address, pci] : host.pci) {
      if (!first && host.sent_pci[address] == pci) continue;
      sample.pci.push_back(pci);
      host.sent_pci[address] = pci;
    }
    for (const auto& [device, port] : host.ports) {
      if (!first && host.sent_ports[device] == port) continue;
      sample.nics.push_back(port);
      if (!first && host.sent_ports[device].gids == port.gids) sample.nics.back().gids.clear();
      host.sent_ports[device] = port;
    }
    for (const auto& [address, gpu] : host.gpus) {
      const auto [sent, added] = host.sent_gpus.try_emplace(address, gpu);
      if (!added && sent->second == gpu) continue;
      sent->second = gpu;
      sample.gpus.push_back(gpu);
    }
    sample.events = std::move(host.events);
    host.events.clear();
    if (first || host.sample.iommu != host.sent_sample.iommu) sample.iommu = host.sample.iommu;
    if (first) sample.peer_memory_module = host.sample.peer_memory_module;
    sample.probes = host.sample.probes;
    host.sent_sample = host.sample;
    for (ProcessSample& process : snapshot.processes) {
      RankState& r = ranks_[process.key.pid - 1000];
      ProcessHardware now = r.process;
      for (const auto& [number, qp] : r.qps) {
        if (!first && r.sent_qps[number] == qp) continue;
        now.qps.push_back(qp);
        r.sent_qps[number] = qp;
      }
      process.hardware = std::move(now);
      if (r.gpu_work != r.sent_gpu_work) process.gpu_work = r.sent_gpu_work = r.gpu_work;
    }
  }
  return snapshots;
}

}  // namespace mycroft
