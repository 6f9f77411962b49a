// SPDX-License-Identifier: Apache-2.0
#include "userspace/decode/hardware_source.h"

#include <algorithm>
#include <set>
#include <utility>

namespace mycroft {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kHangNs = 5 * kSecond;
// Counters of a probe alone are no reason to tell it again before this.
constexpr uint64_t kProbeRepeatNs = 60 * kSecond;
// An event that the kernel told is not told again by the poll that sees its effect.
constexpr uint64_t kSameEventNs = 5 * kSecond;
constexpr uint64_t kMovingQpNs = 3 * kSecond;
constexpr size_t kMaxEvents = 1024;
constexpr size_t kMaxQps = 16384;  // of a process
constexpr size_t kMaxRows = 4096;

}  // namespace

HardwareSource::HardwareSource(const HardwareOptions& options)
    : options_(options) {
  if (!options_.poll) {
    GpuHealthOptions health = options_.gpu_health;
    if (options_.inline_poll) health.own_thread = false;
    poller_ = std::make_shared<HardwarePoller>(options_.proc_root, options_.sys_root, health);
    options_.poll = [poller = poller_](uint64_t now_ns, const std::vector<ProcessKey>& processes) {
      return poller->Poll(now_ns, processes);
    };
  }
  if (options_.inline_poll) return;
  asker_.emplace([poll = options_.poll](const Asked& asked) {
    return poll(asked.now_ns, asked.processes);
  });
}

void HardwareSource::ReadAhead() {
  if (poller_) poller_->ReadAhead();
}

HardwareSource::~HardwareSource() = default;

void HardwareSource::ArmDeep(const std::vector<ProcessKey>& processes, uint64_t until_ns) {
  if (options_.probes != nullptr) options_.probes->ArmDeep(processes, until_ns);
}

bool HardwareSource::Due(uint64_t now_ns) {
  return now_ns >= next_ns_ || (asker_ && asker_->answered());
}

HardwareReading HardwareSource::Sample(uint64_t now_ns, std::vector<WatchedProcess> processes) {
  HardwareReading out;
  const bool due = now_ns >= next_ns_;
  bool fresh = false;
  const auto take = [&](PolledHardware&& polled) {
    polled_events_.insert(polled_events_.end(), polled.events.begin(), polled.events.end());
    polled_ = std::move(polled);
    fresh = true;
    poll_since_ns_ = 0;
  };
  std::vector<ProcessKey> keys;
  for (const WatchedProcess& process : processes) keys.push_back(process.key);
  if (due) next_ns_ = now_ns + options_.interval_ns;
  if (options_.inline_poll) {
    if (due) take(options_.poll(now_ns, keys));
  } else {
    if (auto polled = asker_->Take()) take(*std::move(polled));
    if (due && asker_->Ask({now_ns, keys})) poll_since_ns_ = now_ns;
  }
  blind_spots_ = polled_.blind_spots;
  if (poll_since_ns_ != 0 && now_ns > poll_since_ns_ + kHangNs) {
    blind_spots_.push_back({"a read in /sys or /proc has not come back for 5 s",
                            "links, ports, error counters and limits are old",
                            "look for a device whose driver hangs: dmesg"});
  }
  if (!due && !fresh) return out;

  for (WatchedProcess& process : processes) {
    const auto known = polled_.processes.find(process.key);
    if (known == polled_.processes.end()) continue;
    process.gpus = known->second.gpus;
    process.rdma_devices = known->second.rdma_devices;
  }
  KernelReadings kernel;
  if (options_.probes != nullptr) {
    std::vector<std::string> addresses;
    for (const PciSample& pci : polled_.pci) addresses.push_back(pci.address);
    options_.probes->Watch(processes, addresses);
    kernel = options_.probes->Collect(now_ns);
  }
  HardwareSample host;
  TakeDevices(kernel, &host);
  TakePorts(&host);
  TakeGpus(&host);
  TakeProbes(now_ns, kernel, &host);
  TakeEvents(now_ns, kernel, &host);
  TakeProcesses(now_ns, processes, kernel, &out);
  if (polled_.iommu && polled_.iommu != iommu_) host.iommu = iommu_ = polled_.iommu;
  // Memory that was registered through dmabuf proves that this way is open.
  std::optional<bool> peer = polled_.peer_memory_module;
  for (const auto& [key, process] : processes_) {
    for (const auto& [device, mr] : process.mrs) {
      if (mr.dmabuf > 0) peer = true;
    }
  }
  if (peer && peer != peer_memory_module_) host.peer_memory_module = peer_memory_module_ = peer;
  const uint64_t lost = kernel.lost_events + dropped_events_ + polled_.lost_events;
  HardwareSample nothing;
  host.lost_events = nothing.lost_events = lost_events_;
  const bool lost_more = lost > lost_events_;
  if (lost_more) host.lost_events = lost_events_ = lost;
  if (lost_more || host != nothing) out.host = std::move(host);
  return out;
}

void HardwareSource::TakeDevices(const KernelReadings& kernel, HardwareSample* out) {
  std::set<std::string> there;
  for (const PciSample& polled : polled_.pci) {
    PciSample sample = polled;
    there.insert(sample.address);
    if (const auto rows = kernel.devices.find(sample.address); rows != kernel.devices.end()) {
      const KernelDeviceRows& r = rows->second;
      sample.dma_maps = r.dma_maps;
      sample.dma_bytes = r.dma_bytes;
      sample.dma_ns = r.dma_ns;
      sample.dma_failures = r.dma_failures;
      sample.interrupts = r.interrupts;
      sample.interrupt_ns = r.interrupt_ns;
      if (r.rx_bytes) sample.rx_bytes = r.rx_bytes;
      if (r.tx_bytes) sample.tx_bytes = r.tx_bytes;
    }
    const auto [last, added] = pci_.try_emplace(sample.address, sample);
    if (!added && last->second == sample) continue;
    last->second = sample;
    out->pci.push_back(std::move(sample));
  }
  std::erase_if(pci_, [&](const auto& known) { return there.count(known.first) == 0; });
}

void HardwareSource::TakePorts(HardwareSample* out) {
  std::set<std::pair<std::string, uint32_t>> there;
  for (const NicPortSample& polled : polled_.nics) {
    const auto key = std::make_pair(polled.device, polled.port);
    there.insert(key);
    const auto [last, added] = nics_.try_emplace(key, polled);
    if (!added && last->second == polled) continue;
    NicPortSample sample = polled;
    if (!added && sample.gids == last->second.gids) sample.gids.clear();
    last->second = polled;
    out->nics.push_back(std::move(sample));
  }
  std::erase_if(nics_, [&](const auto& known) { return there.count(known.first) == 0; });
}

void HardwareSource::TakeGpus(HardwareSample* out) {
  for (const GpuSample& sample : polled_.gpus) {
    const auto [last, added] = gpus_.try_emplace(sample.address, sample);
    if (!added && last->second == sample) continue;
    last->second = sample;
    out->gpus.push_back(sample);
  }
  std::erase_if(gpus_, [this](const auto& known) {
    return std::none_of(polled_.gpus.begin(), polled_.gpus.end(), [&](const GpuSample& sample) {
      return sample.address == known.first;
    });
  });
}

void HardwareSource::TakeProbes(uint64_t now_ns, const KernelReadings& kernel,
                                HardwareSample* out) {
  for (const auto* rows : {&std::as_const(polled_.probes), &kernel.probes}) {
    for (const ProbeSample& row : *rows) {
      if (probes_.size() >= kMaxRows && probes_.count(row.name) == 0) continue;
      const auto [known, added] = probes_.try_emplace(row.name, row, now_ns);
      ProbeSample& last = known->second.first;
      const bool status = last.armed != row.armed || last.attached != row.attached ||
                          last.problem != row.problem || last.lost != row.lost ||
                          last.level != row.level || last.question != row.question ||
                          last.dropped != row.dropped;
      const bool repeat = last != row && now_ns >= known->second.second + kProbeRepeatNs;
      if (!added && !status && !repeat) continue;
      known->second = {row, now_ns};
      out->probes.push_back(row);
    }
  }
}

void HardwareSource::TakeEvents(uint64_t now_ns, KernelReadings& kernel, HardwareSample* out) {
  std::erase_if(kernel_events_,
                [&](const auto& known) { return known.second + kSameEventNs < now_ns; });
  for (const HardwareEvent& event : kernel.events) {
    if (kernel_events_.size() < kMaxRows) {
      kernel_events_[{event.kind, event.device}] = now_ns;
    }
  }
  out->events = std::move(kernel.events);
  for (HardwareEvent& event : polled_events_) {
    if (kernel_events_.count({event.kind, event.device}) == 0) {
      out->events.push_back(std::move(event));
    }
  }
  polled_events_.clear();
  if (out->events.size() > kMaxEvents) {
    dropped_events_ += out->events.size() - kMaxEvents;
    out->events.resize(kMaxEvents);
  }
  std::stable_sort(
      out->events.begin(), out->events.end(),
      [](const HardwareEvent& a, const HardwareEvent& b) { return a.t_ns < b.t_ns; });
}

void HardwareSource::TakeQps(uint64_t now_ns, Process& process, std::vector<QpSample>& rows,
                             std::vector<QpSample>* out) {
  for (auto& [key, qp] : process.qps) qp.moved = false;
  for (QpSample& row : rows) {
    const QpKey key{{row.device, row.number}, row.created_ns};
    if (process.qps.size() >= kMaxQps && process.qps.count(key) == 0) continue;
    Process::Qp& qp = process.qps[key];
    qp.moved = qp.latest != row;
    qp.latest = std::move(row);
  }
  for (auto it = process.qps.begin(); it != process.qps.end();) {
    Process::Qp& qp = it->second;
    if (qp.emitted_ns != 0 && qp.latest == qp.emitted) {
      ++it;
      continue;
    }
    // As with flows of the board: what moves is told now and then, what stands still
    // and what is not a counter at once. Deep mode: all.
    QpSample rest = qp.latest;
    rest.posts = qp.emitted.posts;
    rest.bytes = qp.emitted.bytes;
    rest.receives = qp.emitted.receives;
    rest.last_post_ns = qp.emitted.last_post_ns;
    rest.last_receive_ns = qp.emitted.last_receive_ns;
    rest.post_tid = qp.emitted.post_tid;
    const bool now = qp.emitted_ns == 0 || rest != qp.emitted || qp.latest.completions_seen ||
                     !qp.moved || now_ns >= qp.emitted_ns + kMovingQpNs;
    if (now) {
      qp.emitted = qp.latest;
      qp.emitted_ns = now_ns;
      out->push_back(qp.latest);
    }
    it = qp.latest.destroyed ? process.qps.erase(it) : std::next(it);
  }
}

void HardwareSource::TakeProcesses(uint64_t now_ns, const std::vector<WatchedProcess>& watched,
                                   KernelReadings& kernel, HardwareReading* out) {
  std::set<ProcessKey> there;
  for (const WatchedProcess& of : watched) {
    there.insert(of.key);
    Process& process = processes_[of.key];
    ProcessHardware now;
    if (const auto polled = polled_.processes.find(of.key); polled != polled_.processes.end()) {
      now = polled->second;
    } else if (process.last) {
      now = *process.last;
    } else if (kernel.processes.count(of.key) == 0) {
      continue;  // new: the next poll has it
    }
    KernelProcessRows rows;
    if (const auto it = kernel.processes.find(of.key); it != kernel.processes.end()) {
      rows = std::move(it->second);
    }
    const auto keep = [](std::optional<uint64_t>& value, const std::optional<uint64_t>& read) {
      if (read) value = read;
    };
    keep(process.direct_reclaim_ns, rows.direct_reclaim_ns);
    keep(process.direct_reclaims, rows.direct_reclaims);
    keep(process.tcp_retransmits, rows.tcp_retransmits);
    if (process.direct_reclaim_ns) now.direct_reclaim_ns = *process.direct_reclaim_ns;
    if (process.direct_reclaims) now.direct_reclaims = *process.direct_reclaims;
    if (process.tcp_retransmits) now.tcp_retransmits = *process.tcp_retransmits;
    const bool changed = !process.last || *process.last != now;
    process.last = now;

    TakeQps(now_ns, process, rows.qps, &now.qps);
    for (MrSample& mr : rows.mrs) {
      if (process.mrs.size() >= kMaxRows && process.mrs.count(mr.device) == 0) continue;
      const auto [known, added] = process.mrs.try_emplace(mr.device, mr);
      if (!added && known->second == mr) continue;
      known->second = mr;
      now.mrs.push_back(std::move(mr));
    }
    for (ThreadDelaySample& delay : rows.delays) {
      if (process.delays.size() >= kMaxRows && process.delays.count(delay.tid) == 0) continue;
      const auto [known, added] = process.delays.try_emplace(delay.tid, delay);
      if (!added && known->second == delay) continue;
      known->second = delay;
      now.delays.push_back(std::move(delay));
    }
    if (changed || !now.qps.empty() || !now.mrs.empty() || !now.delays.empty()) {
      out->processes.emplace(of.key, std::move(now));
    }
  }
  std::erase_if(processes_, [&](const auto& known) { return there.count(known.first) == 0; });
}

}  // namespace mycroft
