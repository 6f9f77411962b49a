// SPDX-License-Identifier: Apache-2.0
//
// The PCI Express and RDMA core probes, as far as this machine has what they need:
// each is attached or says exactly why not. Errors, removals and mappings of real devices
// are made in a virtual machine (tests/vm).
#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "userspace/source/pci.h"
#include "userspace/source/probes/pcie.h"
#include "userspace/source/probes/testing/bpf_machine.h"
#include "userspace/source/proc.h"

namespace mycroft {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<ProbeSet> Load(bool load = true) {
  ProbeSet::Options options;
  options.objects = {"pcie", "rdma"};
  options.load = load;
  if (!load) options.objects.clear();
  auto set = ProbeSet::Create(options);
  EXPECT_TRUE(set.ok()) << set.status();
  return set.ok() ? *std::move(set) : nullptr;
}

std::map<std::string, ProbeRow> RowsOf(const ProbeSet& set) {
  std::map<std::string, ProbeRow> rows;
  for (ProbeRow& row : set.Rows()) rows[row.name] = std::move(row);
  return rows;
}

bool KernelHas(const std::string& function) {
  std::ifstream symbols("/proc/kallsyms");
  for (std::string address, type, name; symbols >> address >> type >> name;) {
    if (name == function) return true;
    symbols.ignore(4096, '\n');
  }
  return false;
}

TEST(PcieBpfTest, EveryProbeIsAttachedOrSaysWhyNot) {
  MYCROFT_REQUIRE_BPF();
  auto set = Load();
  ASSERT_NE(set, nullptr);
  const auto rows = RowsOf(*set);
  const bool kprobes = access("/sys/bus/event_source/devices/kprobe", F_OK) == 0;
  for (const char* name : {"pcie.removal", "pcie.recovery", "rdma.port_events", "rdma.qp_events"}) {
    const ProbeRow& row = rows.at(name);
    SCOPED_TRACE(std::string(name) + ": " + row.problem);
    if (row.method == ProbeMethod::kFentry || row.method == ProbeMethod::kKprobe) continue;
    EXPECT_THAT(row.problem, HasSubstr("fentry "));
    EXPECT_THAT(row.problem, HasSubstr("kprobe "));
    EXPECT_NE(row.lost, "");
    // What is missing here is said in words that lead to it.
    if (!kprobes)
      EXPECT_THAT(row.problem, HasSubstr("the kernel has none of that name"));
    else
      EXPECT_FALSE(KernelHas(row.attached));
  }
  // These need no more than BPF.
  for (const char* name : {"pcie.irq", "pcie.iommu"}) {
    EXPECT_EQ(rows.at(name).method, ProbeMethod::kTracepoint) << name << rows.at(name).problem;
    EXPECT_EQ(rows.at(name).problem, "") << name;
  }
  const ProbeRow& aer = rows.at("pcie.aer");
  if (aer.method == ProbeMethod::kPoll) {
    EXPECT_THAT(aer.problem, HasSubstr("the kernel has no such tracepoint"));
    EXPECT_EQ(aer.lost.find("the moment of an error"), 0u) << aer.lost;
  }
}

TEST(PcieBpfTest, InterruptsOfADeviceAreCountedWithTheirTime) {
  MYCROFT_REQUIRE_BPF();
  // A device that raises interrupts when a file is read past the cache, or any that does.
  std::vector<std::string> addresses;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/bus/pci/devices", error)) {
    if (!ListNumericEntries(entry.path().string() + "/msi_irqs").empty())
      addresses.push_back(entry.path().filename().string());
  }
  if (addresses.empty())
    GTEST_SKIP() << "SKIPPED, NOTHING WAS TESTED: no PCI device with interrupts here";
  auto set = Load();
  ASSERT_NE(set, nullptr);
  PcieProbes pcie(set.get());
  pcie.Watch(addresses);
  uint64_t count = 0, ns = 0;
  std::string path = "/var/tmp/mycroft_irq_" + std::to_string(getpid());
  for (int i = 0; i < 50 && count == 0; ++i) {
    const int fd = open(path.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    ASSERT_GE(fd, 0);
    EXPECT_EQ(write(fd, path.data(), path.size()), static_cast<ssize_t>(path.size()));
    fsync(fd);
    close(fd);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    count = ns = 0;
    for (const PcieDeviceRow& row : pcie.Devices()) {
      ASSERT_TRUE(row.interrupts && row.interrupt_ns);
      count += *row.interrupts;
      ns += *row.interrupt_ns;
    }
  }
  unlink(path.c_str());
  if (count == 0) GTEST_SKIP() << "SKIPPED, NOTHING WAS TESTED: no PCI device raised an interrupt";
  EXPECT_GE(ns, count * 20);          // a handler takes more than 20 ns
  EXPECT_LT(ns, count * 50'000'000);  // and less than 50 ms
  EXPECT_GE(RowsOf(*set).at("pcie.irq").hits, count);
  // Forgotten devices are not counted any more, and give no row.
  pcie.Watch({});
  EXPECT_TRUE(pcie.Devices().empty());
}

TEST(PcieBpfTest, CountsOfInterruptsThatADeviceLosesStay) {
  MYCROFT_REQUIRE_BPF();
  const std::string root = ::testing::TempDir() + "mycroft_pcie_" + std::to_string(getpid());
  const std::string folder = root + "/bus/pci/devices/0000:01:00.0/msi_irqs";
  std::filesystem::create_directories(folder);
  // Interrupts of this machine that occur.
  std::vector<std::string> irqs;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/bus/pci/devices", error))
    for (uint32_t irq : ListNumericEntries(entry.path().string() + "/msi_irqs"))
      irqs.push_back(std::to_string(irq));
  if (irqs.empty())
    GTEST_SKIP() << "SKIPPED, NOTHING WAS TESTED: no PCI device with interrupts here";
  for (const std::string& irq : irqs) std::ofstream(folder + "/" + irq) << "msix\n";
  auto set = Load();
  ASSERT_NE(set, nullptr);
  PcieProbes pcie(set.get(), root);
  const std::vector<std::string> address = {"0000:01:00.0"};
  pcie.Watch(address);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ASSERT_EQ(pcie.Devices().size(), 1u);
  std::filesystem::remove_all(folder);
  for (int i = 0; i < 9; ++i) pcie.Watch(address);
  const uint64_t before = pcie.Devices()[0].interrupts.value_or(0);
  pcie.Watch(address);  // the tenth looks again
  const uint64_t after = pcie.Devices()[0].interrupts.value_or(0);
  EXPECT_GE(after, before);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(pcie.Devices()[0].interrupts, after);
  std::filesystem::remove_all(root);
}

TEST(PcieBpfTest, NothingStaysBehind) {
  MYCROFT_REQUIRE_BPF();
  const BpfCensus before = TakeBpfCensus();
  for (int i = 0; i < 5; ++i) {
    auto set = Load();
    ASSERT_NE(set, nullptr);
    EXPECT_GT(TakeBpfCensus().programs, before.programs);
    PcieProbes pcie(set.get());
    pcie.Watch({"0000:00:00.0"});
  }
  EXPECT_EQ(WaitForBpfCensus(before), before);
}

TEST(PcieTest, Addresses) {
  EXPECT_TRUE(IsPciAddress("0000:3b:00.0"));
  EXPECT_TRUE(IsPciAddress("10000:e1:1f.7"));
  for (const char* name :
       {"", "0000", "0000:3b:00.8", "0000:3b:00.", "0000:3b:00.0x", "0000:3B:00.0", "virtio0",
        "000:3b:00.0", ":3b:00.0", "0000:3b:0.0", "0000/3b:00.0", "0000:../../x"}) {
    EXPECT_FALSE(IsPciAddress(name)) << name;
  }
}

TEST(PcieTest, StatusRegistersInWords) {
  EXPECT_EQ(AerStatusText(1u << 6 | 1u << 12, true), "Bad TLP, Replay Timer Timeout");
  EXPECT_EQ(AerStatusText(1u << 14 | 1u << 20, false), "Completion Timeout, Unsupported Request");
  EXPECT_EQ(AerStatusText(1u << 31, false), "bits 0x80000000");
  EXPECT_EQ(AerStatusText(0, false), "status not read");
}

// Hand-made records through a set that loaded nothing.
class PcieRecordTest : public ::testing::Test {
 protected:
  PcieRecordTest() : set_(Load(false)), pcie_(set_.get()) {}
  PcieEvent Only(const mc_event_pcie& record) {
    EXPECT_TRUE(pcie_.TakeRecord(record.header, std::as_bytes(std::span(&record, 1))));
    const auto events = pcie_.TakeEvents();
    EXPECT_EQ(events.size(), 1u);
    return events.empty() ? PcieEvent{} : events[0];
  }
  static mc_event_pcie Record(mc_event_kind kind) {
    mc_event_pcie record = {};
    record.header.ts_ns = 77;
    record.header.kind = kind;
    record.header.bytes = sizeof(record);
    std::strcpy(record.device.name, "0000:3b:00.0");
    record.count = 1;
    return record;
  }
  std::unique_ptr<ProbeSet> set_;
  PcieProbes pcie_;
};

TEST_F(PcieRecordTest, AllKinds) {
  mc_event_pcie record = Record(MC_EVENT_PCIE_AER);
  record.severity = 2;
  record.status = 1 << 6;
  record.count = 14;
  PcieEvent event = Only(record);
  EXPECT_EQ(event.t_ns, 77u);
  EXPECT_EQ(event.kind, PcieEventKind::kAer);
  EXPECT_EQ(event.severity, PcieSeverity::kCorrected);
  EXPECT_EQ(event.device, "0000:3b:00.0");
  EXPECT_EQ(event.number, 1u << 6);
  EXPECT_EQ(event.count, 14u);
  EXPECT_EQ(event.text, "Bad TLP (corrected, 14 so far)");
  record.severity = 1;
  record.status = 0;
  event = Only(record);
  EXPECT_EQ(event.severity, PcieSeverity::kFatal);
  EXPECT_EQ(event.text, "status not read (fatal, 14 so far)");
  record.severity = 0;
  EXPECT_EQ(Only(record).severity, PcieSeverity::kNonFatal);

  record = Record(MC_EVENT_PCIE_REMOVAL);
  record.detail = 0x10de2330;
  event = Only(record);
  EXPECT_EQ(event.kind, PcieEventKind::kRemoved);
  EXPECT_EQ(event.text, "removed from the bus (10de:2330)");

  record = Record(MC_EVENT_PCIE_RECOVERY);
  record.severity = 2;
  event = Only(record);
  EXPECT_EQ(event.kind, PcieEventKind::kRecovery);
  EXPECT_EQ(event.severity, PcieSeverity::kFatal);

  record = Record(MC_EVENT_PCIE_IOMMU);
  record.status = 1;
  record.detail = 0xfee0;
  EXPECT_EQ(Only(record).text, "IOMMU fault: write of 0xfee0");

  record = Record(MC_EVENT_PCIE_DMA_FAILURE);
  record.detail = 4096;
  EXPECT_EQ(Only(record).text, "cannot map 4096 bytes for DMA");
}

TEST_F(PcieRecordTest, RdmaEvents) {
  mc_event_rdma record = {};
  record.header.kind = MC_EVENT_RDMA_PORT;
  std::memset(record.device, 'x', sizeof(record.device));  // no zero at the end
  record.event = 10;
  record.number = 1;
  ASSERT_TRUE(pcie_.TakeRecord(record.header, std::as_bytes(std::span(&record, 1))));
  record.header.kind = MC_EVENT_RDMA_QP;
  std::strcpy(record.device, "mlx5_0");
  record.event = 4'000'000'000;
  record.number = 321;
  ASSERT_TRUE(pcie_.TakeRecord(record.header, std::as_bytes(std::span(&record, 1))));
  const auto events = pcie_.TakeEvents();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, PcieEventKind::kRdmaPort);
  EXPECT_EQ(events[0].device, std::string(63, 'x'));  // as long as a name may be
  EXPECT_EQ(events[0].severity, PcieSeverity::kFatal);
  EXPECT_EQ(events[0].text, "port error (down) (port 1)");
  EXPECT_EQ(events[1].kind, PcieEventKind::kRdmaQp);
  EXPECT_EQ(events[1].device, "mlx5_0");
  EXPECT_EQ(events[1].number, 321u);
  EXPECT_EQ(events[1].text, "unknown event (queue pair 321)");
}

TEST_F(PcieRecordTest, ShortRecordsAreCountedAndOthersLeft) {
  mc_event header = {};
  for (uint32_t kind = 0; kind < 128; ++kind) {
    header.kind = kind;
    const bool ours = (kind >= MC_EVENT_PCIE_AER && kind <= MC_EVENT_PCIE_DMA_FAILURE) ||
                      kind == MC_EVENT_RDMA_PORT || kind == MC_EVENT_RDMA_QP;
    EXPECT_EQ(pcie_.TakeRecord(header, std::as_bytes(std::span(&header, 1))), ours) << kind;
  }
  EXPECT_EQ(pcie_.malformed_records(), 7u);
  EXPECT_TRUE(pcie_.TakeEvents().empty());
}

TEST_F(PcieRecordTest, WithoutProbesValuesAreEmptyAndNotZero) {
  pcie_.Watch({"0000:3b:00.0", "nonsense", "0000:../../.."});
  const auto rows = pcie_.Devices();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].address, "0000:3b:00.0");
  EXPECT_EQ(rows[0].dma_maps, std::nullopt);
  EXPECT_EQ(rows[0].dma_ns, std::nullopt);
  EXPECT_EQ(rows[0].interrupts, std::nullopt);
}

}  // namespace
}  // namespace mycroft
