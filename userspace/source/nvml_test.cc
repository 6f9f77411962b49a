// SPDX-License-Identifier: Apache-2.0
//
// Against a stand-in for the driver's library.
#include "userspace/source/nvml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "userspace/source/nvml_abi.h"
#include "userspace/source/testing/nvml_script.h"

namespace mycroft {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::unique_ptr<Nvml> Open(const char* library = MYCROFT_FAKE_NVML_LIBRARY) {
  auto nvml = Nvml::Open(library);
  EXPECT_TRUE(nvml.ok()) << nvml.status();
  return nvml.ok() ? *std::move(nvml) : nullptr;
}

TEST(Nvml, ReadsAllOfAGpu) {
  NvmlScript script;
  script.AddGpu(0, "00000000:3B:00.0");
  script.AddGpu(1, "00010000:AF:00.0");
  script.Set(1, "link 0", "1 2 3 4");
  script.Set(1, "link 1", "0 0 0 0");
  script.Set(1, "process 4711", "");
  script.Set(1, "pcie_tx", 5'000'000'000);
  script.Set(1, "reasons", 0x44);
  script.Set(1, "ecc_uncorrected", 7);
  script.Set(1, "remap_pending", 1);
  script.Write();
  const auto nvml = Open();
  ASSERT_NE(nvml, nullptr);
  EXPECT_EQ(nvml->path(), MYCROFT_FAKE_NVML_LIBRARY);
  EXPECT_EQ(nvml->driver_version(), "550.54.15");
  EXPECT_THAT(nvml->missing(), IsEmpty());
  size_t failed = 0;
  const auto devices = nvml->List(&failed);
  ASSERT_THAT(devices, SizeIs(2));
  EXPECT_EQ(failed, 0u);
  EXPECT_EQ(devices[0].address, "0000:3b:00.0");
  EXPECT_EQ(devices[1].address, "10000:af:00.0");
  EXPECT_EQ(devices[1].index, 1u);
  EXPECT_EQ(devices[1].uuid, "GPU-1");
  EXPECT_EQ(devices[1].name, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(devices[1].minor, 1u);
  EXPECT_THAT(devices[1].mig, IsEmpty());
  const NvmlReading r = nvml->Read(devices[1], true);
  EXPECT_FALSE(r.lost);
  EXPECT_EQ(r.sm_mhz, 1980u);
  EXPECT_EQ(r.sm_max_mhz, 1980u);
  EXPECT_EQ(r.memory_mhz, 2619u);
  EXPECT_EQ(r.memory_max_mhz, 2619u);
  EXPECT_EQ(r.power_mw, 620'000u);
  EXPECT_EQ(r.power_limit_mw, 700'000u);
  EXPECT_EQ(r.clock_reasons, nvml_abi::kReasonPowerCap | nvml_abi::kReasonHardwareThermal);
  EXPECT_EQ(r.temperature_c, 61u);
  EXPECT_EQ(r.memory_temperature_c, 70u);
  EXPECT_EQ(r.slowdown_c, 87u);
  EXPECT_EQ(r.utilization_percent, 100u);
  EXPECT_EQ(r.memory_used_bytes, 60ull << 30);
  EXPECT_EQ(r.memory_bytes, 80ull << 30);
  EXPECT_EQ(r.ecc_corrected, 0u);
  EXPECT_EQ(r.ecc_uncorrected, 7u);
  EXPECT_EQ(r.remapped_rows, 0u);
  EXPECT_EQ(r.remap_pending, true);
  EXPECT_EQ(r.remap_failed, false);
  EXPECT_EQ(r.pcie_generation, 5u);
  EXPECT_EQ(r.pcie_max_generation, 5u);
  EXPECT_EQ(r.pcie_width, 16u);
  EXPECT_EQ(r.pcie_max_width, 16u);
  EXPECT_EQ(r.pcie_replays, 0u);
  EXPECT_EQ(r.pcie_tx_bytes, 5'000'000'000u);
  EXPECT_EQ(r.pcie_rx_bytes, std::nullopt);
  ASSERT_THAT(r.links, SizeIs(2));
  EXPECT_TRUE(r.links[0].active);
  EXPECT_EQ(r.links[0].replays, 2u);
  EXPECT_EQ(r.links[0].recoveries, 3u);
  EXPECT_EQ(r.links[0].crc, 4u);
  EXPECT_FALSE(r.links[1].active);
  ASSERT_TRUE(r.processes);
  ASSERT_THAT(*r.processes, SizeIs(1));
  EXPECT_EQ((*r.processes)[0].pid, 4711u);
  EXPECT_EQ((*r.processes)[0].gpu_instance, std::nullopt);
}

TEST(Nvml, FastReadingsLeaveOutWhatMovesSlowly) {
  NvmlScript script;
  script.AddGpu(0, "00000000:3B:00.0");
  script.Set(0, "link 0", "1 0 0 0");
  script.Write();
  const auto nvml = Open();
  size_t failed = 0;
  const auto devices = nvml->List(&failed);
  ASSERT_THAT(devices, SizeIs(1));
  NvmlReading r = nvml->Read(devices[0], false);
  EXPECT_EQ(r.sm_mhz, 1980u);
  EXPECT_EQ(r.power_limit_mw, std::nullopt);
  EXPECT_THAT(r.links, IsEmpty());
  script.Set(0, "link 0", "1 9 0 0");  // the sum tells that the links are worth a look
  script.Write();
  r = nvml->Read(devices[0], false);
  ASSERT_THAT(r.links, SizeIs(1));
  EXPECT_EQ(r.links[0].replays, 9u);
}

TEST(Nvml, OldDriverLeavesFieldsUnknown) {
  NvmlScript script;
  script.AddGpu(0, "00000000:3B:00.0");
  script.Set(0, "reasons", 0x40);
  script.Set(0, "process 12", "");
  script.Write();
  const auto nvml = Open(MYCROFT_FAKE_NVML_OLD_LIBRARY);
  ASSERT_NE(nvml, nullptr);
  EXPECT_THAT(nvml->missing(), Contains("nvmlDeviceGetRemappedRows"));
  size_t failed = 0;
  const auto devices = nvml->List(&failed);
  ASSERT_THAT(devices, SizeIs(1));
  const NvmlReading r = nvml->Read(devices[0], true);
  EXPECT_EQ(r.sm_mhz, 1980u);
  EXPECT_EQ(r.clock_reasons, 0x40u);  // by its old name
  EXPECT_EQ(r.remapped_rows, std::nullopt);
  EXPECT_EQ(r.remap_failed, std::nullopt);
  EXPECT_EQ(r.memory_temperature_c, std::nullopt);
  ASSERT_TRUE(r.processes);
  EXPECT_EQ((*r.processes)[0].pid, 12u);
  EXPECT_THAT(nvml->TakeXids(), IsEmpty());
}

TEST(Nvml, WhatIsNotSupportedIsUnknown) {
  NvmlScript script;
  script.AddGpu(0, "00000000:3B:00.0");
  for (const char* key : {"power", "ecc_corrected", "temperature", "reasons", "mem_total"}) {
    script.Clear(0, key);
  }
  script.Write();
  const auto nvml = Open();
  size_t failed = 0;
  const auto devices = nvml->List(&failed);
  ASSERT_THAT(devices, SizeIs(1));
  const NvmlReading r = nvml->Read(devices[0], true);
  EXPECT_FALSE(r.lost);
  EXPECT_EQ(r.power_mw, std::nullopt);
  EXPECT_EQ(r.ecc_corrected, std::nullopt);
  EXPECT_EQ(r.temperature_c, std::nullopt);
  EXPECT_EQ(r.clock_reasons, std::nullopt);
  EXPECT_EQ(r.memory_bytes, std::nullopt);
  EXPECT_EQ(r.ecc_uncorrected, 0u);
}

TEST(Nvml, LostGpuIsSaidToBeLost) {
  NvmlScript script;
  script.AddGpu(0, "00000000:3B:00.0");
  script.AddGpu(1, "00000000:3C:00.0");
  script.Write();
  const auto nvml = Open();
  size_t failed = 0;
  const auto devices = nvml->List(&failed);
  ASSERT_THAT(devices, SizeIs(2));
  script.Set(1, "lost", 1);
  script.Write();
  const NvmlReading lost = nvml->Read(devices[1], true);
  EXPECT_TRUE(lost.lost);
  EXPECT_EQ(lost.sm_mhz, std::nullopt);
  EXPECT_FALSE(nvml->Read(devices[0], true).lost);
  EXPECT_THAT(nvml->List(&failed), SizeIs(1));
  EXPECT_EQ(failed, 1u);
}

TEST(Nvml, MigDevicesBelongToTheirParent) {
  NvmlScript script;
  script.AddGpu(0, "00000000:3B:00.0");
  script.Set(0, "mig 0", "MIG-aaaa 3");
  script.Set(0, "mig 2", "MIG-bbbb 5");
  script.Set(0, "process 12", "5");
  script.Write();
  const auto nvml = Open();
  size_t failed = 0;
  const auto devices = nvml->List(&failed);
  ASSERT_THAT(devices, SizeIs(1));
  ASSERT_THAT(devices[0].mig, SizeIs(2));
  EXPECT_EQ(devices[0].mig[1].uuid, "MIG-bbbb");
  EXPECT_EQ(devices[0].mig[1].gpu_instance, 5u);
  const NvmlReading r = nvml->Read(devices[0], true);
  ASSERT_TRUE(r.processes);
  EXPECT_EQ((*r.processes)[0].gpu_instance, 5u);
}

TEST(Nvml, XidsAreToldOnce) {
  NvmlScript script;
  script.AddGpu(0, "00000000:3B:00.0");
  script.AddGpu(1, "00000000:3C:00.0");
  script.Line("gpu 1 xid 79");
  script.Line("gpu 0 xid 43");
  script.Write();
  const auto nvml = Open();
  size_t failed = 0;
  nvml->List(&failed);
  const auto xids = nvml->TakeXids();
  ASSERT_THAT(xids, SizeIs(2));
  EXPECT_EQ(xids[0].address, "0000:3c:00.0");
  EXPECT_EQ(xids[0].xid, 79u);
  EXPECT_EQ(xids[1].xid, 43u);
  EXPECT_THAT(nvml->TakeXids(), IsEmpty());
}

TEST(Nvml, AbsentOrBrokenIsNoFailureOfOurs) {
  EXPECT_TRUE(absl::IsNotFound(Nvml::Open("/nowhere/libnvidia-ml.so.1").status()));
  EXPECT_TRUE(absl::IsNotFound(Nvml::Open(kNvmlOff).status()));
  NvmlScript script;
  script.Line("init 9");
  script.Write();
  absl::Status status = Nvml::Open(MYCROFT_FAKE_NVML_LIBRARY).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("kernel driver is not loaded"));
  status = Nvml::Open("libc.so.6").status();  // a library, but not this one
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("lacks nvmlInit_v2"));
}

TEST(Nvml, Addresses) {
  EXPECT_EQ(PciAddressOfNvml("00000000:3B:00.0"), "0000:3b:00.0");
  EXPECT_EQ(PciAddressOfNvml("0000:3B:00.0"), "0000:3b:00.0");
  EXPECT_EQ(PciAddressOfNvml("00010000:01:00.0"), "10000:01:00.0");
  EXPECT_EQ(PciAddressOfNvml("garbage"), "");
  EXPECT_EQ(PciAddressOfNvml(""), "");
  EXPECT_EQ(PcieSpeedGts(2), 5);
  EXPECT_EQ(PcieSpeedGts(5), 32);
  EXPECT_EQ(PcieSpeedGts(0), 0);
  EXPECT_EQ(PcieSpeedGts(99), 0);
}

}  // namespace
}  // namespace mycroft
