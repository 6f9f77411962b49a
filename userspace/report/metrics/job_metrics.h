// SPDX-License-Identifier: Apache-2.0
//
// The job as Prometheus metrics. Fed by the agent at every tick, collected by the
// endpoint's threads: all methods are thread-safe.
//
// Names are mycroft_<subsystem>_<thing>_<unit>[_total], in base units. Labels are
// bounded: rank, communicator id, host, operation, algorithm, protocol, size
// bucket; never a process id, a queue pair or a sequence number. More than
// `max_series` time series of one metric are not made; those left out are counted.
//
//   mycroft_build_info{version,revision}
//   mycroft_stall_active{verdict,kind,rank,host}   1 while an incident is open
//   mycroft_stall_total{verdict,kind}
//   mycroft_stall_detect_seconds                   from onset to detection, histogram
//   mycroft_nccl_collective_duration_seconds{op,algo,proto,size_bucket}   histogram
//   mycroft_nccl_inflight_age_seconds{op,comm,rank,host}
//   mycroft_events_dropped_total{source}           losses by cause, torn_read, recording
//   mycroft_pcie_link_width{host,pci_bus_id,kind}   lanes, of each hop of a path in use
//   mycroft_pcie_link_speed_gts{host,pci_bus_id,kind}
//   mycroft_pcie_link_degraded{host,pci_bus_id,kind}   1: less than both ends could do
//   mycroft_pcie_device_present{host,pci_bus_id,kind}   0: gone, or it does not answer
//   mycroft_pcie_aer_errors_total{host,pci_bus_id,severity}
//   mycroft_rdma_port_active{host,device,port}      0: any state but ACTIVE
//   mycroft_probe_attached{probe,level}             0: see mycroft doctor
//   mycroft_processes  mycroft_communicators  mycroft_blind_spots
//   mycroft_samples_total  mycroft_last_sample_timestamp_seconds
//   mycroft_metric_series_dropped_total
#ifndef MYCROFT_USERSPACE_REPORT_METRICS_JOB_METRICS_H_
#define MYCROFT_USERSPACE_REPORT_METRICS_JOB_METRICS_H_

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "userspace/attribute/incident.h"
#include "userspace/decode/snapshot.h"
#include "userspace/model/view.h"

namespace mycroft {

struct MetricsOptions {
  std::string version;
  std::string revision;
  size_t max_series = 512;
};

class JobMetrics : public prometheus::Collectable {
 public:
  explicit JobMetrics(const MetricsOptions& options);

  // Every snapshot, in order: durations of finished operations come from here.
  void Observe(const Snapshot& snapshot);
  // As often as wanted, for instance once a second.
  void Update(const JobView& job, const std::vector<Incident>& incidents, size_t blind_spots);
  // Snapshots that could not be stored, cumulative.
  void SetRecordingLost(uint64_t snapshots);

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  struct Histogram {
    std::vector<uint64_t> counts;  // per bucket, the last one is +Inf
    double sum = 0;
    void Add(double value, const std::vector<double>& bounds);
  };
  struct PendingOp {  // done, but more channels may still be appended
    std::vector<std::string> labels;
    double seconds = 0;
    uint64_t seen_ns = 0;
  };
  using OpKey = std::pair<ProcessKey, uint64_t>;

  void AddDuration(const PendingOp& op);

  const MetricsOptions options_;
  mutable std::mutex mutex_;
  JobView job_;  // without flows
  std::vector<Incident> incidents_;
  size_t blind_spots_ = 0;
  uint64_t samples_ = 0;
  uint64_t last_wall_ns_ = 0;
  std::array<uint64_t, MC_LOSS_COUNT> last_lost_{}, lost_{};
  uint64_t last_torn_ = 0, torn_ = 0, recording_lost_ = 0;
  std::map<OpKey, PendingOp> pending_;
  std::map<ProcessKey, uint64_t> counted_id_;  // highest operation id counted
  std::map<std::vector<std::string>, Histogram> durations_;
  Histogram detect_;
  std::map<uint64_t, bool> counted_;  // incident id -> counted in stall_total
  std::map<std::pair<std::string, std::string>, uint64_t> stalls_;
  mutable uint64_t series_dropped_ = 0;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_REPORT_METRICS_JOB_METRICS_H_
