// SPDX-License-Identifier: Apache-2.0
//
// What the PCI Express and RDMA core probes (bpf/probes/pcie.bpf.c, rdma.bpf.c) know of
// devices: DMA mappings, interrupts, error reports, removal, IOMMU faults, port and queue
// pair events.
//
// Not thread-safe: the thread that uses the ProbeSet, which must outlive this. Rows are
// copies, counters are cumulative and never go back, times are CLOCK_MONOTONIC, ns.
// Devices are named by PCI address as in /sys/bus/pci/devices ("0000:3b:00.0"), RDMA
// devices by name. Without the probes all of it is there and empty.
#ifndef MYCROFT_USERSPACE_SOURCE_PROBES_PCIE_H_
#define MYCROFT_USERSPACE_SOURCE_PROBES_PCIE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bpf/abi/pcie.h"
#include "userspace/source/probes/probe_set.h"

namespace mycroft {

struct PcieDeviceRow {
  std::string address;
  // Empty: not attached, or by a way that does not know it.
  std::optional<uint64_t> dma_maps, dma_bytes, dma_ns, dma_failures;
  std::optional<uint64_t> interrupts, interrupt_ns;
};

enum class PcieEventKind : uint8_t {
  kAer,
  kRemoved,
  kRecovery,
  kIommuFault,
  kDmaFailure,
  kRdmaPort,
  kRdmaQp,
};
enum class PcieSeverity : uint8_t { kInfo, kCorrected, kNonFatal, kFatal };
struct PcieEvent {
  uint64_t t_ns = 0;
  PcieEventKind kind = PcieEventKind::kAer;
  PcieSeverity severity = PcieSeverity::kInfo;
  std::string device;
  uint32_t number = 0;  // kAer: status bits; kRdmaPort: port; kRdmaQp: queue pair
  uint32_t code = 0;    // kRdma*: enum ibv_event_type
  uint64_t count = 0;   // so far, of this device, kind and severity: not each is told
  std::string text;     // "Bad TLP, Replay Timer Timeout (corrected, 14 so far)"
};

class PcieProbes {
 public:
  explicit PcieProbes(ProbeSet* set, std::string sys_root = "/sys");
  PcieProbes(const PcieProbes&) = delete;
  PcieProbes& operator=(const PcieProbes&) = delete;

  // PCI functions to have rows of from now on. Reads which interrupts they have, at the
  // first call and then every tenth.
  void Watch(const std::vector<std::string>& addresses);
  std::vector<PcieDeviceRow> Devices();

  // True when the record was one of pcie.bpf.c or rdma.bpf.c. Malformed ones are counted.
  bool TakeRecord(const mc_event& header, std::span<const std::byte> record);
  std::vector<PcieEvent> TakeEvents();  // by time
  uint64_t malformed_records() const { return malformed_; }

 private:
  struct Device {
    std::set<uint32_t> irqs;
    mc_pcie_irq retired = {};  // of interrupts that it no longer has
  };
  void SetInterrupts(Device* device, std::set<uint32_t> irqs);

  ProbeSet* set_;
  std::string sys_root_;
  bool dma_ = false, dma_timed_ = false, irq_ = false;
  uint64_t watches_ = 0;
  std::map<std::string, Device> devices_;
  std::vector<PcieEvent> events_;
  uint64_t malformed_ = 0;
};

// Names of the set bits of an AER status register, as the PCI Express specification and
// the kernel's log call them (7.8.4: Uncorrectable and Correctable Error Status).
std::string AerStatusText(uint32_t status, bool correctable);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_PROBES_PCIE_H_
