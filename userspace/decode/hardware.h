// SPDX-License-Identifier: Apache-2.0
//
// What a host knows of the hardware and of itself beside the boards: PCI functions
// and the bridges above them, RDMA ports, queue pairs, limits, rare events, and
// what each probe could attach to, how the GPUs feel. Part of a Snapshot, at most once a second.
//
// Values only. Cumulative counters count from the start of the agent or of the
// kernel object, never backwards: a source that sees a reset adds the new value to
// what it had. A value that could not be read is empty, which is neither zero nor
// an absence. Times are CLOCK_MONOTONIC of the host, nanoseconds.
#ifndef MYCROFT_USERSPACE_DECODE_HARDWARE_H_
#define MYCROFT_USERSPACE_DECODE_HARDWARE_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace mycroft {

enum class PciKind : uint8_t { kOther = 0, kGpu = 1, kNic = 2, kBridge = 3, kRootPort = 4 };

// One PCI function: a GPU or NIC that the job uses, or a bridge between it and the
// root. Only devices on such paths are sampled.
struct PciSample {
  std::string address;  // "0000:3b:00.0"
  std::string parent;   // address of the bridge above; empty: below the host bridge
  PciKind kind = PciKind::kOther;
  std::string driver;   // "nvidia", "mlx5_core"; empty: none
  uint32_t vendor = 0, device = 0;
  int32_t numa_node = -1;
  bool present = true;  // false: it was there and is gone (last sample of it)
  // Its configuration space reads as all ones: it no longer answers.
  bool unreachable = false;
  // Its link registers, GT/s and lanes: of an endpoint or the upstream port of a switch
  // the link above it, of a root or downstream port the link below it (so each link is
  // seen from both ends). Empty: not a PCIe link, or unreadable.
  std::optional<double> speed_gts, max_speed_gts;
  std::optional<uint32_t> width, max_width;
  std::optional<uint32_t> max_read_request;  // bytes
  std::optional<bool> relaxed_ordering;
  // Bridges: peer-to-peer requests are sent up to the root (ACS redirect).
  std::optional<bool> acs_redirect;
  // Advanced Error Reporting, cumulative. Of a root port: what arrived from below, too.
  std::optional<uint64_t> aer_correctable, aer_nonfatal, aer_fatal;
  // Of the kernel probes, cumulative; empty: not attached.
  std::optional<uint64_t> dma_maps, dma_bytes, dma_ns, dma_failures;
  std::optional<uint64_t> interrupts, interrupt_ns;
  // Throughput as the device counts it, bytes, cumulative; empty: it does not.
  std::optional<uint64_t> rx_bytes, tx_bytes;
  friend bool operator==(const PciSample&, const PciSample&) = default;
};

struct GidEntry {
  uint32_t index = 0;
  std::string gid;   // "0000:0000:0000:0000:0000:ffff:0a09:0001"
  std::string type;  // "IB/RoCE v1" or "RoCE v2", as the kernel calls it
  friend bool operator==(const GidEntry&, const GidEntry&) = default;
};

// One port of an RDMA device that the job's processes have open.
struct NicPortSample {
  std::string device;  // "mlx5_0"
  uint32_t port = 1;
  std::string pci;     // address of its PCI function; empty: a software device
  std::string netdev;  // empty: InfiniBand
  std::string state;       // "ACTIVE", "DOWN", ...; empty: unreadable; "ABSENT": device gone
  std::string phys_state;  // "LinkUp", "Polling", ...
  std::optional<double> rate_gbps;
  std::optional<uint32_t> netdev_mtu;  // bytes
  std::vector<GidEntry> gids;          // used entries, at most 256; only when changed
  // hw_counters and counters by the kernel's names ("rnr_nak_retry_err",
  // "link_downed", "rx_prio3_pause"), cumulative, at most 256.
  std::map<std::string, uint64_t> counters;
  friend bool operator==(const NicPortSample&, const NicPortSample&) = default;
};

// Kinds of work requests, by enum ibv_wr_opcode.
enum QpOperation : uint8_t { kQpSend = 0, kQpWrite = 1, kQpRead = 2, kQpAtomic = 3, kQpOther = 4,
                             kQpOperationCount = 5 };

// State of a queue pair, numbers of enum ibv_qp_state.
enum class QpState : uint8_t { kReset = 0, kInit = 1, kReadyToReceive = 2, kReadyToSend = 3,
                               kSqDrained = 4, kSqError = 5, kError = 6, kUnknown = 7 };

// One queue pair of a process, as the verbs probes count it.
struct QpSample {
  std::string device;
  uint32_t port = 0;         // 0: not seen
  uint32_t number = 0;       // used again after it is destroyed: created_ns tells apart
  uint64_t created_ns = 0;   // first seen
  bool destroyed = false;    // last sample of it
  QpState state = QpState::kUnknown;
  uint64_t state_ns = 0;     // since when
  // The connection, as set by modify_qp; empty or 0: not seen.
  uint32_t remote_number = 0;
  std::string remote_gid;
  std::optional<uint32_t> gid_index;
  uint32_t path_mtu = 0;     // bytes
  std::optional<uint32_t> timeout, retry_count, rnr_retry, min_rnr_timer;  // as encoded in verbs
  // Posted work requests, cumulative.
  std::array<uint64_t, kQpOperationCount> posts{};
  uint64_t bytes = 0;        // of the send queue
  uint64_t receives = 0;     // posted receive requests
  uint64_t post_failures = 0;
  uint64_t last_post_ns = 0, last_receive_ns = 0;
  uint32_t post_tid = 0;     // thread of the last post, in the agent's pid namespace
  // Deep mode only; all zero without (see ProbeSample "completions").
  bool completions_seen = false;
  uint64_t completions = 0, failed_completions = 0;  // of the send queue
  // At least receives - this requests are in the receive queue: those that were in it
  // before deep mode are not known.
  uint64_t receive_completions = 0;
  uint64_t last_completion_ns = 0;   // of the send queue, failed ones included
  uint64_t latency_sum_ns = 0, latency_max_ns = 0;  // post to completion
  // First completion that is neither success nor flushed (5, 249), and when.
  uint32_t first_bad_status = 0;  // enum ibv_wc_status; 0: none
  uint32_t first_bad_vendor = 0;
  uint64_t first_bad_ns = 0;
  friend bool operator==(const QpSample&, const QpSample&) = default;
};

// Memory registrations of a process on one device.
struct MrSample {
  std::string device;
  uint64_t registrations = 0;
  uint64_t dmabuf = 0;             // of these, of device memory through dmabuf
  uint64_t relaxed_ordering = 0;   // of these, with relaxed ordering
  uint64_t bytes = 0;
  uint64_t ns = 0;                 // time taken, sum
  uint64_t failures = 0;
  int32_t last_errno = 0;          // of the last failure
  uint64_t last_failure_bytes = 0;
  uint64_t last_failure_ns = 0;
  friend bool operator==(const MrSample&, const MrSample&) = default;
};

// What a watched thread did when it did not run; counted in the kernel, cumulative.
struct ThreadDelaySample {
  uint32_t tid = 0;
  uint64_t runq_ns = 0, runq_max_ns = 0, runq_count = 0;
  uint64_t off_cpu_ns = 0;           // slept or blocked
  uint64_t blocked_ns = 0;           // of these, in uninterruptible sleep
  std::vector<std::string> stack;    // kernel stack of the longest sleep, innermost first
  friend bool operator==(const ThreadDelaySample&, const ThreadDelaySample&) = default;
};

// What the job's process has and may have. Part of ProcessSample.
struct ProcessHardware {
  std::vector<std::string> gpus;          // PCI addresses of the GPUs that it has open
  std::vector<std::string> rdma_devices;  // names of the RDMA devices that it has open
  std::optional<uint64_t> memlock_limit;  // bytes, soft; UINT64_MAX: unlimited
  std::optional<uint64_t> locked_bytes;   // VmLck + VmPin
  std::optional<uint64_t> shm_bytes, shm_free_bytes;  // /dev/shm as the process sees it
  // Cumulative. From the kernel probes: of its threads, in direct reclaim. Without them,
  // of its memory cgroup: time stalled for memory, allocations that met a limit.
  uint64_t direct_reclaim_ns = 0, direct_reclaims = 0;
  uint64_t tcp_retransmits = 0;                         // cumulative, of its connections
  // Only those that changed: while one moves every 3 s (deep mode: 1 s), and when it is
  // new, stands still, or anything but its counters of posts has changed.
  std::vector<QpSample> qps;
  std::vector<MrSample> mrs;
  std::vector<ThreadDelaySample> delays;
  friend bool operator==(const ProcessHardware&, const ProcessHardware&) = default;
};

// Why the clocks of a GPU are below their maximum: bits of GpuSample::clock_reasons, as
// NVML numbers them (nvmlClocksEventReason*).
namespace clock_reason {
inline constexpr uint64_t kIdle = 0x1, kApplicationClocks = 0x2, kPowerCap = 0x4,
                          kHardwareSlowdown = 0x8,  // heat or power: not told apart
                          kSyncBoost = 0x10, kSoftwareThermal = 0x20, kHardwareThermal = 0x40,
                          kPowerBrake = 0x80;
}  // namespace clock_reason

struct NvlinkSample {
  uint32_t link = 0;
  bool active = false;
  std::optional<uint64_t> crc, replays, recoveries;  // errors, cumulative
  friend bool operator==(const NvlinkSample&, const NvlinkSample&) = default;
};

// What the driver says of one GPU (NVML). What wavers is told when it has moved by more
// than a few percent.
struct GpuSample {
  std::string address;  // its PCI function
  std::string uuid, name;
  uint32_t index = 0;             // NVML's
  std::vector<std::string> mig;   // UUIDs of its MIG devices; empty: not divided
  bool lost = false;              // the driver has given it up
  // The driver has not come back since: the values are as old. 0: it does.
  uint64_t silent_since_ns = 0;
  bool hangs = false;  // silent, and it was this GPU that the driver was asked about
  std::optional<uint32_t> sm_mhz, sm_max_mhz, memory_mhz, memory_max_mhz;
  std::optional<uint32_t> power_w, power_limit_w;
  std::optional<uint64_t> clock_reasons;
  std::optional<uint32_t> temperature_c, memory_temperature_c;
  std::optional<uint32_t> slowdown_c;  // where the hardware slows down
  std::optional<uint32_t> utilization_percent;  // a spinning kernel counts, too
  std::optional<uint64_t> memory_used_bytes, memory_bytes;
  std::optional<uint64_t> ecc_corrected, ecc_uncorrected;  // cumulative
  std::optional<uint32_t> remapped_rows;
  std::optional<bool> remap_pending, remap_failed;
  std::optional<uint64_t> pcie_replays;  // cumulative
  std::vector<NvlinkSample> nvlinks;     // all that it has, at most 64
  friend bool operator==(const GpuSample&, const GpuSample&) = default;
};

enum class HardwareEventKind : uint8_t {
  kAer = 0,           // PCIe error report
  kPciRemoved = 1,    // device removed, or taken out by error recovery
  kIommuFault = 2,
  kDmaFailure = 3,
  kPortState = 4,     // RDMA port up or down
  kQpError = 5,       // queue pair went to ERR
  kAsyncEvent = 6,    // ibv_async_event
  kOomKill = 7,
  kProcessExit = 8,
  kTcpRetransmit = 9, // the first of a connection in a second
  kXid = 10,
  kSxid = 11,  // of an NVSwitch
  kCount = 12,
};

// Severity of kAer: as the kernel reports it.
enum class Severity : uint8_t { kInfo = 0, kCorrected = 1, kNonFatal = 2, kFatal = 3 };

struct HardwareEvent {
  uint64_t t_ns = 0;
  HardwareEventKind kind = HardwareEventKind::kAer;
  Severity severity = Severity::kInfo;
  std::string device;  // PCI address, RDMA device or network device; empty: none
  uint32_t pid = 0;    // 0: none
  uint32_t number = 0; // status bits of AER, queue pair, exit code, Xid, SXid: by kind
  std::string text;    // one line for people
  friend bool operator==(const HardwareEvent&, const HardwareEvent&) = default;
};

enum class ProbeLevel : uint8_t { kAlways = 0, kDeep = 1 };

// One row of `mycroft doctor`: a question to the kernel and how it is answered.
struct ProbeSample {
  std::string name;      // "verbs.post_send"
  std::string question;  // "what does each queue pair send?"
  ProbeLevel level = ProbeLevel::kAlways;
  bool armed = false;    // deep probes: now
  std::string attached;  // "uprobe libmlx5.so.1.24:0x552e0", "poll /sys/..."; empty: it is not
  std::string problem;   // why not, or why by a poorer alternative
  std::string lost;      // what is not seen by that
  std::optional<double> cost_ns;  // per hit, measured; empty: not measured
  uint64_t hits = 0;     // cumulative
  uint64_t dropped = 0;  // events lost in the ring buffer or for lack of map space
  friend bool operator==(const ProbeSample&, const ProbeSample&) = default;
};

// Part of Snapshot. Devices, ports and probes are given when they are new or have
// changed; the reader keeps the last of each.
struct HardwareSample {
  std::vector<PciSample> pci;
  std::vector<NicPortSample> nics;
  std::vector<HardwareEvent> events;  // since the last sample, in order of time
  std::vector<ProbeSample> probes;
  std::optional<std::string> iommu;        // "off", "passthrough", "translated"; only when changed
  std::optional<bool> peer_memory_module;  // nvidia_peermem or dmabuf; only when changed
  uint64_t lost_events = 0;                // cumulative
  std::vector<GpuSample> gpus;             // when new or changed
  friend bool operator==(const HardwareSample&, const HardwareSample&) = default;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_DECODE_HARDWARE_H_
