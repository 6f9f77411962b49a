// SPDX-License-Identifier: Apache-2.0
//
// What the kernel probes (eBPF) tell the live source: the seam between them. A live
// source works without; then the fields that only probes can fill stay empty.
#ifndef MYCROFT_USERSPACE_DECODE_KERNEL_PROBES_H_
#define MYCROFT_USERSPACE_DECODE_KERNEL_PROBES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "userspace/decode/hardware.h"
#include "userspace/decode/snapshot.h"

namespace mycroft {

// A process of a job, as far as it is known to the live source.
struct WatchedProcess {
  ProcessKey key;
  // Threads with a role on its board, in the agent's namespace; none until they have been
  // seen in /proc. The main thread (tid = pid) may be missing: watch it, too.
  std::vector<uint32_t> tids;
  std::vector<std::string> gpus;          // PCI addresses
  std::vector<std::string> rdma_devices;  // "mlx5_0"
};

struct KernelProcessRows {
  // All, or only those that have changed since the last Collect; counters cumulative.
  std::vector<QpSample> qps;
  std::vector<MrSample> mrs;
  std::vector<ThreadDelaySample> delays;
  // Empty: not attached.
  std::optional<uint64_t> direct_reclaim_ns, direct_reclaims, tcp_retransmits;
};

// Cumulative; empty: not attached, or the device does not count it.
struct KernelDeviceRows {
  std::optional<uint64_t> dma_maps, dma_bytes, dma_ns, dma_failures;
  std::optional<uint64_t> interrupts, interrupt_ns;
  std::optional<uint64_t> rx_bytes, tx_bytes;
};

struct KernelReadings {
  std::map<ProcessKey, KernelProcessRows> processes;
  std::map<std::string, KernelDeviceRows> devices;  // by PCI address
  std::vector<HardwareEvent> events;                // since the last Collect, by time
  std::vector<ProbeSample> probes;                  // all of them
  uint64_t lost_events = 0;                         // cumulative
};

// Implemented by the probes and by tests. Called by the thread that reads the live
// source, never from two threads at once. Must not block: map reads only.
class KernelProbes {
 public:
  virtual ~KernelProbes() = default;
  // About once a second, before Collect: all processes to watch, and the PCI functions
  // that they use with the bridges above. Those no longer named are forgotten.
  virtual void Watch(const std::vector<WatchedProcess>& processes,
                     const std::vector<std::string>& pci_addresses) = 0;
  virtual KernelReadings Collect(uint64_t now_ns) = 0;
  // Arms the deep probes for these processes until then (CLOCK_MONOTONIC), in place of
  // what was asked before; none: disarms.
  virtual void ArmDeep(const std::vector<ProcessKey>& processes, uint64_t until_ns) = 0;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_DECODE_KERNEL_PROBES_H_
