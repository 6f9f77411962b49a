// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/probes/pcie.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "userspace/source/pci.h"
#include "userspace/source/probes/map_access.h"
#include "userspace/source/proc.h"
#include "userspace/source/sysfs.h"

namespace mycroft {
namespace {

constexpr size_t kMaxEvents = 1024;
constexpr uint64_t kInterruptsEvery = 10;  // calls of Watch

const char* RdmaEventName(uint32_t event) {
  // enum ib_event_type, include/rdma/ib_verbs.h
  static constexpr std::array<const char*, 19> kNames = {"completion queue error",
                                                         "queue pair: fatal error",
                                                         "queue pair: request error",
                                                         "queue pair: access error",
                                                         "communication established",
                                                         "send queue drained",
                                                         "path migrated",
                                                         "path migration error",
                                                         "device: fatal error",
                                                         "port active",
                                                         "port error (down)",
                                                         "LID changed",
                                                         "partition keys changed",
                                                         "subnet manager changed",
                                                         "shared receive queue error",
                                                         "shared receive queue limit reached",
                                                         "last work request reached",
                                                         "client reregistration",
                                                         "GID table changed"};
  return event < kNames.size() ? kNames[event] : "unknown event";
}

bool IsError(uint32_t event) {
  return event <= 3 || event == 7 || event == 8 || event == 10 || event == 14;
}

}  // namespace

std::string AerStatusText(uint32_t status, bool correctable) {
  struct Bit {
    uint32_t bit;
    const char* name;
  };
  static constexpr Bit kCorrectable[] = {{0, "Receiver Error"},
                                         {6, "Bad TLP"},
                                         {7, "Bad DLLP"},
                                         {8, "Replay Number Rollover"},
                                         {12, "Replay Timer Timeout"},
                                         {13, "Advisory Non-Fatal Error"},
                                         {14, "Corrected Internal Error"},
                                         {15, "Header Log Overflow"}};
  static constexpr Bit kUncorrectable[] = {{4, "Data Link Protocol Error"},
                                           {5, "Surprise Down"},
                                           {12, "Poisoned TLP"},
                                           {13, "Flow Control Protocol Error"},
                                           {14, "Completion Timeout"},
                                           {15, "Completer Abort"},
                                           {16, "Unexpected Completion"},
                                           {17, "Receiver Overflow"},
                                           {18, "Malformed TLP"},
                                           {19, "ECRC Error"},
                                           {20, "Unsupported Request"},
                                           {21, "ACS Violation"},
                                           {22, "Uncorrectable Internal Error"},
                                           {23, "MC Blocked TLP"},
                                           {24, "AtomicOp Egress Blocked"},
                                           {25, "TLP Prefix Blocked"}};
  std::vector<std::string> names;
  const auto add = [&](std::span<const Bit> bits) {
    for (const Bit& b : bits) {
      if ((status & (1u << b.bit)) == 0) continue;
      names.push_back(b.name);
      status &= ~(1u << b.bit);
    }
  };
  correctable ? add(kCorrectable) : add(kUncorrectable);
  if (status != 0) names.push_back(absl::StrCat("bits 0x", absl::Hex(status)));
  // The kernel does not read the register of a device that may not answer.
  return names.empty() ? "status not read" : absl::StrJoin(names, ", ");
}

PcieProbes::PcieProbes(ProbeSet* set, std::string sys_root)
    : set_(set), sys_root_(std::move(sys_root)) {
  for (const ProbeRow& row : set_->Rows()) {
    const bool timed = row.method == ProbeMethod::kFentry || row.method == ProbeMethod::kKprobe;
    const bool attached = IsKernelHook(row.method);
    if (row.name == "pcie.dma") {
      dma_ = attached;
      dma_timed_ = timed;
    }
    if (row.name == "pcie.irq") irq_ = attached;
  }
}

void PcieProbes::SetInterrupts(Device* device, std::set<uint32_t> irqs) {
  const int fd = set_->MapFd("pcie", "mc_pcie_irqs");
  for (uint32_t irq : device->irqs) {
    if (irqs.count(irq) != 0) continue;
    if (const auto count = ReadMap<mc_pcie_irq>(fd, irq)) {
      device->retired.count += count->count;
      device->retired.ns += count->ns;
    }
    DeleteFromMap(fd, irq);
  }
  for (uint32_t irq : irqs)
    if (device->irqs.count(irq) == 0) WriteMap(fd, irq, mc_pcie_irq{});
  device->irqs = std::move(irqs);
}

void PcieProbes::Watch(const std::vector<std::string>& addresses) {
  std::set<std::string> wanted;
  for (const std::string& address : addresses)
    if (IsPciAddress(address)) wanted.insert(address);
  for (auto it = devices_.begin(); it != devices_.end();) {
    if (wanted.count(it->first) != 0) {
      ++it;
      continue;
    }
    if (irq_) SetInterrupts(&it->second, {});
    it = devices_.erase(it);
  }
  const bool look = watches_++ % kInterruptsEvery == 0;
  for (const std::string& address : wanted) {
    const auto [it, added] = devices_.try_emplace(address);
    if (!irq_ || !(look || added)) continue;
    const std::string folder = sys_root_ + "/bus/pci/devices/" + address;
    std::set<uint32_t> irqs;
    for (uint32_t irq : ListNumericEntries(folder + "/msi_irqs")) irqs.insert(irq);
    if (irqs.empty()) {
      // A line, which other devices may share; 0: none.
      const uint64_t irq = ReadNumber(folder + "/irq").value_or(0);
      if (irq != 0 && irq <= UINT32_MAX) irqs.insert(static_cast<uint32_t>(irq));
    }
    SetInterrupts(&it->second, std::move(irqs));
  }
}

std::vector<PcieDeviceRow> PcieProbes::Devices() {
  std::vector<PcieDeviceRow> rows;
  const int dma_map = set_->MapFd("pcie", "mc_pcie_dma");
  const int irq_map = set_->MapFd("pcie", "mc_pcie_irqs");
  for (const auto& [address, device] : devices_) {
    PcieDeviceRow row;
    row.address = address;
    if (dma_) {
      mc_device key = {};
      std::memcpy(key.name, address.data(), std::min(address.size(), sizeof(key.name) - 1));
      mc_pcie_dma sum = {};
      for (const mc_pcie_dma& cpu : ReadPerCpuMap<mc_pcie_dma>(dma_map, key)) {
        sum.maps += cpu.maps;
        sum.bytes += cpu.bytes;
        sum.failures += cpu.failures;
        sum.ns += cpu.ns;
      }
      row.dma_maps = sum.maps;
      row.dma_bytes = sum.bytes;
      row.dma_failures = sum.failures;
      if (dma_timed_) row.dma_ns = sum.ns;
    }
    if (irq_) {
      mc_pcie_irq sum = device.retired;
      for (uint32_t irq : device.irqs) {
        if (const auto count = ReadMap<mc_pcie_irq>(irq_map, irq)) {
          sum.count += count->count;
          sum.ns += count->ns;
        }
      }
      row.interrupts = sum.count;
      row.interrupt_ns = sum.ns;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

bool PcieProbes::TakeRecord(const mc_event& header, std::span<const std::byte> record) {
  PcieEvent event;
  event.t_ns = header.ts_ns;
  if (header.kind == MC_EVENT_RDMA_PORT || header.kind == MC_EVENT_RDMA_QP) {
    mc_event_rdma raw;
    if (!ReadRecord(record, &raw)) {
      ++malformed_;
      return true;
    }
    const bool qp = header.kind == MC_EVENT_RDMA_QP;
    event.kind = qp ? PcieEventKind::kRdmaQp : PcieEventKind::kRdmaPort;
    event.severity = IsError(raw.event) ? PcieSeverity::kFatal : PcieSeverity::kInfo;
    event.device = PrintableName(raw.device, sizeof(raw.device));
    event.number = raw.number;
    event.code = raw.event;
    event.count = 1;
    event.text =
        absl::StrCat(RdmaEventName(raw.event), " (", qp ? "queue pair " : "port ", raw.number, ")");
  } else if (header.kind >= MC_EVENT_PCIE_AER && header.kind <= MC_EVENT_PCIE_DMA_FAILURE) {
    mc_event_pcie raw;
    if (!ReadRecord(record, &raw)) {
      ++malformed_;
      return true;
    }
    event.device = PrintableName(raw.device.name, sizeof(raw.device.name));
    event.count = raw.count;
    const std::string so_far =
        raw.count > 1 ? absl::StrCat(", ", raw.count, " so far") : std::string();
    if (header.kind == MC_EVENT_PCIE_AER) {
      event.kind = PcieEventKind::kAer;
      event.number = raw.status;
      const bool corrected = raw.severity == 2;
      event.severity = corrected           ? PcieSeverity::kCorrected
                       : raw.severity == 1 ? PcieSeverity::kFatal
                                           : PcieSeverity::kNonFatal;
      event.text = absl::StrCat(AerStatusText(raw.status, corrected), " (",
                                corrected           ? "corrected"
                                : raw.severity == 1 ? "fatal"
                                                    : "non-fatal",
                                so_far, ")");
    } else if (header.kind == MC_EVENT_PCIE_REMOVAL) {
      event.kind = PcieEventKind::kRemoved;
      event.severity = PcieSeverity::kFatal;
      event.text =
          absl::StrCat("removed from the bus (", absl::Hex(raw.detail >> 16, absl::kZeroPad4), ":",
                       absl::Hex(raw.detail & 0xffff, absl::kZeroPad4), ")");
    } else if (header.kind == MC_EVENT_PCIE_RECOVERY) {
      event.kind = PcieEventKind::kRecovery;
      event.severity = raw.severity == 1 ? PcieSeverity::kNonFatal : PcieSeverity::kFatal;
      event.text = absl::StrCat("the kernel recovers it from an error (",
                                raw.severity == 1   ? "it still answers"
                                : raw.severity == 2 ? "its I/O is frozen, the link is reset"
                                                    : "given up",
                                so_far, ")");
    } else if (header.kind == MC_EVENT_PCIE_IOMMU) {
      event.kind = PcieEventKind::kIommuFault;
      event.severity = PcieSeverity::kNonFatal;
      event.number = raw.status;
      event.text = absl::StrCat("IOMMU fault: ", (raw.status & 1) != 0 ? "write" : "read", " of 0x",
                                absl::Hex(raw.detail), so_far);
    } else {
      event.kind = PcieEventKind::kDmaFailure;
      event.severity = PcieSeverity::kNonFatal;
      event.text = absl::StrCat("cannot map ", raw.detail, " bytes for DMA", so_far);
    }
  } else {
    return false;
  }
  if (events_.size() < kMaxEvents) events_.push_back(std::move(event));
  return true;
}

std::vector<PcieEvent> PcieProbes::TakeEvents() {
  std::stable_sort(events_.begin(), events_.end(),
                   [](const PcieEvent& a, const PcieEvent& b) { return a.t_ns < b.t_ns; });
  return std::exchange(events_, {});
}

}  // namespace mycroft
