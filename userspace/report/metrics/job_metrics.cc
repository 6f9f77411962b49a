// SPDX-License-Identifier: Apache-2.0
#include "userspace/report/metrics/job_metrics.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "userspace/base/loss.h"
#include "userspace/report/text.h"

namespace mycroft {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr size_t kMaxPending = 16384;

const std::vector<double>& DurationBounds() {
  static const std::vector<double> bounds = {1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2,
                                             3e-2, 0.1,  0.3,  1,    3,    10,   60};
  return bounds;
}

const std::vector<double>& DetectBounds() {
  static const std::vector<double> bounds = {0.1, 0.25, 0.5, 1, 1.5, 2, 3, 5, 10, 30, 60};
  return bounds;
}

const char* AlgoName(mc_algo algo) {
  switch (algo) {
    case MC_ALGO_UNKNOWN:
      return "unknown";
    case MC_ALGO_RING:
      return "ring";
    case MC_ALGO_TREE:
      return "tree";
    case MC_ALGO_COLLNET_DIRECT:
      return "collnet_direct";
    case MC_ALGO_COLLNET_CHAIN:
      return "collnet_chain";
    case MC_ALGO_NVLS:
      return "nvls";
    case MC_ALGO_NVLS_TREE:
      return "nvls_tree";
    case MC_ALGO_PAT:
      return "pat";
  }
  return "unknown";
}

const char* ProtoName(mc_proto proto) {
  switch (proto) {
    case MC_PROTO_UNKNOWN:
      return "unknown";
    case MC_PROTO_LL:
      return "ll";
    case MC_PROTO_LL128:
      return "ll128";
    case MC_PROTO_SIMPLE:
      return "simple";
  }
  return "unknown";
}

std::string SizeBucket(uint64_t bytes) {
  if (bytes <= 64ull << 10) return "64KiB";
  if (bytes <= 1ull << 20) return "1MiB";
  if (bytes <= 16ull << 20) return "16MiB";
  if (bytes <= 256ull << 20) return "256MiB";
  return "larger";
}

// Complete as far as this sample knows: all proxy operations, or all kernels.
bool Done(const OpSample& op) {
  if (op.proxy_started > 0) {
    return op.proxy_done >= op.proxy_started && op.steps_done >= op.steps_total;
  }
  return op.kernel_started > 0 && op.kernel_stopped >= op.kernel_started;
}

double Seconds(uint64_t ns) { return static_cast<double>(ns) / 1e9; }

ClientMetric Metric(const std::vector<std::pair<std::string, std::string>>& labels) {
  ClientMetric metric;
  for (const auto& [name, value] : labels) {
    metric.label.push_back({name, PrintableText(value)});
  }
  return metric;
}

MetricFamily Family(const char* name, const char* help, MetricType type) {
  MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = type;
  return family;
}

MetricFamily Gauge(const char* name, const char* help, double value) {
  MetricFamily family = Family(name, help, MetricType::Gauge);
  family.metric.emplace_back();
  family.metric.back().gauge.value = value;
  return family;
}

MetricFamily Counter(const char* name, const char* help, double value) {
  MetricFamily family = Family(name, help, MetricType::Counter);
  family.metric.emplace_back();
  family.metric.back().counter.value = value;
  return family;
}

std::string Verdict(const Incident& incident) {
  return incident.culprits.empty() ? "unknown" : ToString(incident.culprits[0].component);
}

}  // namespace

void JobMetrics::Histogram::Add(double value, const std::vector<double>& bounds) {
  counts.resize(bounds.size() + 1);
  ++counts[static_cast<size_t>(std::lower_bound(bounds.begin(), bounds.end(), value) -
                               bounds.begin())];
  sum += value;
}

JobMetrics::JobMetrics(const MetricsOptions& options) : options_(options) {}

void JobMetrics::AddDuration(const PendingOp& op) {
  auto it = durations_.find(op.labels);
  if (it == durations_.end()) {
    if (durations_.size() >= options_.max_series) {
      ++series_dropped_;
      return;
    }
    it = durations_.emplace(op.labels, Histogram()).first;
  }
  it->second.Add(op.seconds, DurationBounds());
}

void JobMetrics::Observe(const Snapshot& snapshot) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++samples_;
  last_wall_ns_ = snapshot.wall_ns;
  for (const ProcessSample& process : snapshot.processes) {
    for (const OpSample& op : process.ops) {
      const OpKey key{process.key, op.id};
      if (!Done(op)) {
        pending_.erase(key);  // another channel came after all
        continue;
      }
      const auto counted = counted_id_.find(process.key);
      // Operations finish nearly in order; what comes this late was counted.
      if (counted != counted_id_.end() && op.id + 4096 < counted->second) continue;
      const uint64_t end = std::max(op.proxy_last_ns, op.kernel_stop_seen_ns);
      if (end <= op.start_ns || op.start_ns == 0) continue;
      if (pending_.size() >= kMaxPending && pending_.count(key) == 0) continue;
      PendingOp& pending = pending_[key];
      if (pending.seen_ns == UINT64_MAX) continue;  // counted already
      pending.seconds = Seconds(end - op.start_ns);
      pending.seen_ns = snapshot.t_ns;
      pending.labels = {ToString(op.func), AlgoName(op.algo), ProtoName(op.proto),
                        SizeBucket(op.count * DatatypeBytes(op.datatype))};
    }
    if (process.status == ProcessStatus::kExited) counted_id_.erase(process.key);
  }
  // A tick later nothing has been added: it is really over. A tombstone stays, so
  // that a late change of the same operation does not count twice.
  for (auto it = pending_.begin(); it != pending_.end();) {
    const ProcessKey& process = it->first.first;
    if (it->second.seen_ns != UINT64_MAX && it->second.seen_ns < snapshot.t_ns) {
      AddDuration(it->second);
      it->second.seen_ns = UINT64_MAX;
      it->second.labels.clear();
      uint64_t& highest = counted_id_[process];
      highest = std::max(highest, it->first.second);
    }
    const bool old =
        it->second.seen_ns == UINT64_MAX &&
        (counted_id_.count(process) == 0 || it->first.second + 4096 < counted_id_[process]);
    it = old ? pending_.erase(it) : std::next(it);
  }
}

void JobMetrics::Update(const JobView& job, const std::vector<Incident>& incidents,
                        size_t blind_spots) {
  const std::lock_guard<std::mutex> lock(mutex_);
  job_ = job;
  for (CommView& comm : job_.comms) {
    for (RankView& rank : comm.ranks) rank.flows.clear();
  }
  incidents_ = incidents;
  blind_spots_ = blind_spots;
  // A process that is gone takes its losses out of the sum; a counter must not fall.
  for (size_t i = 0; i < lost_.size(); ++i) {
    if (job.lost[i] > last_lost_[i]) lost_[i] += job.lost[i] - last_lost_[i];
    last_lost_[i] = job.lost[i];
  }
  if (job.torn_reads > last_torn_) torn_ += job.torn_reads - last_torn_;
  last_torn_ = job.torn_reads;
  for (const Incident& incident : incidents) {
    const auto [it, fresh] = counted_.try_emplace(incident.id, false);
    if (fresh && incident.detected_ns >= incident.onset_ns) {
      detect_.Add(Seconds(incident.detected_ns - incident.onset_ns), DetectBounds());
    }
    // Counted under its verdict, which may need a moment.
    if (!it->second && (!incident.culprits.empty() || incident.cleared_ns)) {
      it->second = true;
      ++stalls_[{Verdict(incident), ToString(incident.kind)}];
    }
  }
}

void JobMetrics::SetRecordingLost(uint64_t snapshots) {
  const std::lock_guard<std::mutex> lock(mutex_);
  recording_lost_ = std::max(recording_lost_, snapshots);
}

std::vector<MetricFamily> JobMetrics::Collect() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<MetricFamily> out;
  const auto full = [&](const MetricFamily& family) {
    if (family.metric.size() < options_.max_series) return false;
    ++series_dropped_;
    return true;
  };
  const auto histogram = [](ClientMetric& metric, const Histogram& values,
                            const std::vector<double>& bounds) {
    uint64_t cumulative = 0;
    for (size_t i = 0; i <= bounds.size(); ++i) {
      cumulative += i < values.counts.size() ? values.counts[i] : 0;
      metric.histogram.bucket.push_back(
          {cumulative, i < bounds.size() ? bounds[i] : std::numeric_limits<double>::infinity()});
    }
    metric.histogram.sample_count = cumulative;
    metric.histogram.sample_sum = values.sum;
  };

  MetricFamily build = Family("mycroft_build_info", "Version of the agent.", MetricType::Gauge);
  build.metric.push_back(Metric({{"version", options_.version}, {"revision", options_.revision}}));
  build.metric.back().gauge.value = 1;
  out.push_back(std::move(build));

  MetricFamily active = Family("mycroft_stall_active",
                               "1 while an incident is open, per culprit: component, kind, job "
                               "rank and host.",
                               MetricType::Gauge);
  for (const Incident& incident : incidents_) {
    if (incident.cleared_ns && *incident.cleared_ns <= job_.t_ns) continue;
    std::vector<Culprit> culprits = incident.culprits;
    if (culprits.empty()) culprits.emplace_back();  // open, culprit not known
    for (const Culprit& culprit : culprits) {
      ClientMetric metric = Metric({{"verdict", ToString(culprit.component)},
                                    {"kind", ToString(incident.kind)},
                                    {"rank", culprit.rank < 0 ? "" : std::to_string(culprit.rank)},
                                    {"host", culprit.host}});
      metric.gauge.value = 1;
      // Two incidents may blame the same rank; a series must not come twice.
      const bool twice =
          std::any_of(active.metric.begin(), active.metric.end(),
                      [&](const ClientMetric& m) { return m.label == metric.label; });
      if (!twice && !full(active)) active.metric.push_back(std::move(metric));
    }
  }
  out.push_back(std::move(active));

  MetricFamily total = Family("mycroft_stall_total", "Incidents by verdict.", MetricType::Counter);
  for (const auto& [key, count] : stalls_) {
    total.metric.push_back(Metric({{"verdict", key.first}, {"kind", key.second}}));
    total.metric.back().counter.value = static_cast<double>(count);
  }
  out.push_back(std::move(total));

  MetricFamily detect =
      Family("mycroft_stall_detect_seconds", "Time from the onset of an incident to its detection.",
             MetricType::Histogram);
  detect.metric.emplace_back();
  histogram(detect.metric.back(), detect_, DetectBounds());
  out.push_back(std::move(detect));

  MetricFamily durations = Family("mycroft_nccl_collective_duration_seconds",
                                  "Operations, from enqueue to the end of their last channel, as "
                                  "seen on this host.",
                                  MetricType::Histogram);
  for (const auto& [labels, values] : durations_) {
    durations.metric.push_back(Metric({{"op", labels[0]},
                                       {"algo", labels[1]},
                                       {"proto", labels[2]},
                                       {"size_bucket", labels[3]}}));
    histogram(durations.metric.back(), values, DurationBounds());
  }
  out.push_back(std::move(durations));

  MetricFamily age = Family("mycroft_nccl_inflight_age_seconds",
                            "Age of the oldest operation in flight, per rank and communicator.",
                            MetricType::Gauge);
  size_t comms = 0;
  for (const CommView& comm : job_.comms) {
    if (comm.finalized) continue;
    ++comms;
    for (const RankView& rank : comm.ranks) {
      if (!rank.in_flight || full(age)) continue;
      age.metric.push_back(Metric({{"op", ToString(rank.func)},
                                   {"comm", HexText(comm.comm_id)},
                                   {"rank", std::to_string(rank.job_rank)},
                                   {"host", rank.host}}));
      age.metric.back().gauge.value = Seconds(rank.age_ns);
    }
  }
  out.push_back(std::move(age));

  MetricFamily dropped = Family("mycroft_events_dropped_total",
                                "What was lost on the way, by cause.", MetricType::Counter);
  const auto drop = [&](const char* source, uint64_t value) {
    dropped.metric.push_back(Metric({{"source", source}}));
    dropped.metric.back().counter.value = static_cast<double>(value);
  };
  for (size_t i = 0; i < lost_.size(); ++i) {
    const mc_loss cause = static_cast<mc_loss>(i);
    if (IsLoss(cause)) drop(LossName(cause), lost_[i]);
  }
  drop("torn_read", torn_);
  drop("recording", recording_lost_);
  out.push_back(std::move(dropped));

  MetricFamily width = Family("mycroft_pcie_link_width",
                              "Lanes in use, per hop between a device of the job and the root.",
                              MetricType::Gauge);
  MetricFamily speed = Family("mycroft_pcie_link_speed_gts", "Speed of the link in GT/s, per hop.",
                              MetricType::Gauge);
  MetricFamily degraded = Family("mycroft_pcie_link_degraded",
                                 "1 while a link is slower or narrower than both ends could do "
                                 "(an idle link may save power).",
                                 MetricType::Gauge);
  MetricFamily present = Family("mycroft_pcie_device_present",
                                "0 when a device of the job is gone or does not answer.",
                                MetricType::Gauge);
  MetricFamily aer = Family("mycroft_pcie_aer_errors_total",
                            "PCIe errors that the devices of the job have counted.",
                            MetricType::Counter);
  MetricFamily port_active = Family("mycroft_rdma_port_active",
                               "1 while a port of an RDMA device of the job is ACTIVE.",
                               MetricType::Gauge);
  MetricFamily gpu_clock = Family("mycroft_gpu_clock_mhz", "Clocks of the GPUs of the job.",
                                  MetricType::Gauge);
  MetricFamily gpu_power = Family("mycroft_gpu_power_watts", "What the GPUs of the job draw.",
                                  MetricType::Gauge);
  MetricFamily gpu_heat = Family("mycroft_gpu_temperature_celsius",
                                 "Temperatures of the GPUs of the job.", MetricType::Gauge);
  MetricFamily gpu_slow = Family("mycroft_gpu_throttled",
                                 "1 while the clocks of a GPU are down for that reason.",
                                 MetricType::Gauge);
  MetricFamily gpu_ecc = Family("mycroft_gpu_ecc_errors_total",
                                "Errors of the GPUs' memory that their driver has counted.",
                                MetricType::Counter);
  MetricFamily gpu_lost = Family("mycroft_gpu_lost",
                                 "1 while the driver has given a GPU up, or does not come back "
                                 "from a question about it.",
                                 MetricType::Gauge);
  MetricFamily gpu_nvlinks = Family("mycroft_gpu_nvlinks_active", "NVLinks that are up.",
                                    MetricType::Gauge);
  const auto add_gpu = [&](const DeviceView& device) {
    const GpuSample& gpu = *device.gpu;
    const auto labels = [&device](const char* key, const char* value) {
      std::vector<std::pair<std::string, std::string>> all = {{"host", device.host},
                                                              {"pci_bus_id", device.address}};
      if (key != nullptr) all.emplace_back(key, value);
      return all;
    };
    const auto add = [&](MetricFamily& family, const char* key, const char* value, double number) {
      family.metric.push_back(Metric(labels(key, value)));
      family.metric.back().gauge.value = number;
    };
    add(gpu_lost, nullptr, nullptr, gpu.lost || gpu.hangs ? 1 : 0);
    if (gpu.lost || gpu.silent_since_ns != 0) return;  // the rest is old
    if (gpu.sm_mhz) add(gpu_clock, "clock", "sm", *gpu.sm_mhz);
    if (gpu.memory_mhz) add(gpu_clock, "clock", "memory", *gpu.memory_mhz);
    if (gpu.power_w) add(gpu_power, nullptr, nullptr, *gpu.power_w);
    if (gpu.temperature_c) add(gpu_heat, "sensor", "gpu", *gpu.temperature_c);
    if (gpu.memory_temperature_c) add(gpu_heat, "sensor", "memory", *gpu.memory_temperature_c);
    if (gpu.clock_reasons) {
      const auto reason = [&](const char* name, uint64_t bits) {
        add(gpu_slow, "reason", name, (*gpu.clock_reasons & bits) != 0 ? 1 : 0);
      };
      reason("thermal", clock_reason::kSoftwareThermal | clock_reason::kHardwareThermal);
      reason("power_cap", clock_reason::kPowerCap);
      reason("power_brake", clock_reason::kPowerBrake);
    }
    const std::pair<const char*, std::optional<uint64_t>> errors[] = {
        {"corrected", gpu.ecc_corrected}, {"uncorrected", gpu.ecc_uncorrected}};
    for (const auto& [kind, count] : errors) {
      if (!count) continue;
      gpu_ecc.metric.push_back(Metric(labels("kind", kind)));
      gpu_ecc.metric.back().counter.value = static_cast<double>(*count);
    }
    if (gpu.nvlinks.empty()) return;
    size_t up = 0;
    for (const NvlinkSample& link : gpu.nvlinks) up += link.active ? 1 : 0;
    add(gpu_nvlinks, nullptr, nullptr, static_cast<double>(up));
  };
  std::set<std::pair<std::string, std::string>> hops;
  for (const DeviceView& device : job_.devices) {
    for (const HopView& hop : device.path) {
      // Hops near the root are shared.
      if (!hops.insert({device.host, hop.address}).second || full(width)) continue;
      const auto add = [&](MetricFamily& family, double value) {
        family.metric.push_back(Metric({{"host", device.host},
                                        {"pci_bus_id", hop.address},
                                        {"kind", ToString(hop.kind)}}));
        family.metric.back().gauge.value = value;
      };
      if (hop.width > 0) add(width, hop.width);
      if (hop.speed_gts > 0) add(speed, hop.speed_gts);
      if (!hop.best.empty()) add(degraded, hop.degraded ? 1 : 0);
    }
    if (!device.address.empty() && !full(present)) {
      present.metric.push_back(Metric({{"host", device.host},
                                       {"pci_bus_id", device.address},
                                       {"kind", ToString(device.kind)}}));
      present.metric.back().gauge.value = device.present && !device.unreachable ? 1 : 0;
      const std::pair<const char*, uint64_t> counts[] = {{"correctable", device.aer_correctable},
                                                         {"nonfatal", device.aer_nonfatal},
                                                         {"fatal", device.aer_fatal}};
      for (const auto& [severity, count] : counts) {
        if (full(aer)) break;
        aer.metric.push_back(Metric({{"host", device.host},
                                     {"pci_bus_id", device.address},
                                     {"severity", severity}}));
        aer.metric.back().counter.value = static_cast<double>(count);
      }
    }
    if (device.gpu && !full(gpu_clock) && !full(gpu_slow)) add_gpu(device);
    for (const PortView& port : device.ports) {
      if (port.state.empty() || full(port_active)) continue;  // a failed read is no state
      port_active.metric.push_back(Metric({{"host", device.host},
                                           {"device", port.device},
                                           {"port", std::to_string(port.port)}}));
      port_active.metric.back().gauge.value = port.active ? 1 : 0;
    }
  }
  MetricFamily attached = Family("mycroft_probe_attached",
                                 "1 when a probe answers its question in full; see mycroft doctor.",
                                 MetricType::Gauge);
  for (const ProbeSample& probe : job_.probes) {
    if (full(attached)) break;
    attached.metric.push_back(
        Metric({{"probe", probe.name},
                {"level", probe.level == ProbeLevel::kDeep ? "deep" : "always"}}));
    attached.metric.back().gauge.value = Degraded(probe) ? 0 : 1;
  }
  for (MetricFamily* family : {&width, &speed, &degraded, &present, &aer, &port_active, &attached}) {
    out.push_back(std::move(*family));
  }
  for (MetricFamily* family :
       {&gpu_clock, &gpu_power, &gpu_heat, &gpu_slow, &gpu_ecc, &gpu_lost, &gpu_nvlinks}) {
    if (!family->metric.empty()) out.push_back(std::move(*family));
  }

  out.push_back(Gauge("mycroft_processes", "Processes with a board.", job_.processes));
  out.push_back(
      Gauge("mycroft_communicators", "Communicators in use.", static_cast<double>(comms)));
  out.push_back(Gauge("mycroft_blind_spots", "Gaps in what is seen; see mycroft doctor.",
                      static_cast<double>(blind_spots_)));
  out.push_back(Counter("mycroft_samples_total", "Sampling ticks.", static_cast<double>(samples_)));
  out.push_back(Gauge("mycroft_last_sample_timestamp_seconds", "Wall clock of the last tick.",
                      Seconds(last_wall_ns_)));
  out.push_back(Counter("mycroft_metric_series_dropped_total",
                        "Time series left out because there are too many.",
                        static_cast<double>(series_dropped_)));
  return out;
}

}  // namespace mycroft
