// SPDX-License-Identifier: Apache-2.0
#include "userspace/model/devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "userspace/model/hardware.h"

namespace mycroft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kRoot[] = "0000:3a:00.0", kUp[] = "0000:3b:00.0", kDown[] = "0000:3c:04.0",
               kGpu[] = "0000:3d:00.0", kNic[] = "0000:3e:00.0", kDown2[] = "0000:3c:05.0";

PciSample Function(const char* address, const char* parent, PciKind kind) {
  PciSample pci;
  pci.address = address;
  pci.parent = parent;
  pci.kind = kind;
  pci.speed_gts = pci.max_speed_gts = 32;
  pci.width = pci.max_width = 16;
  return pci;
}

// A GPU and a NIC behind one switch, used by two processes; a software RDMA device.
Snapshot Host() {
  Snapshot snapshot;
  snapshot.host = "node-a";
  snapshot.t_ns = 5;
  HardwareSample& hardware = snapshot.hardware.emplace();
  hardware.pci = {Function(kRoot, "", PciKind::kRootPort), Function(kUp, kRoot, PciKind::kBridge),
                  Function(kDown, kUp, PciKind::kBridge), Function(kDown2, kUp, PciKind::kBridge),
                  Function(kGpu, kDown, PciKind::kGpu), Function(kNic, kDown2, PciKind::kNic)};
  for (const char* name : {"mlx5_0", "rxeA", "mgmt"}) {
    NicPortSample port;
    port.device = name;
    port.state = "ACTIVE";
    port.phys_state = "LinkUp";
    port.rate_gbps = 400;
    hardware.nics.push_back(port);
  }
  hardware.nics[0].pci = kNic;
  hardware.nics[0].netdev = "eth0";
  for (const uint32_t pid : {7u, 8u}) {
    ProcessSample process;
    process.key = {pid, 1};
    process.hardware.emplace();
    process.hardware->gpus = {kGpu};
    process.hardware->rdma_devices = {"mlx5_0", "rxeA"};
    snapshot.processes.push_back(process);
  }
  return snapshot;
}

std::vector<DeviceView> Look(const Snapshot& snapshot) {
  HardwareModel model;
  model.Apply(snapshot);
  return DevicesOf(model);
}

TEST(Devices, HealthyOnes) {
  const std::vector<DeviceView> devices = Look(Host());
  ASSERT_THAT(devices, SizeIs(3));  // not the port that nobody has open
  const DeviceView& gpu = devices[0];
  EXPECT_EQ(DeviceName(gpu), "GPU 0000:3d:00.0");
  EXPECT_EQ(gpu.host, "node-a");
  ASSERT_THAT(gpu.path, SizeIs(4));
  EXPECT_EQ(gpu.path[3].address, kRoot);
  EXPECT_EQ(gpu.path[0].link, "32 GT/s x16");
  EXPECT_EQ(gpu.path[0].width, 16u);
  EXPECT_EQ(gpu.path[0].speed_gts, 32.0);
  EXPECT_NEAR(gpu.bytes_per_s, 63e9, 0.1e9);
  EXPECT_FALSE(gpu.degraded());
  EXPECT_THAT(gpu.problems, IsEmpty());
  EXPECT_THAT(gpu.processes, ElementsAre(ProcessKey{7, 1}, ProcessKey{8, 1}));
  EXPECT_EQ(PathText(gpu),
            "0000:3d:00.0 32 GT/s x16 > 0000:3c:04.0 32 GT/s x16 > 0000:3b:00.0 32 GT/s x16 > "
            "0000:3a:00.0 32 GT/s x16");
  const DeviceView& nic = devices[1];
  EXPECT_EQ(DeviceName(nic), "NIC 0000:3e:00.0 (mlx5_0)");
  ASSERT_THAT(nic.ports, SizeIs(1));  // once, for both processes
  EXPECT_EQ(PortText(nic.ports[0]), "port 1 ACTIVE LinkUp 400 Gb/s eth0");
  EXPECT_TRUE(nic.ports[0].active);
  EXPECT_EQ(DeviceName(devices[2]), "rxeA");
  EXPECT_THAT(devices[2].path, IsEmpty());
  EXPECT_THAT(devices[2].problems, IsEmpty());
}

TEST(Devices, TheNarrowestHopIsNotTheDevice) {
  Snapshot snapshot = Host();
  // The switch is of an older generation: nothing is degraded, but the path is slower.
  for (size_t hop : {0, 1}) snapshot.hardware->pci[hop].speed_gts = 16;
  snapshot.hardware->pci[1].max_speed_gts = 16;
  DeviceView gpu = Look(snapshot)[0];
  EXPECT_NEAR(gpu.bytes_per_s, 31.5e9, 0.1e9);
  EXPECT_EQ(gpu.narrowest, kUp);
  EXPECT_FALSE(gpu.degraded());
  // Now its width is lost, too.
  snapshot.hardware->pci[1].width = 8;
  gpu = Look(snapshot)[0];
  EXPECT_TRUE(gpu.degraded());
  ASSERT_THAT(gpu.problems, SizeIs(1));
  EXPECT_THAT(gpu.problems[0], HasSubstr("0000:3b:00.0 runs at 16 GT/s x8"));
  EXPECT_THAT(gpu.problems[0], HasSubstr("16 GT/s x16"));
  EXPECT_THAT(PathText(gpu), HasSubstr("0000:3b:00.0 16 GT/s x8 of 16 GT/s x16"));
}

TEST(Devices, WhatIsWrong) {
  Snapshot snapshot = Host();
  std::vector<PciSample>& pci = snapshot.hardware->pci;
  pci[0].acs_redirect = true;  // at the root it changes nothing
  EXPECT_THAT(Look(snapshot)[0].problems, IsEmpty());
  pci[2].acs_redirect = true;
  pci[4].unreachable = true;
  pci[4].aer_fatal = 2;
  pci[5].present = false;
  snapshot.hardware->nics[0].state = "DOWN";
  snapshot.hardware->nics[1].state = "";  // a failed read is not a port that is down
  const std::vector<DeviceView> devices = Look(snapshot);
  ASSERT_THAT(devices, SizeIs(3));
  EXPECT_THAT(devices[0].problems,
              ElementsAre(HasSubstr("does not answer"), HasSubstr("0000:3c:04.0 to the root"),
                          HasSubstr("2 fatal")));
  EXPECT_THAT(devices[1].problems, ElementsAre(HasSubstr("gone"), HasSubstr("mlx5_0 is DOWN")));
  EXPECT_THAT(devices[2].problems, IsEmpty());
  EXPECT_THAT(PortText(devices[2].ports[0]), HasSubstr("unreadable"));
}

TEST(Devices, GpusAsTheirDriverSeesThem) {
  HardwareModel model;
  Snapshot snapshot = Host();
  GpuSample gpu;
  gpu.address = kGpu;
  gpu.sm_mhz = 1980;
  gpu.sm_max_mhz = 1980;
  gpu.temperature_c = 61;
  gpu.nvlinks = {{0, true, {}, {}, {}}, {1, true, {}, {}, {}}};
  snapshot.hardware->gpus = {gpu};
  model.Apply(snapshot);
  DeviceView view = DevicesOf(model)[0];
  ASSERT_EQ(view.address, kGpu);
  EXPECT_EQ(HealthText(view), "1980 of 1980 MHz, 61 C, 2 of 2 NVLinks");
  EXPECT_THAT(view.problems, IsEmpty());
  gpu.clock_reasons = clock_reason::kHardwareThermal;
  gpu.nvlinks[1].active = false;
  gpu.remap_failed = true;
  snapshot.hardware->gpus = {gpu};
  model.Apply(snapshot);
  EXPECT_THAT(DevicesOf(model)[0].problems,
              ElementsAre("thermal slowdown at 61 C", "a row of its memory could not be remapped",
                          "NVLink 1 is down"));
  gpu.silent_since_ns = 1;
  gpu.hangs = true;
  snapshot.hardware->gpus = {gpu};
  model.Apply(snapshot);
  EXPECT_THAT(DevicesOf(model)[0].problems,
              ElementsAre("the driver was asked about it and does not come back"));
}

TEST(Devices, OnlyThoseOfProcessesThatRun) {
  HardwareModel model;
  Snapshot snapshot = Host();
  model.Apply(snapshot);
  Snapshot later;
  later.host = snapshot.host;
  later.t_ns = 6;
  later.processes.resize(1);
  later.processes[0].key = {7, 1};
  later.processes[0].status = ProcessStatus::kExited;
  model.Apply(later);
  ASSERT_THAT(DevicesOf(model), SizeIs(3));
  EXPECT_THAT(DevicesOf(model)[0].processes, ElementsAre(ProcessKey{8, 1}));
  later.processes[0].key = {8, 1};
  later.t_ns = 7;
  model.Apply(later);
  EXPECT_THAT(DevicesOf(model), IsEmpty());
}

TEST(Devices, AProbeThatIsAttachedWithAProblemIsDegraded) {
  ProbeSample probe;
  EXPECT_TRUE(Degraded(probe));
  probe.attached = "poll";
  EXPECT_FALSE(Degraded(probe));
  probe.problem = "by a poorer way";
  EXPECT_TRUE(Degraded(probe));
}

}  // namespace
}  // namespace mycroft
