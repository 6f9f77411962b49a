// SPDX-License-Identifier: Apache-2.0
//
// From the stand-in for the driver's library, and a kernel log in a file, to samples.
#include "userspace/decode/gpu_health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "userspace/decode/hardware_source.h"
#include "userspace/source/testing/fixture_host.h"
#include "userspace/source/testing/nvml_script.h"

namespace mycroft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr uint64_t kSecond = 1'000'000'000;
constexpr char kGpu0[] = "0000:3b:00.0", kGpu1[] = "0000:3c:00.0";

class GpuHealthTest : public ::testing::Test {
 protected:
  GpuHealthTest() {
    script_.AddGpu(0, "00000000:3B:00.0");
    script_.AddGpu(1, "00000000:3C:00.0");
    script_.Write();
    options_.nvml_library = MYCROFT_FAKE_NVML_LIBRARY;
    options_.own_thread = false;
  }
  GpuHealthReading Poll(GpuHealth& health, uint64_t ns = kSecond) {
    now_ += ns;
    return health.Poll(now_, {kGpu0, kGpu1}, false);
  }
  static const ProbeSample* Row(const GpuHealthReading& reading, const std::string& name) {
    for (const ProbeSample& probe : reading.probes) {
      if (probe.name == name) return &probe;
    }
    return nullptr;
  }

  NvmlScript script_;
  FixtureHost host_;
  GpuHealthOptions options_;
  uint64_t now_ = 1000 * kSecond;
};

TEST_F(GpuHealthTest, AsksForNothingUntilAGpuIsOpen) {
  GpuHealth health(options_, host_.proc());
  GpuHealthReading none = health.Poll(now_, {}, false);
  EXPECT_THAT(none.gpus, IsEmpty());
  EXPECT_THAT(none.probes, IsEmpty());
  EXPECT_THAT(health.Poll(now_ + kSecond, {}, true).minors, SizeIs(2));  // to learn its name
}

TEST_F(GpuHealthTest, SamplesOnlyWhatIsWanted) {
  GpuHealth health(options_, host_.proc());
  const GpuHealthReading r = health.Poll(now_, {kGpu1}, false);
  ASSERT_THAT(r.gpus, SizeIs(1));
  const GpuSample& gpu = r.gpus[0];
  EXPECT_EQ(gpu.address, kGpu1);
  EXPECT_EQ(gpu.uuid, "GPU-1");
  EXPECT_EQ(gpu.index, 1u);
  EXPECT_FALSE(gpu.lost);
  EXPECT_EQ(gpu.silent_since_ns, 0u);
  EXPECT_EQ(gpu.sm_mhz, 1980u);
  EXPECT_EQ(gpu.power_w, 620u);
  EXPECT_EQ(gpu.power_limit_w, 700u);
  EXPECT_EQ(gpu.clock_reasons, 0u);
  EXPECT_EQ(gpu.temperature_c, 61u);
  EXPECT_EQ(gpu.slowdown_c, 87u);
  EXPECT_EQ(gpu.ecc_uncorrected, 0u);
  EXPECT_EQ(gpu.remap_failed, false);
  EXPECT_EQ(r.links.at(kGpu1).speed_gts, 32);
  EXPECT_EQ(r.links.at(kGpu1).max_width, 16u);
  const ProbeSample* row = Row(r, "poll.nvml");
  ASSERT_NE(row, nullptr);
  EXPECT_THAT(row->attached, HasSubstr("driver 550.54.15"));
  EXPECT_EQ(row->problem, "");
  EXPECT_THAT(r.blind_spots, IsEmpty());
}

TEST_F(GpuHealthTest, NoiseIsNoChange) {
  GpuHealth health(options_, host_.proc());
  const GpuSample before = Poll(health).gpus[0];
  script_.Set(0, "power", 627'000);
  script_.Set(0, "temperature", 63);
  script_.Set(0, "clock_sm", 1965);
  script_.Set(0, "util", 97);
  script_.Set(0, "mem_used", (60ull << 30) + 5000);
  script_.Write();
  EXPECT_EQ(Poll(health).gpus[0], before);
  script_.Set(0, "power", 300'000);
  script_.Set(0, "clock_sm", 345);
  script_.Write();
  const GpuSample after = Poll(health).gpus[0];
  EXPECT_EQ(after.power_w, 300u);
  EXPECT_EQ(after.sm_mhz, 345u);
  EXPECT_EQ(after.temperature_c, 61u);
}

TEST_F(GpuHealthTest, CountersGoOnOverResets) {
  script_.Set(0, "ecc_uncorrected", 5);
  script_.Set(0, "link 0", "1 100 2 3");
  script_.Write();
  GpuHealth health(options_, host_.proc());
  GpuSample gpu = Poll(health).gpus[0];
  EXPECT_EQ(gpu.ecc_uncorrected, 5u);
  ASSERT_THAT(gpu.nvlinks, SizeIs(1));
  EXPECT_EQ(gpu.nvlinks[0].replays, 100u);
  script_.Set(0, "ecc_uncorrected", 1);  // the driver was loaded again
  script_.Set(0, "link 0", "1 7 0 0");
  script_.Write();
  gpu = Poll(health).gpus[0];
  EXPECT_EQ(gpu.ecc_uncorrected, 6u);
  EXPECT_EQ(gpu.nvlinks[0].replays, 107u);
  EXPECT_EQ(gpu.nvlinks[0].recoveries, 2u);
  // A failed read is no reset.
  script_.Clear(0, "ecc_uncorrected");
  script_.Write();
  EXPECT_EQ(Poll(health).gpus[0].ecc_uncorrected, std::nullopt);
  script_.Set(0, "ecc_uncorrected", 1);
  script_.Write();
  EXPECT_EQ(Poll(health).gpus[0].ecc_uncorrected, 6u);
}

TEST_F(GpuHealthTest, LostGpuKeepsWhatItLastSaid) {
  GpuHealth health(options_, host_.proc());
  Poll(health);
  script_.Set(1, "lost", 1);
  script_.Write();
  const GpuHealthReading r = Poll(health);
  ASSERT_THAT(r.gpus, SizeIs(2));
  EXPECT_FALSE(r.gpus[0].lost);
  EXPECT_TRUE(r.gpus[1].lost);
  EXPECT_EQ(r.gpus[1].sm_mhz, 1980u);
  script_.Clear(1, "lost");
  script_.Write();
  EXPECT_FALSE(Poll(health).gpus[1].lost);
}

TEST_F(GpuHealthTest, DriverThatHangsIsMarkedAndNotWaitedFor) {
  options_.own_thread = true;
  options_.wait_ns = kSecond;
  auto health = std::make_unique<GpuHealth>(options_, host_.proc());
  for (int i = 0; i < 30 && Poll(*health, 1).gpus.size() < 2; ++i) {
  }
  Poll(*health);
  script_.Set(1, "block_ms", 600'000);
  script_.Write();
  const uint64_t asked = now_ + kSecond;
  // The first of these waits its moment, the others do not.
  const auto begin = std::chrono::steady_clock::now();
  GpuHealthReading r = Poll(*health);
  for (int i = 0; i < 5; ++i) r = Poll(*health);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  ASSERT_THAT(r.gpus, SizeIs(2));
  EXPECT_EQ(r.gpus[0].silent_since_ns, asked);
  EXPECT_FALSE(r.gpus[0].hangs);
  EXPECT_EQ(r.gpus[1].silent_since_ns, asked);
  EXPECT_TRUE(r.gpus[1].hangs);
  EXPECT_EQ(r.gpus[1].sm_mhz, 1980u);
  ASSERT_THAT(r.blind_spots, SizeIs(1));
  EXPECT_THAT(r.blind_spots[0].what, HasSubstr("asked about GPU 0000:3c:00.0, has not come back"));
  EXPECT_THAT(Row(r, "poll.nvml")->problem, HasSubstr("does not come back"));
  // It comes back.
  script_.Clear(1, "block_ms");
  script_.Write();
  for (int i = 0; i < 1000 && r.gpus[1].silent_since_ns != 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    r = Poll(*health, 1);
  }
  EXPECT_EQ(r.gpus[1].silent_since_ns, 0u);
  EXPECT_FALSE(r.gpus[1].hangs);
  EXPECT_THAT(r.blind_spots, IsEmpty());
}

TEST_F(GpuHealthTest, LibraryThatIsNotThereIsABlindSpot) {
  options_.nvml_library = "/nowhere/libnvidia-ml.so.1";
  GpuHealth health(options_, host_.proc());
  const GpuHealthReading r = Poll(health);
  EXPECT_THAT(r.gpus, IsEmpty());
  ASSERT_THAT(r.blind_spots, SizeIs(1));
  EXPECT_THAT(r.blind_spots[0].what, HasSubstr("NVML cannot be loaded"));
  EXPECT_EQ(Row(r, "poll.nvml")->attached, "");
  EXPECT_THAT(Row(r, "poll.nvml")->lost, HasSubstr("throttling"));
  EXPECT_THAT(Poll(health).blind_spots, SizeIs(1));  // still in force, without a new try
}

TEST_F(GpuHealthTest, XidsOfTheLogAndOfNvmlOnce) {
  options_.kernel_log = host_.root() + "/kmsg";
  host_.Write("kmsg", "4,1,990000000,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=a, MMU Fault\n");
  host_.Link("proc/self/ns/pid", "pid:[4026531836]");
  GpuHealth health(options_, host_.proc());
  GpuHealthReading r = Poll(health);
  ASSERT_THAT(r.events, SizeIs(1));
  EXPECT_EQ(r.events[0].t_ns, 990 * kSecond);
  EXPECT_EQ(r.events[0].kind, HardwareEventKind::kXid);
  EXPECT_EQ(r.events[0].severity, Severity::kInfo);
  EXPECT_EQ(r.events[0].device, kGpu0);
  EXPECT_EQ(r.events[0].number, 31u);
  EXPECT_EQ(r.events[0].pid, 7u);
  EXPECT_THAT(r.events[0].text, HasSubstr("MMU Fault"));
  std::ofstream(host_.root() + "/kmsg", std::ios::app)
      << "4,2,1001500000,-;NVRM: Xid (PCI:0000:3c:00): 79, pid=7, name=a, gone\n"
         "4,3,1001500001,-;NVRM: Xid (PCI:0000:3c:00): 79, pid=8, name=b, gone\n"
         "4,9,1001500002,-;nvidia-nvswitch0: SXid (PCI:0000:c5:00.0): 20034, Fatal, Link 2 x\n"
         "4,10,1001500003,-;NVRM: Xid (PCI:\n";
  script_.Line("gpu 1 xid 79");
  script_.Line("gpu 0 xid 48");
  script_.Write();
  r = Poll(health);
  ASSERT_THAT(r.events, SizeIs(3));  // 79 once
  EXPECT_EQ(r.events[0].number, 79u);
  EXPECT_EQ(r.events[0].severity, Severity::kFatal);
  EXPECT_EQ(r.events[1].number, 48u);
  EXPECT_EQ(r.events[2].kind, HardwareEventKind::kSxid);
  EXPECT_EQ(r.events[2].severity, Severity::kFatal);
  EXPECT_EQ(r.lost_events, 5u);
  EXPECT_EQ(Row(r, "poll.xid")->dropped, 5u);
  EXPECT_THAT(Row(r, "poll.xid")->lost, HasSubstr("1 lines"));
}

TEST_F(GpuHealthTest, ProcessNumbersOfAnotherNamespaceAreNotUsed) {
  options_.kernel_log = host_.root() + "/kmsg";
  host_.Write("kmsg", "4,1,990000000,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=a, x\n");
  host_.Link("proc/self/ns/pid", "pid:[4026532999]");
  script_.Set(0, "process 7", "");
  script_.Write();
  GpuHealth inside(options_, host_.proc());
  GpuHealthReading r = Poll(inside);
  EXPECT_EQ(r.events.at(0).pid, 0u);
  EXPECT_TRUE(r.computing.empty());
  host_.Link("proc/self/ns/pid", "pid:[4026531836]");
  GpuHealth outside(options_, host_.proc());
  r = Poll(outside);
  EXPECT_EQ(r.events.at(0).pid, 7u);
  EXPECT_THAT(r.computing.at(7), ElementsAre(kGpu0));
}

TEST_F(GpuHealthTest, LogThatCannotBeReadIsABlindSpot) {
  options_.kernel_log = host_.root() + "/nothing";
  GpuHealth health(options_, host_.proc());
  const GpuHealthReading r = Poll(health);
  ASSERT_THAT(r.blind_spots, SizeIs(1));
  EXPECT_THAT(r.blind_spots[0].what, HasSubstr("the kernel log cannot be read"));
  EXPECT_EQ(Row(r, "poll.xid")->attached, "");
}

TEST_F(GpuHealthTest, MigDevicesAreListed) {
  script_.Set(0, "mig 0", "MIG-aaaa 3");
  script_.Set(0, "mig 1", "MIG-bbbb 5");
  script_.Write();
  GpuHealth health(options_, host_.proc());
  EXPECT_THAT(Poll(health).gpus[0].mig, ElementsAre("MIG-aaaa", "MIG-bbbb"));
}

// ---- through the hardware source ----------------------------------------------------------

class HealthSourceTest : public GpuHealthTest {
 protected:
  HealthSourceTest() {
    const std::string fast = "32.0 GT/s PCIe";
    for (const char* gpu : {kGpu0, kGpu1}) {
      // A virtual machine: no link is shown.
      host_.AddPci({gpu}, "0x030200", "Unknown", "0", "Unknown", "255",
                   FixtureHost::Config(0x10de, 0x2330, 0, 5, true, false), "nvidia");
      host_.Remove(host_.PciFolder(gpu) + "current_link_speed");
    }
    host_.AddProcess(7, {"/dev/nvidia0", "/dev/nvidia1"});
    source_.proc_root = host_.proc();
    source_.sys_root = host_.sys();
    source_.inline_poll = true;
    source_.gpu_health = options_;
  }
  HardwareReading Tick(HardwareSource& source, uint64_t ns = kSecond) {
    now_ += ns;
    return source.Sample(now_, {{{7, 777}, {8}, {}, {}}});
  }
  HardwareOptions source_;
};

TEST_F(HealthSourceTest, NamesGpusWhereProcIsHiddenAndGivesChangesOnly) {
  HardwareSource source(source_);
  HardwareReading r = Tick(source);  // learns the minors
  ASSERT_EQ(r.processes.size(), 1u);
  EXPECT_THAT(r.processes.begin()->second.gpus, ElementsAre(kGpu0, kGpu1));
  r = Tick(source);
  ASSERT_TRUE(r.host);
  ASSERT_THAT(r.host->gpus, SizeIs(2));
  // The link, as the driver sees it.
  ASSERT_THAT(r.host->pci, SizeIs(2));
  EXPECT_EQ(r.host->pci[0].speed_gts, 32.0);
  EXPECT_EQ(r.host->pci[0].width, 16u);
  r = Tick(source);
  EXPECT_TRUE(!r.host || r.host->gpus.empty());
  script_.Set(1, "reasons", 0x40);
  script_.Set(1, "clock_sm", 345);
  script_.Set(1, "pcie_gen", 1);
  script_.Write();
  r = Tick(source);
  ASSERT_TRUE(r.host);
  ASSERT_THAT(r.host->gpus, SizeIs(1));
  EXPECT_EQ(r.host->gpus[0].address, kGpu1);
  EXPECT_EQ(r.host->gpus[0].clock_reasons, clock_reason::kHardwareThermal);
  ASSERT_THAT(r.host->pci, SizeIs(1));
  EXPECT_EQ(r.host->pci[0].speed_gts, 2.5);
}

TEST_F(HealthSourceTest, OfSeveralOpenGpusThoseThatItComputesOn) {
  host_.Link("proc/self/ns/pid", "pid:[4026531836]");
  script_.Set(1, "process 7", "");
  script_.Write();
  HardwareSource source(source_);
  Tick(source);
  const HardwareReading r = Tick(source);
  ASSERT_EQ(r.processes.size(), 1u);
  EXPECT_THAT(r.processes.begin()->second.gpus, ElementsAre(kGpu1));
}

TEST_F(HealthSourceTest, BlindSpotsAreGivenOn) {
  source_.gpu_health.nvml_library = "/nowhere/libnvidia-ml.so.1";
  HardwareSource source(source_);
  Tick(source);
  EXPECT_THAT(source.blind_spots(), SizeIs(1));
}

}  // namespace
}  // namespace mycroft
