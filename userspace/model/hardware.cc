// SPDX-License-Identifier: Apache-2.0
#include "userspace/model/hardware.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <tuple>

#include "bpf/abi/board.h"

namespace mycroft {
namespace {

constexpr size_t kMaxHosts = 4096;
constexpr size_t kMaxPci = 1024;        // per host
constexpr size_t kMaxPorts = 64;        // per host
constexpr size_t kMaxProcesses = 1024;  // per host
constexpr size_t kMaxQps = 16384;       // per process
constexpr size_t kMaxMrs = 64;          // per process
constexpr size_t kMaxDelays = 256;      // per process
constexpr size_t kMaxProbes = 256;      // per host
constexpr size_t kMaxEvents = 1024;     // per host
constexpr size_t kMaxCounters = 256;    // per port
constexpr size_t kMaxSeries = 1 << 18;  // counters of ports, all hosts
constexpr size_t kMaxHops = 32;         // device to root
constexpr size_t kMaxGids = 256;
constexpr size_t kMaxGpus = 64;     // per host
constexpr size_t kMaxNvlinks = 64;  // per GPU
constexpr double kLoadedBytesPerSecond = 10e6;  // less is housekeeping
constexpr double kLoadedShare = 0.01;           // of what the link can carry at the time

uint64_t SaturatingAdd(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

template <typename T>
std::optional<T> Least(const std::optional<T>& a, const std::optional<T>& b) {
  if (!a || !b) return std::nullopt;
  return std::min(*a, *b);
}

}  // namespace

void CounterHistory::Add(uint64_t t_ns, uint64_t value) {
  if (!points_.empty()) {
    if (t_ns < points_.back().t_ns) return;
    if (value < raw_) {
      before_resets_ = points_.back().value;
      ++resets_;
    }
  }
  raw_ = value;
  const uint64_t total = SaturatingAdd(before_resets_, value);
  if (!points_.empty() && points_.back().value == total) return;
  if (!points_.empty() && points_.back().t_ns == t_ns) {
    points_.back().value = total;
    return;
  }
  points_.push_back({t_ns, total});
  if (points_.size() <= most_) return;
  std::vector<Point> kept;
  for (size_t i = 0; i < points_.size(); ++i) {
    if (i == 0 || i % 2 == 0 || i >= points_.size() / 2) kept.push_back(points_[i]);
  }
  points_ = std::move(kept);
}

const CounterHistory::Point* CounterHistory::At(uint64_t t_ns) const {
  auto after = std::upper_bound(points_.begin(), points_.end(), t_ns,
                                [](uint64_t t, const Point& p) { return t < p.t_ns; });
  return after == points_.begin() ? nullptr : &*(after - 1);
}

std::optional<uint64_t> CounterHistory::Increase(uint64_t from_ns, uint64_t to_ns) const {
  const Point* end = At(to_ns);
  if (end == nullptr) return std::nullopt;
  const Point* begin = At(from_ns);
  if (begin == nullptr) begin = &points_.front();
  return end->value > begin->value ? end->value - begin->value : 0;
}

uint64_t CounterHistory::FirstRise(uint64_t from_ns, uint64_t to_ns) const {
  for (size_t i = 1; i < points_.size(); ++i) {
    if (points_[i].t_ns > to_ns) break;
    if (points_[i].t_ns > from_ns && points_[i].value > points_[i - 1].value) {
      return points_[i].t_ns;
    }
  }
  return 0;
}

double LinkBytesPerSecond(const Link& link) {
  if (!link.known() || !std::isfinite(*link.speed_gts) || *link.speed_gts <= 0) return 0;
  const double coding = *link.speed_gts <= 5.0 ? 0.8 : 128.0 / 130.0;
  return *link.speed_gts * 1e9 / 8 * coding * std::min<uint32_t>(*link.width, 32);
}

std::string ToString(const Link& link) {
  if (!link.known()) return "unknown";
  char text[64];
  std::snprintf(text, sizeof(text), "%.4g GT/s x%u", *link.speed_gts, *link.width);
  return text;
}

uint64_t Qp::total_posts() const {
  uint64_t total = 0;
  for (uint64_t n : now.posts) total = SaturatingAdd(total, n);
  return total;
}

void HardwareModel::Apply(const Snapshot& snapshot) {
  auto found = hosts_.find(snapshot.host);
  bool anything = snapshot.hardware.has_value() || found != hosts_.end();
  for (const ProcessSample& process : snapshot.processes) {
    anything |= process.hardware.has_value() || process.gpu_work.has_value();
  }
  if (!anything) return;
  if (found == hosts_.end()) {
    if (hosts_.size() >= kMaxHosts) {
      ++dropped_;
      return;
    }
    found = hosts_.emplace(snapshot.host, HostHardware{}).first;
    found->second.name = snapshot.host;
  }
  any_ = true;
  HostHardware& host = found->second;
  const uint64_t t = snapshot.t_ns;
  if (snapshot.hardware) {
    const HardwareSample& sample = *snapshot.hardware;
    if (host.first_ns == 0) host.first_ns = t;
    host.last_ns = std::max(host.last_ns, t);
    for (const PciSample& pci : sample.pci) ApplyPci(host, t, pci);
    if (!sample.pci.empty()) FindBestLinks(host);
    for (const NicPortSample& port : sample.nics) ApplyPort(host, t, port);
    for (const GpuSample& gpu : sample.gpus) ApplyGpu(host, t, gpu);
    for (const HardwareEvent& event : sample.events) {
      host.events.push_back(event);
      if (host.events.size() > kMaxEvents) host.events.pop_front();
      if (event.kind == HardwareEventKind::kPciRemoved) {
        auto it = host.pci.find(event.device);
        if (it != host.pci.end() && it->second.gone_ns == 0) it->second.gone_ns = event.t_ns;
      }
    }
    for (const ProbeSample& probe : sample.probes) {
      if (host.probes.size() >= kMaxProbes && host.probes.count(probe.name) == 0) {
        ++dropped_;
        continue;
      }
      host.probes[probe.name] = probe;
    }
    if (sample.iommu) host.iommu = *sample.iommu;
    if (sample.peer_memory_module) host.peer_memory_module = sample.peer_memory_module;
    host.lost_events = std::max(host.lost_events, sample.lost_events);
  }
  for (const ProcessSample& process : snapshot.processes) ApplyProcess(host, t, process);
}

void HardwareModel::ApplyPci(HostHardware& host, uint64_t t_ns, const PciSample& sample) {
  if (host.pci.size() >= kMaxPci && host.pci.count(sample.address) == 0) {
    ++dropped_;
    return;
  }
  PciDevice& device = host.pci[sample.address];
  if (t_ns < device.seen_ns) return;
  device.seen_ns = t_ns;
  device.now = sample;
  if (!sample.present) {
    if (device.gone_ns == 0) device.gone_ns = t_ns;
    return;
  }
  device.gone_ns = 0;  // it came back
  if (!sample.unreachable) {
    device.unreachable_ns = 0;
  } else if (device.unreachable_ns == 0) {
    device.unreachable_ns = t_ns;
  }
  if (sample.unreachable) return;  // all ones are no values
  const Link link{sample.speed_gts, sample.width};
  if (link.known()) device.link.Add(t_ns, link);
  if (sample.acs_redirect) device.acs_redirect.Add(t_ns, *sample.acs_redirect);
  if (sample.aer_correctable) device.aer_correctable.Add(t_ns, *sample.aer_correctable);
  if (sample.aer_nonfatal) device.aer_nonfatal.Add(t_ns, *sample.aer_nonfatal);
  if (sample.aer_fatal) device.aer_fatal.Add(t_ns, *sample.aer_fatal);
  if (sample.rx_bytes) device.rx_bytes.Add(t_ns, *sample.rx_bytes);
  if (sample.tx_bytes) device.tx_bytes.Add(t_ns, *sample.tx_bytes);
}

// What both ends of each link allow. sysfs gives the link below for root ports and
// downstream ports, the link above for all others: for a bridge both neighbours are
// asked, so that a slow card in a fast slot is no fault.
void HardwareModel::FindBestLinks(HostHardware& host) {
  std::map<std::string, Link> of_children;
  for (auto& [address, device] : host.pci) {
    if (device.now.parent.empty() || device.gone_ns != 0) continue;
    Link& most = of_children[device.now.parent];
    if (device.now.max_speed_gts) {
      most.speed_gts = std::max(most.speed_gts.value_or(0), *device.now.max_speed_gts);
    }
    if (device.now.max_width) {
      most.width = std::max(most.width.value_or(0), *device.now.max_width);
    }
  }
  for (auto& [address, device] : host.pci) {
    Link best{device.now.max_speed_gts, device.now.max_width};
    if (!device.now.parent.empty()) {
      auto parent = host.pci.find(device.now.parent);
      Link above;
      if (parent != host.pci.end()) {
        above = {parent->second.now.max_speed_gts, parent->second.now.max_width};
      }
      best = {Least(best.speed_gts, above.speed_gts), Least(best.width, above.width)};
    }
    if (device.now.kind == PciKind::kBridge || device.now.kind == PciKind::kRootPort) {
      auto below = of_children.find(address);
      Link children = below == of_children.end() ? Link{} : below->second;
      best = {Least(best.speed_gts, children.speed_gts), Least(best.width, children.width)};
    }
    device.best = best;
  }
}

void HardwareModel::ApplyGpu(HostHardware& host, uint64_t t_ns, const GpuSample& sample) {
  if (host.gpus.size() >= kMaxGpus && host.gpus.count(sample.address) == 0) {
    ++dropped_;
    return;
  }
  GpuDevice& gpu = host.gpus[sample.address];
  if (t_ns < gpu.seen_ns) return;
  gpu.seen_ns = t_ns;
  gpu.now = sample;
  if (!sample.lost) {
    gpu.lost_ns = 0;
  } else if (gpu.lost_ns == 0) {
    gpu.lost_ns = t_ns;
  }
  if (sample.lost || sample.silent_since_ns != 0) return;  // the values are old
  if (sample.sm_mhz) gpu.clocks.Add(t_ns, {*sample.sm_mhz, sample.clock_reasons.value_or(0)});
  if (sample.remap_pending) gpu.remap_pending.Add(t_ns, *sample.remap_pending);
  if (sample.remap_failed) gpu.remap_failed.Add(t_ns, *sample.remap_failed);
  if (sample.ecc_corrected) gpu.ecc_corrected.Add(t_ns, *sample.ecc_corrected);
  if (sample.ecc_uncorrected) gpu.ecc_uncorrected.Add(t_ns, *sample.ecc_uncorrected);
  if (sample.pcie_replays) gpu.pcie_replays.Add(t_ns, *sample.pcie_replays);
  for (const NvlinkSample& link : sample.nvlinks) {
    if (gpu.nvlinks.size() >= kMaxNvlinks && gpu.nvlinks.count(link.link) == 0) continue;
    GpuDevice::Nvlink& known = gpu.nvlinks[link.link];
    known.active.Add(t_ns, link.active);
    if (link.crc) known.crc.Add(t_ns, *link.crc);
    if (link.replays) known.replays.Add(t_ns, *link.replays);
    if (link.recoveries) known.recoveries.Add(t_ns, *link.recoveries);
  }
}

ClocksUnderLoad JudgeClocks(const GpuDevice& gpu, uint64_t of_interest, uint64_t from_ns,
                            uint64_t to_ns) {
  ClocksUnderLoad result;
  const auto& changes = gpu.clocks.changes();
  if (gpu.now.silent_since_ns != 0) to_ns = std::min(to_ns, gpu.now.silent_since_ns);
  if (gpu.lost_ns != 0) to_ns = std::min(to_ns, gpu.lost_ns);
  double sum = 0;
  uint64_t throttled = 0;
  std::map<int, std::pair<uint64_t, uint64_t>> by_bit;  // time in force, first seen
  for (size_t i = 0; i < changes.size(); ++i) {
    const uint64_t begin = std::max(changes[i].first, from_ns);
    const uint64_t end = std::min(i + 1 < changes.size() ? changes[i + 1].first : to_ns, to_ns);
    const GpuDevice::Clocks& clocks = changes[i].second;
    if (end <= begin || (clocks.reasons & clock_reason::kIdle) != 0) continue;
    const uint64_t ns = end - begin;
    result.ns += ns;
    sum += static_cast<double>(clocks.sm_mhz) * static_cast<double>(ns);
    if ((clocks.reasons & of_interest) != 0) throttled += ns;
    for (int bit = 1; bit < 64; ++bit) {
      if ((clocks.reasons >> bit & 1) == 0) continue;
      auto& [in_force, first] = by_bit[bit];
      in_force += ns;
      if (first == 0) first = changes[i].first;
    }
  }
  if (result.ns == 0) return result;
  result.sm_mhz = sum / static_cast<double>(result.ns);
  result.throttled = static_cast<double>(throttled) / static_cast<double>(result.ns);
  for (const auto& [bit, seen] : by_bit) {
    if (seen.first * 5 < result.ns) continue;
    result.reasons |= uint64_t{1} << bit;
    if ((of_interest >> bit & 1) == 0) continue;
    if (result.since_ns == 0 || seen.second < result.since_ns) result.since_ns = seen.second;
  }
  return result;
}

void HardwareModel::ApplyPort(HostHardware& host, uint64_t t_ns, const NicPortSample& sample) {
  const auto key = std::make_pair(sample.device, sample.port);
  if (host.ports.size() >= kMaxPorts && host.ports.count(key) == 0) {
    ++dropped_;
    return;
  }
  Port& port = host.ports[key];
  if (t_ns < port.seen_ns) return;
  port.seen_ns = t_ns;
  std::vector<GidEntry> gids = sample.gids.empty() ? std::move(port.now.gids) : sample.gids;
  if (gids.size() > kMaxGids) gids.resize(kMaxGids);
  port.now = sample;
  port.now.gids = std::move(gids);
  if (!sample.state.empty()) port.state.Add(t_ns, sample.state);
  for (const auto& [name, value] : sample.counters) {
    auto it = port.counters.find(name);
    if (it == port.counters.end()) {
      if (port.counters.size() >= kMaxCounters || series_ >= kMaxSeries) {
        ++dropped_;
        continue;
      }
      ++series_;
      it = port.counters.emplace(name, CounterHistory{}).first;
    }
    it->second.Add(t_ns, value);
  }
}

void HardwareModel::ApplyProcess(HostHardware& host, uint64_t t_ns, const ProcessSample& sample) {
  auto it = host.processes.find(sample.key);
  if (it == host.processes.end()) {
    if (host.processes.size() >= kMaxProcesses && !ForgetExited(host)) {
      ++dropped_;
      return;
    }
    it = host.processes.emplace(sample.key, ProcessState{}).first;
  }
  ProcessState& process = it->second;
  if (sample.status == ProcessStatus::kExited && process.exited_ns == 0) process.exited_ns = t_ns;
  // What the callbacks say has moved: the traffic of its GPU, where that is not counted.
  uint64_t sent = 0, received = 0;
  for (const FlowSample& flow : sample.flows) {
    if (flow.owner_pid != 0) continue;
    if (process.flow_bytes.size() >= MC_BOARD_MAX_FLOWS &&
        process.flow_bytes.count(flow.index) == 0) {
      continue;
    }
    auto [line, fresh] = process.flow_bytes.try_emplace(flow.index, flow.bytes);
    uint64_t& last = line->second;
    if (!fresh) {
      uint64_t& moved = flow.direction == MC_SEND ? sent : received;
      moved = SaturatingAdd(moved, flow.bytes >= last ? flow.bytes - last : flow.bytes);
    }
    last = flow.bytes;
  }
  process.sent_bytes.Add(t_ns, SaturatingAdd(process.sent_bytes.last(), sent));
  process.received_bytes.Add(t_ns, SaturatingAdd(process.received_bytes.last(), received));
  if (sample.host) process.throttled_ns.Add(t_ns, sample.host->throttled_ns);
  if (sample.gpu_work) ApplyGpuWork(process, t_ns, *sample.gpu_work);
  if (!sample.hardware) return;
  const ProcessHardware& now = *sample.hardware;
  process.seen_ns = t_ns;
  process.now = now;
  process.now.qps.clear();
  process.now.mrs.clear();
  process.now.delays.clear();
  process.direct_reclaim_ns.Add(t_ns, now.direct_reclaim_ns);
  for (const QpSample& qp : now.qps) {
    ApplyQp(host, process, sample.key, t_ns, qp);
    auto found = process.qps.find({qp.device, qp.number});
    if (found == process.qps.end() || found->second.first_seen_ns != t_ns) continue;
    auto range = by_number_.equal_range(qp.number);
    const auto place = std::make_tuple(host.name, sample.key, qp.device);
    const bool known = std::any_of(range.first, range.second,
                                   [&](const auto& entry) { return entry.second == place; });
    if (!known) by_number_.emplace(qp.number, place);
  }
  for (const MrSample& mr : now.mrs) {
    if (process.mrs.size() >= kMaxMrs && process.mrs.count(mr.device) == 0) {
      ++dropped_;
      continue;
    }
    process.mrs[mr.device] = mr;
  }
  for (const ThreadDelaySample& delay : now.delays) {
    if (process.delays.size() >= kMaxDelays && process.delays.count(delay.tid) == 0) {
      ++dropped_;
      continue;
    }
    ThreadDelay& thread = process.delays[delay.tid];
    thread.now = delay;
    thread.runq_ns.Add(t_ns, delay.runq_ns);
    thread.runq_count.Add(t_ns, delay.runq_count);
    thread.off_cpu_ns.Add(t_ns, delay.off_cpu_ns);
    thread.blocked_ns.Add(t_ns, delay.blocked_ns);
  }
}

void HardwareModel::ApplyGpuWork(ProcessState& process, uint64_t t_ns,
                                 const GpuWorkSample& sample) {
  process.gpu_work = sample;
  for (const GpuDeviceWork& device : sample.devices) {
    if (process.gpu_sums.size() >= kMaxGpuWorkDevices &&
        process.gpu_sums.count(device.device) == 0) {
      ++dropped_;
      continue;
    }
    GpuSums& sums = process.gpu_sums[device.device];
    if (!device.pci.empty()) sums.pci = device.pci;
    sums.kernels.Add(t_ns, device.kernels);
    sums.kernel_ns.Add(t_ns, device.kernel_ns);
    sums.expected_ns.Add(t_ns, device.expected_ns);
    sums.nccl_kernels.Add(t_ns, device.nccl_kernels);
    sums.nccl_ns.Add(t_ns, device.nccl_ns);
    for (size_t i = 0; i < MC_GPU_COPY_COUNT; ++i) {
      sums.copies[i].Add(t_ns, device.copies[i]);
      sums.copy_bytes[i].Add(t_ns, device.copy_bytes[i]);
      sums.copy_ns[i].Add(t_ns, device.copy_ns[i]);
    }
  }
}

void HardwareModel::ForgetQp(const HostHardware& host, const ProcessKey& key, const Qp& qp) {
  const auto place = std::make_tuple(host.name, key, qp.now.device);
  auto range = by_number_.equal_range(qp.now.number);
  for (auto it = range.first; it != range.second; ++it) {
    if (it->second != place) continue;
    by_number_.erase(it);
    return;
  }
}

bool HardwareModel::ForgetExited(HostHardware& host) {
  auto oldest = host.processes.end();
  for (auto it = host.processes.begin(); it != host.processes.end(); ++it) {
    if (it->second.exited_ns == 0) continue;
    if (oldest == host.processes.end() || it->second.exited_ns < oldest->second.exited_ns) {
      oldest = it;
    }
  }
  if (oldest == host.processes.end()) return false;
  for (const auto& [place, qp] : oldest->second.qps) ForgetQp(host, oldest->first, qp);
  host.processes.erase(oldest);
  return true;
}

void HardwareModel::ApplyQp(HostHardware& host, ProcessState& process, const ProcessKey& key,
                            uint64_t t_ns, const QpSample& sample) {
  const auto place = std::make_pair(sample.device, sample.number);
  auto it = process.qps.find(place);
  if (it == process.qps.end() && process.qps.size() >= kMaxQps) {
    // Room of one that is gone; the numbers of the others are still in use.
    auto gone = process.qps.end();
    while (gone == process.qps.end() && !process.destroyed_qps.empty()) {
      gone = process.qps.find(process.destroyed_qps.front());
      process.destroyed_qps.pop_front();
      if (gone != process.qps.end() && !gone->second.destroyed()) gone = process.qps.end();
    }
    if (gone == process.qps.end()) {
      ++dropped_;
      return;
    }
    ForgetQp(host, key, gone->second);
    process.qps.erase(gone);
  }
  Qp& qp = process.qps[place];
  // The number is used again: another queue pair, whose history is its own.
  if (qp.first_seen_ns == 0 || qp.now.created_ns != sample.created_ns) {
    qp = Qp{};
    qp.first_seen_ns = t_ns;
  }
  qp.process = key;
  qp.now = sample;
  qp.seen_ns = t_ns;
  if (sample.destroyed && qp.destroyed_ns == 0) {
    qp.destroyed_ns = t_ns;
    process.destroyed_qps.push_back(place);
    if (process.destroyed_qps.size() > 2 * kMaxQps) process.destroyed_qps.pop_front();
  }
  const bool error = sample.state == QpState::kError || sample.state == QpState::kSqError;
  if (!error) {
    if (!sample.destroyed) qp.error_ns = 0;
  } else if (qp.error_ns == 0) {
    qp.error_ns = sample.state_ns != 0 && sample.state_ns <= t_ns ? sample.state_ns : t_ns;
  }
  qp.posts.Add(t_ns, qp.total_posts());
  qp.completions.Add(t_ns, sample.completions);
}

const HostHardware* HardwareModel::FindHost(const std::string& host) const {
  auto it = hosts_.find(host);
  return it == hosts_.end() ? nullptr : &it->second;
}

const ProcessState* HardwareModel::FindProcess(const std::string& host,
                                               const ProcessKey& key) const {
  const HostHardware* hardware = FindHost(host);
  if (hardware == nullptr) return nullptr;
  auto it = hardware->processes.find(key);
  return it == hardware->processes.end() || it->second.seen_ns == 0 ? nullptr : &it->second;
}

const Port* HardwareModel::FindPort(const std::string& host, const std::string& device,
                                    uint32_t port) const {
  const HostHardware* hardware = FindHost(host);
  if (hardware == nullptr) return nullptr;
  // A queue pair whose port was not seen: the only one of its device.
  if (port == 0) {
    const Port* only = nullptr;
    for (const auto& [key, p] : hardware->ports) {
      if (key.first != device) continue;
      if (only != nullptr) return nullptr;
      only = &p;
    }
    return only;
  }
  auto it = hardware->ports.find({device, port});
  return it == hardware->ports.end() ? nullptr : &it->second;
}

std::vector<const PciDevice*> HardwareModel::PathToRoot(const HostHardware& host,
                                                        const std::string& address) {
  std::vector<const PciDevice*> path;
  std::set<std::string> seen;
  for (std::string at = address; !at.empty() && path.size() < kMaxHops;) {
    auto it = host.pci.find(at);
    if (it == host.pci.end() || !seen.insert(at).second) break;
    path.push_back(&it->second);
    at = it->second.now.parent;
  }
  return path;
}

const PciDevice* HardwareModel::CommonBridge(const HostHardware& host, const std::string& a,
                                             const std::string& b) {
  const auto of_a = PathToRoot(host, a);
  const auto of_b = PathToRoot(host, b);
  for (size_t i = 1; i < of_a.size(); ++i) {
    for (size_t k = 1; k < of_b.size(); ++k) {
      if (of_a[i] == of_b[k]) return of_a[i];
    }
  }
  return nullptr;
}

const GidEntry* HardwareModel::GidOf(const HostHardware& host, const Qp& qp) const {
  if (!qp.now.gid_index) return nullptr;
  const Port* port = FindPort(host.name, qp.now.device, qp.now.port);
  if (port == nullptr) return nullptr;
  for (const GidEntry& entry : port->now.gids) {
    if (entry.index == *qp.now.gid_index) return &entry;
  }
  return nullptr;
}

HardwareModel::QpEnd HardwareModel::Remote(const HostHardware& host, const Qp& qp) const {
  QpEnd found;
  if (qp.now.remote_number == 0) return found;
  auto range = by_number_.equal_range(qp.now.remote_number);
  for (auto it = range.first; it != range.second; ++it) {
    const auto& [name, key, device] = it->second;
    auto host_it = hosts_.find(name);
    if (host_it == hosts_.end()) continue;
    auto process = host_it->second.processes.find(key);
    if (process == host_it->second.processes.end()) continue;
    auto other = process->second.qps.find({device, qp.now.remote_number});
    if (other == process->second.qps.end()) continue;
    const Qp& end = other->second;
    // The other end must point back; its own idea of the connection may not be known.
    if (end.now.remote_number != 0 && end.now.remote_number != qp.now.number) continue;
    bool gid_matches = qp.now.remote_gid.empty();
    const Port* port = FindPort(name, device, end.now.port);
    if (!gid_matches && port != nullptr) {
      for (const GidEntry& entry : port->now.gids) gid_matches |= entry.gid == qp.now.remote_gid;
      // Without a GID table only the pair of numbers speaks for it.
      if (port->now.gids.empty()) gid_matches = end.now.remote_number == qp.now.number;
    } else if (!gid_matches) {
      gid_matches = end.now.remote_number == qp.now.number;
    }
    if (!gid_matches) continue;
    if (&end == &qp && &host_it->second == &host) {
      found = {&host_it->second, &end};  // a loop-back connection: the flush
      continue;
    }
    // Alive before dead: numbers are used again.
    if (found.qp != nullptr && found.qp != &qp) {
      if (found.qp->destroyed() == end.destroyed()) return {};
      if (end.destroyed()) continue;
    }
    found = {&host_it->second, &end};
  }
  return found;
}

LinkUnderLoad JudgeLink(const PciDevice& device, const CounterHistory& traffic, uint64_t from_ns,
                        uint64_t to_ns) {
  LinkUnderLoad result;
  const double best = LinkBytesPerSecond(device.best);
  const auto& points = traffic.points();
  auto rate = [&](size_t i) {  // of the interval that ends at point i
    if (i == 0 || i >= points.size() || points[i].t_ns <= points[i - 1].t_ns) return 0.0;
    return static_cast<double>(points[i].value - points[i - 1].value) * 1e9 /
           static_cast<double>(points[i].t_ns - points[i - 1].t_ns);
  };
  double worst = 0;
  for (size_t i = 1; i < points.size(); ++i) {
    if (points[i].t_ns <= from_ns || points[i].t_ns > to_ns) continue;
    const Link* link = device.link.At(points[i].t_ns);
    if (link == nullptr) continue;
    result.bytes_per_s = std::max(result.bytes_per_s, rate(i));
    const double capacity = LinkBytesPerSecond(*link);
    const double loaded = std::max(kLoadedBytesPerSecond, kLoadedShare * capacity);
    if (capacity <= 0 || rate(i) < loaded || rate(i + 1) < loaded) continue;
    ++result.readings;
    if (best > 0 && capacity < 0.99 * best) ++result.below;
    if (result.readings == 1 || capacity < worst) {
      worst = capacity;
      result.worst = *link;
    }
  }
  return result;
}

}  // namespace mycroft
