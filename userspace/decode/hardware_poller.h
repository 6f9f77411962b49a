// SPDX-License-Identifier: Apache-2.0
//
// One look at the hardware that the watched processes use, from sysfs and /proc: the
// PCI functions with the bridges above, RDMA ports, limits; and, where it is asked to,
// what the driver says of the GPUs (gpu_health.h). Nothing else on the host is touched:
// a NIC that no process has open does not count.
//
// Remembers what it needs to tell a failed read from an absence and a reset from a
// decrease: a device that a process has open and that is gone stays in the result with
// present = false (a port: state "ABSENT"); counters go on from what was known.
//
// Not thread-safe. Poll may block as long as a device's firmware does not answer.
// Memory is bounded by the number of devices (256 functions, 64 ports).
#ifndef MYCROFT_USERSPACE_DECODE_HARDWARE_POLLER_H_
#define MYCROFT_USERSPACE_DECODE_HARDWARE_POLLER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "userspace/decode/gpu_health.h"
#include "userspace/decode/hardware.h"
#include "userspace/decode/kernel_probes.h"
#include "userspace/source/pci.h"
#include "userspace/source/process_devices.h"
#include "userspace/source/sysfs.h"

namespace mycroft {

struct PolledHardware {
  std::vector<PciSample> pci;                       // all in use, by address
  std::vector<NicPortSample> nics;                  // all in use, with their whole GID table
  std::map<ProcessKey, ProcessHardware> processes;  // without rows of kernel probes
  std::vector<HardwareEvent> events;                // changes since the last poll
  std::vector<ProbeSample> probes;                  // one per thing that is polled
  std::optional<std::string> iommu;
  std::optional<bool> peer_memory_module;
  std::vector<GpuSample> gpus;         // all in use, by address
  std::vector<BlindSpot> blind_spots;  // in force
  uint64_t lost_events = 0;            // cumulative
};

class HardwarePoller {
 public:
  HardwarePoller(const std::string& proc_root, const std::string& sys_root,
                 const GpuHealthOptions& gpu_health = {})
      : proc_(proc_root), sys_(sys_root), gpu_health_(gpu_health, proc_root) {}

  PolledHardware Poll(uint64_t now_ns, const std::vector<ProcessKey>& processes);
  // Reads the configuration space of every GPU, NIC and bridge of the host: beyond 64 bytes
  // that takes CAP_SYS_ADMIN; opens the kernel log, which takes CAP_SYSLOG. Both may be given
  // up afterwards. Before the first Poll.
  void ReadAhead();

 private:
  struct Process {
    std::set<uint32_t> gpu_minors;
    std::set<std::string> computing;  // addresses of GPUs, by NVML, when it last said
    std::set<std::string> uverbs;
    bool readable = true;  // its descriptors
    uint64_t first_seen_ns = 0, next_scan_ns = 0, next_shm_ns = 0, next_limits_ns = 0;
    std::optional<uint64_t> memlock_limit;
    std::optional<uint64_t> shm_bytes, shm_free_bytes;
    CounterTracker limit_hits, stall_ns, oom_kills;
    std::optional<uint64_t> seen_oom_kills;
  };
  struct Function {
    std::vector<std::string> path;  // to the root
    std::optional<PciSample> last;
    std::optional<PciFunction> read;  // as it was read last; empty: read all of it
    uint64_t next_full_ns = 0;
    CounterTracker aer[3];
    std::optional<uint64_t> seen_aer[3];
  };
  struct Port {
    std::string seen_state;  // last one that could be read
    std::map<std::string, CounterTracker> counters;
    std::vector<GidEntry> gids;
    uint64_t next_gids_ns = 0;
    std::string pci, netdev;
  };
  class Row;

  void PollProcess(uint64_t now_ns, const ProcessKey& key, Process& process, PolledHardware& out);
  std::vector<std::string> PollDevices(uint64_t now_ns, const std::set<std::string>& gpus,
                                       const std::set<std::string>& nics, PolledHardware& out);
  void PollPorts(uint64_t now_ns, const std::set<std::string>& devices, PolledHardware& out);

  // Of one function; with what ReadAhead saw where its configuration cannot be read now.
  std::optional<PciFunction> ReadFunction(const std::string& address) const;

  const std::string proc_, sys_;
  std::map<std::string, PciFunction> read_ahead_;  // by address
  GpuHealth gpu_health_;
  std::map<std::string, GpuLinkSample> gpu_links_;  // of this poll
  std::map<ProcessKey, Process> processes_;
  std::map<std::string, MemoryPressure> memory_;  // by text of the cgroup file; of this poll
  std::map<uint32_t, std::string> minors_;        // of GPUs; kept when a device is gone
  std::map<std::string, std::string> verbs_;      // uverbs to RDMA device; kept, too
  std::map<std::string, std::string> rdma_pci_;   // RDMA device to PCI function; kept, too
  std::map<std::string, Function> functions_;
  std::map<std::pair<std::string, uint32_t>, Port> ports_;
  // Of this poll: what each row of `probes` says.
  struct Status {
    uint64_t polls = 0, ns = 0;
    std::string problem, lost;
  };
  enum Kind { kDevices, kLinks, kConfig, kAer, kPorts, kLimits, kShm, kMemory, kKinds };
  Status status_[kKinds];
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_DECODE_HARDWARE_POLLER_H_
