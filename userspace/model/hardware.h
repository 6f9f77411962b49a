// SPDX-License-Identifier: Apache-2.0
//
// What the hosts of the job know of PCIe, RDMA and themselves: the last state of
// every device, port, queue pair and limit, and enough history to ask what changed
// between two times.
//
//   HostHardware  --has-->  PciDevice  --parent-->  bridge ... root port
//                 --has-->  Port  --pci-->  PciDevice
//                 --has-->  ProcessState  --has-->  Qp  --device, port-->  Port
//   Qp  --remote number and GID-->  Qp of another host
//
// Only Apply() writes. Not thread-safe. Values come from other processes and from
// sysfs: every table is capped (dropped() counts what did not fit), loops in the
// tree are cut, and counters that fall are resets, never negative deltas. What was
// not read stays unknown. Pointers stay valid until the next Apply(). Times are
// those of the snapshots; a polled value is as old as its poll.
#ifndef MYCROFT_USERSPACE_MODEL_HARDWARE_H_
#define MYCROFT_USERSPACE_MODEL_HARDWARE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "userspace/decode/snapshot.h"

namespace mycroft {

// A cumulative counter over time. Keeps the readings at which it had changed; when
// full, the older half is thinned out, so that old intervals get coarser.
class CounterHistory {
 public:
  explicit CounterHistory(size_t most_points = 64) : most_(most_points) {}
  void Add(uint64_t t_ns, uint64_t value);

  bool known() const { return !points_.empty(); }
  uint64_t last() const { return points_.empty() ? 0 : points_.back().value; }
  uint64_t resets() const { return resets_; }
  // Growth in (from, to]. Empty: it was not read before `to`. When it was first read
  // after `from`, growth since then: what came before is not known.
  std::optional<uint64_t> Increase(uint64_t from_ns, uint64_t to_ns) const;
  // The first reading in (from, to] that was higher than the one before; 0: none.
  uint64_t FirstRise(uint64_t from_ns, uint64_t to_ns) const;

  struct Point {
    uint64_t t_ns = 0;
    uint64_t value = 0;  // without resets: never falls
  };
  const std::vector<Point>& points() const { return points_; }
  const Point* At(uint64_t t_ns) const;  // the last one not after t; nullptr: none

 private:
  size_t most_;
  std::vector<Point> points_;
  uint64_t raw_ = 0, before_resets_ = 0, resets_ = 0;
};

// A state over time, by its changes. The oldest changes are forgotten.
template <typename T>
class StateHistory {
 public:
  void Add(uint64_t t_ns, const T& value) {
    if (!changes_.empty() && (changes_.back().second == value || t_ns < changes_.back().first)) {
      return;
    }
    changes_.emplace_back(t_ns, value);
    if (changes_.size() > 64) changes_.pop_front();
  }
  // The state in force at a time; nullptr: before the first reading.
  const T* At(uint64_t t_ns) const {
    const T* found = nullptr;
    for (const auto& [t, value] : changes_) {
      if (t > t_ns) break;
      found = &value;
    }
    return found;
  }
  const std::deque<std::pair<uint64_t, T>>& changes() const { return changes_; }

 private:
  std::deque<std::pair<uint64_t, T>> changes_;
};

// Speed and width of a PCIe link; empty: not a link, or unreadable.
struct Link {
  std::optional<double> speed_gts;
  std::optional<uint32_t> width;
  bool known() const { return speed_gts.has_value() && width.has_value(); }
  friend bool operator==(const Link&, const Link&) = default;
};
// Payload bytes per second in one direction, after line coding (8b/10b up to 5 GT/s,
// 128b/130b above); 0 when unknown. PCI Express Base Specification, chapter 4.
double LinkBytesPerSecond(const Link& link);
std::string ToString(const Link& link);  // "16 GT/s x8"

struct PciDevice {
  PciSample now;
  uint64_t seen_ns = 0;
  StateHistory<Link> link;
  Link best;                    // both ends allow it: its own maximum and the bridge's
  uint64_t unreachable_ns = 0;  // since when its configuration space reads all ones
  uint64_t gone_ns = 0;         // since when it is not there any more
  CounterHistory aer_correctable, aer_nonfatal, aer_fatal;
  CounterHistory rx_bytes, tx_bytes;  // where the device counts them
  StateHistory<bool> acs_redirect;
};

// What the driver says of a GPU.
struct GpuDevice {
  GpuSample now;
  uint64_t seen_ns = 0;
  uint64_t lost_ns = 0;  // since when the driver has given it up
  // Changes only: `reasons` with the bits that limit the clocks of a GPU at work.
  struct Clocks {
    uint32_t sm_mhz = 0;
    uint64_t reasons = 0;
    friend bool operator==(const Clocks&, const Clocks&) = default;
  };
  StateHistory<Clocks> clocks;
  StateHistory<bool> remap_pending, remap_failed;
  CounterHistory ecc_corrected{32}, ecc_uncorrected{32}, pcie_replays{32};
  struct Nvlink {
    StateHistory<bool> active;
    CounterHistory crc{32}, replays{32}, recoveries{32};
  };
  std::map<uint32_t, Nvlink> nvlinks;  // by link
};

// How fast a GPU was allowed to run while it worked, in (from, to]: readings that say
// "idle" do not count.
struct ClocksUnderLoad {
  uint64_t ns = 0;        // seen at work
  double sm_mhz = 0;      // mean over that time
  uint64_t reasons = 0;   // those in force for a fifth of it, or more
  uint64_t since_ns = 0;  // when the first of these began, at most `from`; 0: none
  double throttled = 0;   // share of it with any of the bits of `of_interest`
};
ClocksUnderLoad JudgeClocks(const GpuDevice& gpu, uint64_t of_interest, uint64_t from_ns,
                            uint64_t to_ns);

struct Port {
  NicPortSample now;  // gids: the last that were given
  uint64_t seen_ns = 0;
  StateHistory<std::string> state;
  std::map<std::string, CounterHistory> counters;
};

struct Qp {
  QpSample now;
  ProcessKey process;
  uint64_t first_seen_ns = 0;  // t_ns of the first sample
  uint64_t seen_ns = 0;
  uint64_t destroyed_ns = 0;  // 0: alive
  uint64_t error_ns = 0;      // in ERR or SQE since; 0: not
  CounterHistory posts{16}, completions{16};
  bool destroyed() const { return destroyed_ns != 0; }
  bool in_error() const { return error_ns != 0; }
  uint64_t total_posts() const;
};

struct ThreadDelay {
  ThreadDelaySample now;
  CounterHistory runq_ns{32}, runq_count{32}, off_cpu_ns{32}, blocked_ns{32};
};

// What activity records say of one GPU of a process.
struct GpuSums {
  std::string pci;  // empty: not known
  CounterHistory kernel_ns{64}, expected_ns{64}, kernels{64};
  CounterHistory nccl_kernels{64}, nccl_ns{64};
  std::array<CounterHistory, MC_GPU_COPY_COUNT> copies, copy_bytes, copy_ns;
};

struct ProcessState {
  ProcessHardware now;     // qps, mrs and delays are in the tables below
  uint64_t seen_ns = 0;    // of a hardware sample; 0: none
  uint64_t exited_ns = 0;  // 0: it runs
  std::map<std::pair<std::string, uint32_t>, Qp> qps;          // by device and number
  std::deque<std::pair<std::string, uint32_t>> destroyed_qps;  // oldest first, to make room
  std::map<std::string, MrSample> mrs;                         // by device
  std::map<uint32_t, ThreadDelay> delays;                      // by tid
  CounterHistory direct_reclaim_ns{32}, throttled_ns{32};
  // What its flows on the board have moved, and the last count of each line.
  CounterHistory sent_bytes{64}, received_bytes{64};
  std::map<uint32_t, uint64_t> flow_bytes;
  // Of its GPU board: as last sampled, which holds until it changes; empty: it has none.
  std::optional<GpuWorkSample> gpu_work;
  std::map<uint32_t, GpuSums> gpu_sums;  // by ordinal
};

struct HostHardware {
  std::string name;
  uint64_t first_ns = 0, last_ns = 0;                      // of hardware samples; 0: none
  std::map<std::string, PciDevice> pci;                    // by address
  std::map<std::string, GpuDevice> gpus;                   // by address
  std::map<std::pair<std::string, uint32_t>, Port> ports;  // by device and port
  std::map<ProcessKey, ProcessState> processes;
  std::map<std::string, ProbeSample> probes;
  std::deque<HardwareEvent> events;  // the last 1024
  std::string iommu;                 // empty: not known
  std::optional<bool> peer_memory_module;
  uint64_t lost_events = 0;
};

class HardwareModel {
 public:
  void Apply(const Snapshot& snapshot);

  // False: no snapshot ever had hardware samples; nothing here says anything.
  bool any() const { return any_; }
  uint64_t dropped() const { return dropped_; }
  const std::map<std::string, HostHardware>& hosts() const { return hosts_; }
  const HostHardware* FindHost(const std::string& host) const;
  const ProcessState* FindProcess(const std::string& host, const ProcessKey& key) const;
  const Port* FindPort(const std::string& host, const std::string& device, uint32_t port) const;

  // The device and the bridges above it up to the root; empty when it is not known.
  static std::vector<const PciDevice*> PathToRoot(const HostHardware& host,
                                                  const std::string& address);
  // The first bridge above both; nullptr: none known.
  static const PciDevice* CommonBridge(const HostHardware& host, const std::string& a,
                                       const std::string& b);

  struct QpEnd {
    const HostHardware* host = nullptr;
    const Qp* qp = nullptr;
  };
  // The other end of a connection: the queue pair with the remote number, on a port
  // that has the remote GID; both ends must agree where both are known. Empty: not
  // seen, or not unique.
  QpEnd Remote(const HostHardware& host, const Qp& qp) const;
  // The GID entry that a queue pair sends with; nullptr: not known.
  const GidEntry* GidOf(const HostHardware& host, const Qp& qp) const;

 private:
  void ApplyPci(HostHardware& host, uint64_t t_ns, const PciSample& sample);
  void ApplyGpu(HostHardware& host, uint64_t t_ns, const GpuSample& sample);
  void ApplyPort(HostHardware& host, uint64_t t_ns, const NicPortSample& sample);
  void ApplyProcess(HostHardware& host, uint64_t t_ns, const ProcessSample& sample);
  void ApplyGpuWork(ProcessState& process, uint64_t t_ns, const GpuWorkSample& sample);
  void ApplyQp(HostHardware& host, ProcessState& process, const ProcessKey& key, uint64_t t_ns,
               const QpSample& sample);
  void ForgetQp(const HostHardware& host, const ProcessKey& key, const Qp& qp);
  bool ForgetExited(HostHardware& host);  // the one that is gone for longest
  void FindBestLinks(HostHardware& host);

  std::map<std::string, HostHardware> hosts_;
  // Queue pairs by number, to find the other end: (host, process, device).
  std::multimap<uint32_t, std::tuple<std::string, ProcessKey, std::string>> by_number_;
  size_t series_ = 0;
  uint64_t dropped_ = 0;
  bool any_ = false;
};

// What a link did while data was moving over it. A link that is slow while nothing
// moves saves power; one that is fast at one instant may be flapping: only readings
// with traffic before and after count.
struct LinkUnderLoad {
  size_t readings = 0;     // under load
  size_t below = 0;        // of these, below `best`
  Link worst;              // the slowest of these
  double bytes_per_s = 0;  // the fastest interval
};
// `traffic`: bytes over that link in its busier direction. In (from, to].
LinkUnderLoad JudgeLink(const PciDevice& device, const CounterHistory& traffic, uint64_t from_ns,
                        uint64_t to_ns);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_MODEL_HARDWARE_H_
