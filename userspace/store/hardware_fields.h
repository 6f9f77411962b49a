// SPDX-License-Identifier: Apache-2.0
//
// How the hardware part of a Snapshot is predicted, as snapshot_fields.h does for the
// rest, and by the same rules. Each field has one context, numbered in the order of the
// calls; a field is predicted from the last sample of the same device, port, queue pair
// or thread, and its name from the next one in order.
//
// Bounds, checked on both sides: names at most 64 bytes, texts at most 4 KiB, lists as
// below. What is kept for predictions is capped; a full map starts anew.
#ifndef MYCROFT_USERSPACE_STORE_HARDWARE_FIELDS_H_
#define MYCROFT_USERSPACE_STORE_HARDWARE_FIELDS_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "userspace/decode/gpu_work.h"
#include "userspace/decode/hardware.h"

namespace mycroft::store_internal {

static_assert(sizeof(PciSample) == 360 && sizeof(NicPortSample) == 264 &&
                  sizeof(GidEntry) == 72 && sizeof(QpSample) == 304 && sizeof(MrSample) == 104 &&
                  sizeof(ThreadDelaySample) == 72 && sizeof(ProcessHardware) == 208 &&
                  sizeof(HardwareEvent) == 88 && sizeof(ProbeSample) == 200 &&
                  sizeof(HardwareSample) == 176 && sizeof(GpuSample) == 368 &&
                  sizeof(NvlinkSample) == 56 && sizeof(GpuWorkSample) == 136 &&
                  sizeof(GpuStreamWork) == 200 && sizeof(GpuDeviceWork) == 216,
              "a field was added: code it below, then adjust the size");

inline constexpr size_t kMaxHardwareName = 64, kMaxHardwareText = 4096;
inline constexpr size_t kMaxPortCounters = 256, kMaxStack = 128, kMaxProcessDevices = 64,
                        kMaxMigDevices = 64, kMaxNvlinks = 64;

// Contexts of each kind of record, relative to kHardwareFirst of snapshot_fields.h.
enum HardwareContext : int {
  kHwSample = 0,
  kHwPci = 16,
  kHwNic = 64,
  kHwGid = 80,
  kHwProcess = 84,
  kHwQp = 104,
  kHwMr = 152,
  kHwDelay = 164,
  kHwEvent = 176,
  kHwProbe = 184,
  kHwGpu = 208,
  kHwNvlink = 272,
  kHwGpuWork = 288,
  kHwGpuStream = 304,
  kHwGpuSums = 328,
  kHardwareContexts = 360,
};

// What both sides remember since the keyframe. The first part of each key is the index
// of the host or of the process in the codec's state.
struct HardwareState {
  template <class... K>
  using Key = std::tuple<uint32_t, K...>;
  std::map<Key<std::string>, PciSample> pci;               // address
  std::map<Key<std::string, uint32_t>, NicPortSample> nics;  // device, port; without GIDs
  std::map<Key<std::string>, ProbeSample> probes;          // name
  std::map<Key<>, ProcessHardware> processes;              // without rows
  std::map<Key<std::string, uint32_t>, QpSample> qps;      // device, number
  std::map<Key<std::string>, MrSample> mrs;                // device
  std::map<Key<uint32_t>, ThreadDelaySample> delays;       // thread; without stack
  std::map<Key<>, uint64_t> lost_events;
  std::map<Key<std::string>, GpuSample> gpus;              // address
  std::map<Key<>, GpuWorkSample> gpu_work;
};
inline constexpr size_t kMaxKnownDevices = 4096, kMaxKnownPorts = 512, kMaxKnownProbes = 1024,
                        kMaxKnownQps = 65536;

// The key that follows `after` in the map and has the same first part; else `after`.
template <class Map>
typename Map::key_type NextKey(const Map& map, const typename Map::key_type& after) {
  const auto it = map.upper_bound(after);
  return it != map.end() && std::get<0>(it->first) == std::get<0>(after) ? it->first : after;
}

// The last sample under a key, made when there is none.
template <class C, class Map>
typename Map::mapped_type& Known(C& c, Map& map, const typename Map::key_type& key, size_t most) {
  if (map.size() >= most && map.count(key) == 0) map.clear();
  const auto [it, added] = map.try_emplace(key);
  if (added) c.Charge(sizeof(typename Map::mapped_type) + 512);
  return it->second;
}

// The fields of one record, one after the other.
template <class C>
class FieldRow {
 public:
  FieldRow(C& c, int context) : c_(c), context_(context) {}

  template <class T, class P>
  void Number(T& value, P predicted) {
    c_.Number(context_++, value, predicted);
  }
  template <class T, class P>
  void NumberOrZero(T& value, P predicted) {
    c_.NumberOrZero(context_++, value, predicted);
  }
  template <class E, class P>
  void Enum(E& value, P predicted, P last) {
    c_.Enum(context_++, value, predicted, last);
  }
  void Flag(const bool& value, bool before) { FlagIn(context_++, value, before); }
  void Flag(bool& value, bool before) { FlagIn(context_++, value, before); }
  template <class S>
  void Name(S& text, const std::string& before) {
    c_.String(context_++, text, before);
    c_.Require(text.size() <= kMaxHardwareName);
  }
  template <class S>
  void Text(S& text, const std::string& before) {
    c_.String(context_++, text, before);
    c_.Require(text.size() <= kMaxHardwareText);
  }
  template <class O, class T>
  void Optional(O& value, const std::optional<T>& before) {
    const int context = context_;
    context_ += 2;
    bool has = value.has_value();
    FlagIn(context, has, before.has_value());
    if constexpr (C::kDecodes) has ? static_cast<void>(value.emplace()) : value.reset();
    if (!has) return;
    if constexpr (std::is_same_v<T, bool>) {
      FlagIn(context + 1, *value, before.value_or(false));
    } else if constexpr (std::is_same_v<T, double>) {
      uint64_t bits = std::bit_cast<uint64_t>(*value);
      c_.Number(context + 1, bits, std::bit_cast<uint64_t>(before.value_or(0)));
      if constexpr (C::kDecodes) *value = std::bit_cast<double>(bits);
      c_.Require(!std::isnan(*value));  // would not be equal to itself
    } else if constexpr (std::is_same_v<T, std::string>) {
      c_.String(context + 1, *value, before.value_or(""));
      c_.Require(value->size() <= kMaxHardwareName);
    } else {
      c_.Number(context + 1, *value, before.value_or(0));
    }
  }
  // A list of texts, each predicted from the one at its place.
  template <class L>
  void List(L& list, const std::vector<std::string>& before, size_t most, size_t longest) {
    const int context = context_;
    context_ += 2;
    static const std::string kNone;
    c_.Resize(context, list, before.size());
    c_.Require(list.size() <= most);
    for (size_t i = 0; i < list.size() && c_.ok(); ++i) {
      c_.String(context + 1, list[i], i < before.size() ? before[i] : kNone);
      c_.Require(list[i].size() <= longest);
    }
  }

 private:
  void FlagIn(int context, const bool& value, bool before) { c_.Flag(context, value, before); }
  void FlagIn(int context, bool& value, bool before) { c_.Flag(context, value, before); }

  C& c_;
  int context_;
};

template <class C, class M>
void CodeCounters(C& c, int context, M& counters, const std::map<std::string, uint64_t>& before) {
  bool same = counters.size() == before.size();
  if constexpr (!C::kDecodes) {
    for (auto a = counters.begin(), b = before.begin(); same && a != counters.end(); ++a, ++b) {
      same = a->first == b->first;
    }
  }
  c.Flag(context, same);
  if (same) {
    if constexpr (C::kDecodes) {
      c.Charge(before.size() * 128);
      if (c.ok()) counters = before;
    }
    for (auto& [name, value] : counters) c.Number(context + 1, value, before.at(name));
    return;
  }
  uint64_t count = counters.size();
  c.Number(context + 2, count, before.size());
  c.Require(count <= kMaxPortCounters);
  c.Charge(count * 128);
  auto next = counters.begin();
  auto predicted = before.begin();
  static const std::string kNone;
  for (uint64_t i = 0; i < count && c.ok(); ++i) {
    std::string name;
    uint64_t value = 0;
    if constexpr (!C::kDecodes) name = next->first, value = next->second;
    c.String(context + 3, name, predicted != before.end() ? predicted->first : kNone);
    c.Require(name.size() <= kMaxHardwareName);
    const auto known = before.find(name);
    c.Number(context + 1, value, known != before.end() ? known->second : 0);
    predicted = before.upper_bound(name);
    if constexpr (C::kDecodes) {
      if (c.ok()) counters[name] = value;
    } else {
      ++next;
    }
  }
}

template <class C, class P>
void CodePci(C& c, HardwareState& state, uint32_t host, std::string& at, P& pci) {
  FieldRow<C> f(c, C::kHardwareContext + kHwPci);
  f.Name(pci.address, std::get<1>(NextKey(state.pci, {host, at})));
  at = pci.address;
  if (!c.ok()) return;
  PciSample& b = Known(c, state.pci, {host, pci.address}, kMaxKnownDevices);
  f.Name(pci.parent, b.parent);
  f.Enum(pci.kind, b.kind, PciKind::kRootPort);
  f.Name(pci.driver, b.driver);
  f.Number(pci.vendor, b.vendor);
  f.Number(pci.device, b.device);
  f.Number(pci.numa_node, b.numa_node);
  f.Flag(pci.present, b.present);
  f.Flag(pci.unreachable, b.unreachable);
  f.Optional(pci.speed_gts, b.speed_gts);
  f.Optional(pci.max_speed_gts, b.max_speed_gts);
  f.Optional(pci.width, b.width);
  f.Optional(pci.max_width, b.max_width);
  f.Optional(pci.max_read_request, b.max_read_request);
  f.Optional(pci.relaxed_ordering, b.relaxed_ordering);
  f.Optional(pci.acs_redirect, b.acs_redirect);
  f.Optional(pci.aer_correctable, b.aer_correctable);
  f.Optional(pci.aer_nonfatal, b.aer_nonfatal);
  f.Optional(pci.aer_fatal, b.aer_fatal);
  f.Optional(pci.dma_maps, b.dma_maps);
  f.Optional(pci.dma_bytes, b.dma_bytes);
  f.Optional(pci.dma_ns, b.dma_ns);
  f.Optional(pci.dma_failures, b.dma_failures);
  f.Optional(pci.interrupts, b.interrupts);
  f.Optional(pci.interrupt_ns, b.interrupt_ns);
  f.Optional(pci.rx_bytes, b.rx_bytes);
  f.Optional(pci.tx_bytes, b.tx_bytes);
  if (c.ok()) b = pci;
}

template <class C, class N>
void CodeNic(C& c, HardwareState& state, uint32_t host, std::pair<std::string, uint32_t>& at,
             N& nic) {
  FieldRow<C> f(c, C::kHardwareContext + kHwNic);
  const auto predicted = NextKey(state.nics, {host, at.first, at.second});
  f.Name(nic.device, std::get<1>(predicted));
  f.Number(nic.port, std::get<2>(predicted));
  at = {nic.device, nic.port};
  if (!c.ok()) return;
  NicPortSample& b = Known(c, state.nics, {host, nic.device, nic.port}, kMaxKnownPorts);
  f.Name(nic.pci, b.pci);
  f.Name(nic.netdev, b.netdev);
  f.Name(nic.state, b.state);
  f.Name(nic.phys_state, b.phys_state);
  f.Optional(nic.rate_gbps, b.rate_gbps);
  f.Optional(nic.netdev_mtu, b.netdev_mtu);
  c.Resize(C::kHardwareContext + kHwNic + 15, nic.gids, 0);
  static const GidEntry kNone;
  for (size_t i = 0; i < nic.gids.size() && c.ok(); ++i) {
    FieldRow<C> g(c, C::kHardwareContext + kHwGid);
    const GidEntry& last = i > 0 ? nic.gids[i - 1] : kNone;
    g.Number(nic.gids[i].index, i > 0 ? last.index + 1 : 0);
    g.Name(nic.gids[i].gid, last.gid);
    g.Name(nic.gids[i].type, last.type);
  }
  CodeCounters(c, C::kHardwareContext + kHwNic + 11, nic.counters, b.counters);
  if (!c.ok()) return;
  b = nic;
  b.gids.clear();
}

template <class C, class Q>
void CodeQp(C& c, HardwareState& state, uint32_t process, uint64_t t_ns,
            std::pair<std::string, uint32_t>& at, Q& qp) {
  FieldRow<C> f(c, C::kHardwareContext + kHwQp);
  const auto predicted = NextKey(state.qps, {process, at.first, at.second});
  f.Name(qp.device, std::get<1>(predicted));
  f.Number(qp.number, std::get<2>(predicted));
  at = {qp.device, qp.number};
  if (!c.ok()) return;
  QpSample& b = Known(c, state.qps, {process, qp.device, qp.number}, kMaxKnownQps);
  // value that grows with a count: by as much for each as so far.
  const auto scaled = [](uint64_t value, uint64_t count, uint64_t now) {
    return value + Scale(value, now - count, count);
  };
  f.NumberOrZero(qp.created_ns, b.created_ns != 0 ? b.created_ns : t_ns);
  f.Number(qp.port, b.port);
  f.Flag(qp.destroyed, b.destroyed);
  f.Enum(qp.state, b.state, QpState::kUnknown);
  f.NumberOrZero(qp.state_ns, b.state_ns != 0 ? b.state_ns : t_ns);
  f.Number(qp.remote_number, b.remote_number);
  f.Name(qp.remote_gid, b.remote_gid);
  f.Optional(qp.gid_index, b.gid_index);
  f.Number(qp.path_mtu, b.path_mtu);
  f.Optional(qp.timeout, b.timeout);
  f.Optional(qp.retry_count, b.retry_count);
  f.Optional(qp.rnr_retry, b.rnr_retry);
  f.Optional(qp.min_rnr_timer, b.min_rnr_timer);
  uint64_t posts = 0, posts_before = 0;
  for (size_t i = 0; i < qp.posts.size(); ++i) {
    f.Number(qp.posts[i], b.posts[i]);
    posts += qp.posts[i];
    posts_before += b.posts[i];
  }
  f.Number(qp.bytes, scaled(b.bytes, posts_before, posts));
  f.Number(qp.receives, b.receives + (posts - posts_before));
  f.Number(qp.post_failures, b.post_failures);
  f.NumberOrZero(qp.last_post_ns, posts == posts_before ? b.last_post_ns : t_ns);
  f.NumberOrZero(qp.last_receive_ns, qp.receives == b.receives ? b.last_receive_ns
                                     : qp.last_post_ns != 0    ? qp.last_post_ns
                                                               : t_ns);
  f.Number(qp.post_tid, b.post_tid);
  f.Flag(qp.completions_seen, b.completions_seen);
  f.Number(qp.completions, b.completions);
  f.Number(qp.failed_completions, b.failed_completions);
  f.Number(qp.receive_completions, b.receive_completions + (qp.receives - b.receives));
  f.NumberOrZero(qp.last_completion_ns,
                 qp.completions == b.completions ? b.last_completion_ns : t_ns);
  f.Number(qp.latency_sum_ns, scaled(b.latency_sum_ns, b.completions, qp.completions));
  f.Number(qp.latency_max_ns, b.latency_max_ns);
  f.Number(qp.first_bad_status, b.first_bad_status);
  f.Number(qp.first_bad_vendor, b.first_bad_vendor);
  f.NumberOrZero(qp.first_bad_ns, b.first_bad_ns != 0 ? b.first_bad_ns : t_ns);
  if (c.ok()) b = qp;
}

template <class C, class M>
void CodeMr(C& c, HardwareState& state, uint32_t process, uint64_t t_ns, std::string& at, M& mr) {
  FieldRow<C> f(c, C::kHardwareContext + kHwMr);
  f.Name(mr.device, std::get<1>(NextKey(state.mrs, {process, at})));
  at = mr.device;
  if (!c.ok()) return;
  MrSample& b = Known(c, state.mrs, {process, mr.device}, kMaxKnownDevices);
  f.Number(mr.registrations, b.registrations);
  f.Number(mr.dmabuf, b.dmabuf);
  f.Number(mr.relaxed_ordering, b.relaxed_ordering);
  f.Number(mr.bytes, b.bytes);
  f.Number(mr.ns, b.ns);
  f.Number(mr.failures, b.failures);
  f.Number(mr.last_errno, b.last_errno);
  f.Number(mr.last_failure_bytes, b.last_failure_bytes);
  f.NumberOrZero(mr.last_failure_ns, b.last_failure_ns != 0 ? b.last_failure_ns : t_ns);
  if (c.ok()) b = mr;
}

template <class C, class D>
void CodeDelay(C& c, HardwareState& state, uint32_t process, uint32_t& at, D& delay) {
  FieldRow<C> f(c, C::kHardwareContext + kHwDelay);
  f.Number(delay.tid, std::get<1>(NextKey(state.delays, {process, at})));
  at = delay.tid;
  if (!c.ok()) return;
  ThreadDelaySample& b = Known(c, state.delays, {process, delay.tid}, kMaxKnownDevices);
  f.Number(delay.runq_ns, b.runq_ns);
  f.Number(delay.runq_max_ns, b.runq_max_ns);
  f.Number(delay.runq_count, b.runq_count);
  f.Number(delay.off_cpu_ns, b.off_cpu_ns);
  f.Number(delay.blocked_ns, b.blocked_ns);
  f.List(delay.stack, {}, kMaxStack, kMaxHardwareName * 4);
  if (!c.ok()) return;
  b = delay;
  b.stack.clear();
}

template <class C, class P>
void CodeProcessHardware(C& c, HardwareState& state, uint32_t process, uint64_t t_ns, P& hw) {
  FieldRow<C> f(c, C::kHardwareContext + kHwProcess);
  ProcessHardware& b = Known(c, state.processes, {process}, kMaxKnownDevices);
  f.List(hw.gpus, b.gpus, kMaxProcessDevices, kMaxHardwareName);
  f.List(hw.rdma_devices, b.rdma_devices, kMaxProcessDevices, kMaxHardwareName);
  f.Optional(hw.memlock_limit, b.memlock_limit);
  f.Optional(hw.locked_bytes, b.locked_bytes);
  f.Optional(hw.shm_bytes, b.shm_bytes);
  f.Optional(hw.shm_free_bytes, b.shm_free_bytes);
  f.Number(hw.direct_reclaim_ns, b.direct_reclaim_ns);
  f.Number(hw.direct_reclaims, b.direct_reclaims);
  f.Number(hw.tcp_retransmits, b.tcp_retransmits);
  constexpr int kRows = C::kHardwareContext + kHwProcess + 17;
  c.Resize(kRows, hw.qps, 0);
  std::pair<std::string, uint32_t> qp_at;
  for (size_t i = 0; i < hw.qps.size() && c.ok(); ++i) {
    CodeQp(c, state, process, t_ns, qp_at, hw.qps[i]);
  }
  c.Resize(kRows + 1, hw.mrs, 0);
  std::string mr_at;
  for (size_t i = 0; i < hw.mrs.size() && c.ok(); ++i) {
    CodeMr(c, state, process, t_ns, mr_at, hw.mrs[i]);
  }
  c.Resize(kRows + 2, hw.delays, 0);
  uint32_t tid_at = 0;
  for (size_t i = 0; i < hw.delays.size() && c.ok(); ++i) {
    CodeDelay(c, state, process, tid_at, hw.delays[i]);
  }
  if (!c.ok()) return;
  b = hw;
  b.qps.clear(), b.mrs.clear(), b.delays.clear();
}

template <class C, class E>
void CodeEvent(C& c, uint64_t t_ns, E& event) {
  FieldRow<C> f(c, C::kHardwareContext + kHwEvent);
  static const std::string kNone;
  f.NumberOrZero(event.t_ns, t_ns);
  f.Enum(event.kind, HardwareEventKind::kAer, HardwareEventKind::kCount);
  f.Enum(event.severity, Severity::kInfo, Severity::kFatal);
  f.Name(event.device, kNone);
  f.Number(event.pid, 0);
  f.Number(event.number, 0);
  f.Text(event.text, kNone);
}

template <class C, class P>
void CodeProbe(C& c, HardwareState& state, uint32_t host, std::string& at, P& probe) {
  FieldRow<C> f(c, C::kHardwareContext + kHwProbe);
  f.Name(probe.name, std::get<1>(NextKey(state.probes, {host, at})));
  at = probe.name;
  if (!c.ok()) return;
  ProbeSample& b = Known(c, state.probes, {host, probe.name}, kMaxKnownProbes);
  f.Text(probe.question, b.question);
  f.Enum(probe.level, b.level, ProbeLevel::kDeep);
  f.Flag(probe.armed, b.armed);
  f.Text(probe.attached, b.attached);
  f.Text(probe.problem, b.problem);
  f.Text(probe.lost, b.lost);
  f.Optional(probe.cost_ns, b.cost_ns);
  f.Number(probe.hits, b.hits);
  f.Number(probe.dropped, b.dropped);
  if (c.ok()) b = probe;
}

template <class C, class G>
void CodeGpu(C& c, HardwareState& state, uint32_t host, std::string& at, G& gpu) {
  FieldRow<C> f(c, C::kHardwareContext + kHwGpu);
  f.Name(gpu.address, std::get<1>(NextKey(state.gpus, {host, at})));
  at = gpu.address;
  if (!c.ok()) return;
  GpuSample& b = Known(c, state.gpus, {host, gpu.address}, kMaxKnownDevices);
  f.Name(gpu.uuid, b.uuid);
  f.Name(gpu.name, b.name);
  f.Number(gpu.index, b.index);
  f.List(gpu.mig, b.mig, kMaxMigDevices, kMaxHardwareName);
  f.Flag(gpu.lost, b.lost);
  f.NumberOrZero(gpu.silent_since_ns, b.silent_since_ns);
  f.Flag(gpu.hangs, b.hangs);
  f.Optional(gpu.sm_mhz, b.sm_mhz);
  f.Optional(gpu.sm_max_mhz, b.sm_max_mhz);
  f.Optional(gpu.memory_mhz, b.memory_mhz);
  f.Optional(gpu.memory_max_mhz, b.memory_max_mhz);
  f.Optional(gpu.power_w, b.power_w);
  f.Optional(gpu.power_limit_w, b.power_limit_w);
  f.Optional(gpu.clock_reasons, b.clock_reasons);
  f.Optional(gpu.temperature_c, b.temperature_c);
  f.Optional(gpu.memory_temperature_c, b.memory_temperature_c);
  f.Optional(gpu.slowdown_c, b.slowdown_c);
  f.Optional(gpu.utilization_percent, b.utilization_percent);
  f.Optional(gpu.memory_used_bytes, b.memory_used_bytes);
  f.Optional(gpu.memory_bytes, b.memory_bytes);
  f.Optional(gpu.ecc_corrected, b.ecc_corrected);
  f.Optional(gpu.ecc_uncorrected, b.ecc_uncorrected);
  f.Optional(gpu.remapped_rows, b.remapped_rows);
  f.Optional(gpu.remap_pending, b.remap_pending);
  f.Optional(gpu.remap_failed, b.remap_failed);
  f.Optional(gpu.pcie_replays, b.pcie_replays);
  c.Resize(C::kHardwareContext + kHwGpu + 60, gpu.nvlinks, b.nvlinks.size());
  c.Require(gpu.nvlinks.size() <= kMaxNvlinks);
  static const NvlinkSample kNone;
  for (size_t i = 0; i < gpu.nvlinks.size() && c.ok(); ++i) {
    FieldRow<C> n(c, C::kHardwareContext + kHwNvlink);
    const NvlinkSample& last = i < b.nvlinks.size() ? b.nvlinks[i] : kNone;
    n.Number(gpu.nvlinks[i].link, i < b.nvlinks.size() ? last.link : static_cast<uint32_t>(i));
    n.Flag(gpu.nvlinks[i].active, last.active);
    n.Optional(gpu.nvlinks[i].crc, last.crc);
    n.Optional(gpu.nvlinks[i].replays, last.replays);
    n.Optional(gpu.nvlinks[i].recoveries, last.recoveries);
  }
  if (c.ok()) b = gpu;
}

// Streams are predicted from the one at the same place, GPUs likewise.
template <class C, class W>
void CodeGpuWork(C& c, HardwareState& state, uint32_t process, uint64_t t_ns, W& work) {
  GpuWorkSample& b = Known(c, state.gpu_work, {process}, kMaxKnownDevices);
  FieldRow<C> f(c, C::kHardwareContext + kHwGpuWork);
  f.Enum(work.state, b.state, MC_GPU_FATAL);
  f.Enum(work.level, b.level, MC_GPU_LEVEL_ACTIVITY);
  f.Text(work.problem, b.problem);
  f.NumberOrZero(work.armed_until_ns, b.armed_until_ns != 0 ? b.armed_until_ns : t_ns);
  f.Number(work.launches, b.launches);
  f.Number(work.nccl_launches, b.nccl_launches);
  f.NumberOrZero(work.last_launch_ns, t_ns);
  f.NumberOrZero(work.finished_ns, t_ns);
  f.Number(work.streams_left_out, b.streams_left_out);
  constexpr int kRows = C::kHardwareContext + kHwGpuWork + 12;
  c.Resize(kRows, work.streams, b.streams.size());
  c.Require(work.streams.size() <= kMaxGpuWorkStreams);
  static const GpuStreamWork kNoStream;
  for (size_t i = 0; i < work.streams.size() && c.ok(); ++i) {
    FieldRow<C> s(c, C::kHardwareContext + kHwGpuStream);
    auto& now = work.streams[i];
    const GpuStreamWork& last = i < b.streams.size() ? b.streams[i] : kNoStream;
    s.Number(now.stream, last.stream);
    s.Optional(now.stream_id, last.stream_id);
    s.Optional(now.context, last.context);
    s.Optional(now.device, last.device);
    s.Number(now.launched, last.launched);
    s.Number(now.finished, last.finished + (now.launched - last.launched));
    s.Enum(now.pending, last.pending, GpuPending::kUnfinished);
    s.NumberOrZero(now.waited_since_ns, last.waited_since_ns != 0 ? last.waited_since_ns : t_ns);
    s.Enum(now.oldest_work, last.oldest_work, MC_GPU_WORK_VOID);
    s.Text(now.oldest, last.oldest);
    s.NumberOrZero(now.oldest_ns, now.finished == last.finished ? last.oldest_ns : t_ns);
    s.Flag(now.oldest_proved, last.oldest_proved);
    s.Flag(now.no_nccl, last.no_nccl);
    s.Enum(now.front_work, last.front_work, MC_GPU_WORK_VOID);
    s.Text(now.front, last.front);
    s.Text(now.nccl, last.nccl);
    s.NumberOrZero(now.nccl_ns, now.finished == last.finished ? last.nccl_ns : now.oldest_ns);
    s.Optional(now.nccl_waits_for, last.nccl_waits_for);
  }
  c.Resize(kRows + 1, work.devices, b.devices.size());
  c.Require(work.devices.size() <= kMaxGpuWorkDevices);
  static const GpuDeviceWork kNoDevice;
  for (size_t i = 0; i < work.devices.size() && c.ok(); ++i) {
    FieldRow<C> d(c, C::kHardwareContext + kHwGpuSums);
    auto& now = work.devices[i];
    const GpuDeviceWork& last = i < b.devices.size() ? b.devices[i] : kNoDevice;
    d.Number(now.device, i < b.devices.size() ? last.device : static_cast<uint32_t>(i));
    d.Name(now.pci, last.pci);
    d.Number(now.kernels, last.kernels);
    d.Number(now.expected_ns, last.expected_ns);
    d.Number(now.kernel_ns, last.kernel_ns + (now.expected_ns - last.expected_ns));
    d.Number(now.nccl_kernels, last.nccl_kernels);
    d.Number(now.nccl_ns, last.nccl_ns);
    d.Number(now.delays, last.delays);
    d.Number(now.delay_ns, last.delay_ns);
    for (size_t k = 0; k < MC_GPU_COPY_COUNT; ++k) {
      d.Number(now.copies[k], last.copies[k]);
      d.Number(now.copy_bytes[k], last.copy_bytes[k]);
      d.Number(now.copy_ns[k], last.copy_ns[k]);
    }
  }
  if (c.ok()) b = work;
}

template <class C, class H>
void CodeHardware(C& c, HardwareState& state, uint32_t host, uint64_t t_ns, H& hardware) {
  constexpr int kBase = C::kHardwareContext + kHwSample;
  c.Resize(kBase, hardware.pci, 0);
  std::string pci_at;
  for (size_t i = 0; i < hardware.pci.size() && c.ok(); ++i) {
    CodePci(c, state, host, pci_at, hardware.pci[i]);
  }
  c.Resize(kBase + 1, hardware.nics, 0);
  std::pair<std::string, uint32_t> nic_at;
  for (size_t i = 0; i < hardware.nics.size() && c.ok(); ++i) {
    CodeNic(c, state, host, nic_at, hardware.nics[i]);
  }
  c.Resize(kBase + 2, hardware.events, 0);
  for (size_t i = 0; i < hardware.events.size() && c.ok(); ++i) {
    CodeEvent(c, t_ns, hardware.events[i]);
  }
  c.Resize(kBase + 3, hardware.probes, 0);
  std::string probe_at;
  for (size_t i = 0; i < hardware.probes.size() && c.ok(); ++i) {
    CodeProbe(c, state, host, probe_at, hardware.probes[i]);
  }
  FieldRow<C> f(c, kBase + 4);
  f.Optional(hardware.iommu, std::optional<std::string>());
  f.Optional(hardware.peer_memory_module, std::optional<bool>());
  uint64_t& lost = Known(c, state.lost_events, {host}, kMaxKnownDevices);
  f.Number(hardware.lost_events, lost);
  if (c.ok()) lost = hardware.lost_events;
  if (!c.coding4()) return;
  c.Resize(kBase + 10, hardware.gpus, 0);
  std::string gpu_at;
  for (size_t i = 0; i < hardware.gpus.size() && c.ok(); ++i) {
    CodeGpu(c, state, host, gpu_at, hardware.gpus[i]);
  }
}

}  // namespace mycroft::store_internal

#endif  // MYCROFT_USERSPACE_STORE_HARDWARE_FIELDS_H_
