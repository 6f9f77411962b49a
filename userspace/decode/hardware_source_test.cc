// SPDX-License-Identifier: Apache-2.0
//
// A host made of files with one GPU behind a switch and one NIC; the test moves the
// clock and changes the files. Kernel probes are played by the test.
#include "userspace/decode/hardware_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "userspace/source/testing/fixture_host.h"

namespace mycroft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr uint64_t kSecond = 1'000'000'000;
constexpr char kRoot[] = "0000:3a:00.0", kUp[] = "0000:3b:00.0", kDown[] = "0000:3c:04.0",
               kGpu[] = "0000:3d:00.0", kNicRoot[] = "0000:17:00.0", kNic[] = "0000:18:00.0";

class FakeProbes : public KernelProbes {
 public:
  void Watch(const std::vector<WatchedProcess>& processes,
             const std::vector<std::string>& addresses) override {
    watched = processes;
    pci = addresses;
  }
  KernelReadings Collect(uint64_t) override {
    ++collected;
    KernelReadings out = next;
    next.events.clear();
    return out;
  }
  void ArmDeep(const std::vector<ProcessKey>& processes, uint64_t until_ns) override {
    armed = processes;
    armed_until_ns = until_ns;
  }

  std::vector<WatchedProcess> watched;
  std::vector<std::string> pci;
  KernelReadings next;
  int collected = 0;
  std::vector<ProcessKey> armed;
  uint64_t armed_until_ns = 0;
};

class HardwareSourceTest : public ::testing::Test {
 protected:
  HardwareSourceTest() {
    const auto config = [](int type, bool acs) {
      return FixtureHost::Config(0x10de, 0x2330, type, 5, true, acs);
    };
    const std::string fast = "32.0 GT/s PCIe";
    host_.AddPci({kRoot}, "0x060400", fast, "16", fast, "16", config(4, true), "pcieport");
    host_.AddPci({kRoot, kUp}, "0x060400", fast, "16", fast, "16", config(5, false), "pcieport");
    host_.AddPci({kRoot, kUp, kDown}, "0x060400", fast, "16", fast, "16", config(6, true),
                 "pcieport");
    host_.AddPci({kRoot, kUp, kDown, kGpu}, "0x030200", fast, "16", fast, "16", config(0, false),
                 "nvidia");
    host_.AddPci({kNicRoot}, "0x060400", fast, "16", fast, "16", config(4, false), "pcieport");
    host_.AddPci({kNicRoot, kNic}, "0x020700", fast, "16", fast, "16", config(0, false),
                 "mlx5_core");
    host_.AddNvidia(2, kGpu);
    host_.AddRdma("mlx5_0", "uverbs0",
                  std::string("devices/pci0000:17/") + kNicRoot + "/" + kNic, "eth0");
    host_.AddRdma("mlx5_9", "uverbs9", "", "mgmt0");  // nobody has it open
    host_.AddProcess(7, {"/dev/nvidia2", "/dev/infiniband/uverbs0"});
    options_.proc_root = host_.proc();
    options_.sys_root = host_.sys();
    options_.inline_poll = true;
  }
  HardwareReading Tick(HardwareSource& source, uint64_t ns = kSecond) {
    now_ += ns;
    return source.Sample(now_, watched_);
  }
  const PciSample* Find(const HardwareReading& reading, const std::string& address) {
    if (!reading.host) return nullptr;
    for (const PciSample& sample : reading.host->pci) {
      if (sample.address == address) return &sample;
    }
    return nullptr;
  }

  FixtureHost host_;
  HardwareOptions options_;
  uint64_t now_ = 1000 * kSecond;
  std::vector<WatchedProcess> watched_ = {{{7, 777}, {8}, {}, {}}};
};

TEST_F(HardwareSourceTest, SeesTheDevicesOfTheJobAndTheirPaths) {
  HardwareSource source(options_);
  const HardwareReading first = Tick(source);
  ASSERT_TRUE(first.host);
  ASSERT_THAT(first.host->pci, SizeIs(6));
  const PciSample* gpu = Find(first, kGpu);
  ASSERT_NE(gpu, nullptr);
  EXPECT_EQ(gpu->parent, kDown);
  EXPECT_EQ(gpu->kind, PciKind::kGpu);
  EXPECT_EQ(gpu->driver, "nvidia");
  EXPECT_EQ(gpu->numa_node, 1);
  EXPECT_TRUE(gpu->present);
  EXPECT_FALSE(gpu->unreachable);
  EXPECT_EQ(gpu->speed_gts, 32.0);
  EXPECT_EQ(gpu->max_width, 16u);
  EXPECT_EQ(gpu->max_read_request, 4096u);
  EXPECT_EQ(gpu->relaxed_ordering, true);
  EXPECT_EQ(gpu->aer_correctable, 0u);
  EXPECT_EQ(gpu->dma_maps, std::nullopt);
  EXPECT_EQ(Find(first, kDown)->kind, PciKind::kBridge);
  EXPECT_EQ(Find(first, kDown)->parent, kUp);
  EXPECT_EQ(Find(first, kDown)->acs_redirect, true);
  EXPECT_EQ(Find(first, kUp)->acs_redirect, false);
  EXPECT_EQ(Find(first, kRoot)->kind, PciKind::kRootPort);
  EXPECT_EQ(Find(first, kRoot)->parent, "");
  EXPECT_EQ(Find(first, kNic)->kind, PciKind::kNic);
  EXPECT_EQ(Find(first, kNic)->parent, kNicRoot);
  ASSERT_THAT(first.host->nics, SizeIs(1));  // not the management port
  const NicPortSample& port = first.host->nics[0];
  EXPECT_EQ(port.device, "mlx5_0");
  EXPECT_EQ(port.pci, kNic);
  EXPECT_EQ(port.state, "ACTIVE");
  EXPECT_EQ(port.netdev, "eth0");
  EXPECT_THAT(port.gids, SizeIs(2));
  EXPECT_EQ(port.counters.at("port_xmit_data"), 1000u);
  EXPECT_EQ(first.host->iommu, "off");
  EXPECT_EQ(first.host->peer_memory_module, false);
  EXPECT_THAT(first.host->events, IsEmpty());
  EXPECT_EQ(first.host->lost_events, 0u);
  for (const ProbeSample& probe : first.host->probes) {
    EXPECT_EQ(probe.problem, "") << probe.name;
    EXPECT_EQ(probe.lost, "") << probe.name;
    EXPECT_NE(probe.attached, "") << probe.name;
    EXPECT_TRUE(probe.armed) << probe.name;
  }
  EXPECT_THAT(first.host->probes, SizeIs(8));

  ASSERT_EQ(first.processes.size(), 1u);
  const ProcessHardware& process = first.processes.at({7, 777});
  EXPECT_THAT(process.gpus, ElementsAre(kGpu));
  EXPECT_THAT(process.rdma_devices, ElementsAre("mlx5_0"));
  EXPECT_EQ(process.memlock_limit, 8388608u);
  EXPECT_EQ(process.locked_bytes, 3072u * 1024);
  EXPECT_TRUE(process.shm_bytes);
  EXPECT_TRUE(process.shm_free_bytes);
  EXPECT_EQ(process.direct_reclaims, 7u);
  EXPECT_EQ(process.direct_reclaim_ns, 5'000'000u);

  // Nothing changes: nothing is said.
  for (int i = 0; i < 20; ++i) {
    const HardwareReading next = Tick(source);
    EXPECT_FALSE(next.host) << i;
    EXPECT_TRUE(next.processes.empty()) << i;
  }
}

TEST_F(HardwareSourceTest, AtMostOnceASecond) {
  FakeProbes probes;
  options_.probes = &probes;
  HardwareSource source(options_);
  Tick(source);
  host_.SetAer(kGpu, 1, 0, 0);
  for (int i = 0; i < 9; ++i) {
    EXPECT_FALSE(Tick(source, kSecond / 10).host) << i;
  }
  EXPECT_TRUE(Tick(source, kSecond / 10).host);
  EXPECT_EQ(probes.collected, 2);
}

TEST_F(HardwareSourceTest, ALinkThatTrainsDown) {
  HardwareSource source(options_);
  Tick(source);
  host_.Write(host_.PciFolder(kGpu) + "current_link_speed", "5.0 GT/s PCIe\n");
  HardwareReading next = Tick(source);
  ASSERT_TRUE(next.host);
  ASSERT_THAT(next.host->pci, SizeIs(1));
  EXPECT_EQ(next.host->pci[0].speed_gts, 5.0);
  EXPECT_EQ(next.host->pci[0].max_speed_gts, 32.0);
  EXPECT_TRUE(next.processes.empty());
  // A read that fails is empty, not zero; then it is back.
  host_.Write(host_.PciFolder(kGpu) + "current_link_speed", "");
  next = Tick(source);
  ASSERT_THAT(next.host->pci, SizeIs(1));
  EXPECT_EQ(next.host->pci[0].speed_gts, std::nullopt);
  EXPECT_TRUE(next.host->pci[0].present);
  host_.Write(host_.PciFolder(kGpu) + "current_link_speed", "32.0 GT/s PCIe\n");
  EXPECT_EQ(Tick(source).host->pci[0].speed_gts, 32.0);
}

TEST_F(HardwareSourceTest, ErrorCountersSurviveADriverReload) {
  HardwareSource source(options_);
  Tick(source);
  host_.SetAer(kGpu, 5, 1, 0);
  HardwareReading next = Tick(source);
  ASSERT_THAT(next.host->pci, SizeIs(1));
  EXPECT_EQ(next.host->pci[0].aer_correctable, 5u);
  EXPECT_EQ(next.host->pci[0].aer_nonfatal, 1u);
  ASSERT_THAT(next.host->events, SizeIs(2));
  EXPECT_EQ(next.host->events[0].kind, HardwareEventKind::kAer);
  EXPECT_EQ(next.host->events[0].severity, Severity::kCorrected);
  EXPECT_EQ(next.host->events[0].device, kGpu);
  EXPECT_THAT(next.host->events[0].text, HasSubstr("5 correctable"));
  EXPECT_EQ(next.host->events[1].severity, Severity::kNonFatal);
  host_.SetAer(kGpu, 0, 0, 0);
  EXPECT_FALSE(Tick(source).host);  // a reset is not negative: nothing has changed
  host_.SetAer(kGpu, 2, 0, 0);
  next = Tick(source);
  EXPECT_EQ(next.host->pci[0].aer_correctable, 7u);
  EXPECT_THAT(next.host->events[0].text, HasSubstr("2 correctable"));
  // Unreadable for a while, and meanwhile reset again.
  host_.Remove(host_.PciFolder(kGpu) + "aer_dev_correctable");
  EXPECT_EQ(Tick(source).host->pci[0].aer_correctable, std::nullopt);
  host_.SetAer(kGpu, 1, 0, 0);
  EXPECT_EQ(Tick(source).host->pci[0].aer_correctable, 8u);
}

TEST_F(HardwareSourceTest, AGpuThatFallsOffTheBusAndIsRemoved) {
  HardwareSource source(options_);
  Tick(source);
  host_.Write(host_.PciFolder(kGpu) + "config", std::string(4096, '\xff'));
  HardwareReading next = Tick(source);
  ASSERT_NE(Find(next, kGpu), nullptr);
  EXPECT_TRUE(Find(next, kGpu)->unreachable);
  EXPECT_TRUE(Find(next, kGpu)->present);
  EXPECT_EQ(Find(next, kGpu)->speed_gts, std::nullopt);
  // The driver forgets it, the process still has its node open.
  host_.RemovePci(kGpu);
  host_.Remove("proc/driver/nvidia/gpus");
  next = Tick(source);
  ASSERT_NE(Find(next, kGpu), nullptr);
  EXPECT_FALSE(Find(next, kGpu)->present);
  EXPECT_EQ(Find(next, kGpu)->parent, kDown);  // where it was
  ASSERT_THAT(next.host->events, SizeIs(1));
  EXPECT_EQ(next.host->events[0].kind, HardwareEventKind::kPciRemoved);
  EXPECT_EQ(next.host->events[0].device, kGpu);
  EXPECT_FALSE(Tick(source).host);  // told once
  // It comes back.
  host_.AddPci({kRoot, kUp, kDown, kGpu}, "0x030200", "32.0 GT/s PCIe", "16", "32.0 GT/s PCIe",
               "16");
  next = Tick(source);
  ASSERT_NE(Find(next, kGpu), nullptr);
  EXPECT_TRUE(Find(next, kGpu)->present);
}

TEST_F(HardwareSourceTest, AFailedReadOfTheBusIsNotAMissingDevice) {
  HardwareSource source(options_);
  Tick(source);
  std::filesystem::rename(host_.sys() + "/bus", host_.sys() + "/hidden");
  const HardwareReading next = Tick(source);
  ASSERT_TRUE(next.host);  // the probe's row says it
  EXPECT_THAT(next.host->pci, IsEmpty());
  EXPECT_THAT(next.host->events, IsEmpty());
  bool said = false;
  for (const ProbeSample& probe : next.host->probes) {
    if (probe.name == "poll.pcie_link") said = !probe.problem.empty() && !probe.lost.empty();
  }
  EXPECT_TRUE(said);
}

TEST_F(HardwareSourceTest, APortThatFlapsAndADeviceThatGoes) {
  HardwareSource source(options_);
  Tick(source);
  const std::string port = "sys/class/infiniband/mlx5_0/ports/1/";
  host_.Write(port + "state", "1: DOWN\n");
  host_.Write(port + "counters/link_downed", "1\n");
  HardwareReading next = Tick(source);
  ASSERT_THAT(next.host->nics, SizeIs(1));
  EXPECT_EQ(next.host->nics[0].state, "DOWN");
  EXPECT_EQ(next.host->nics[0].counters.at("link_downed"), 1u);
  EXPECT_THAT(next.host->nics[0].gids, IsEmpty());  // unchanged
  ASSERT_THAT(next.host->events, SizeIs(1));
  EXPECT_EQ(next.host->events[0].kind, HardwareEventKind::kPortState);
  EXPECT_EQ(next.host->events[0].device, "mlx5_0");
  EXPECT_THAT(next.host->events[0].text, HasSubstr("ACTIVE to DOWN"));
  // A read that fails is no event.
  host_.Write(port + "state", "");
  next = Tick(source);
  EXPECT_EQ(next.host->nics[0].state, "");
  EXPECT_THAT(next.host->events, IsEmpty());
  host_.Write(port + "state", "4: ACTIVE\n");
  host_.Write(port + "counters/port_xmit_data", "10\n");  // reset
  next = Tick(source);
  EXPECT_EQ(next.host->nics[0].counters.at("port_xmit_data"), 1010u);
  ASSERT_THAT(next.host->events, SizeIs(1));
  EXPECT_THAT(next.host->events[0].text, HasSubstr("DOWN to ACTIVE"));
  // Another GID: the table is looked at every ten seconds.
  host_.Write(port + "gids/2", "0000:0000:0000:0000:0000:ffff:0a09:0002\n");
  size_t gids = 0;
  for (int i = 0; i < 10; ++i) {
    next = Tick(source);
    if (next.host && !next.host->nics.empty()) gids = next.host->nics[0].gids.size();
  }
  EXPECT_EQ(gids, 3u);
  // The device goes; the process has its node open.
  host_.Remove("sys/class/infiniband/mlx5_0");
  next = Tick(source);
  ASSERT_THAT(next.host->nics, SizeIs(1));
  EXPECT_EQ(next.host->nics[0].state, "ABSENT");
  ASSERT_THAT(next.host->events, SizeIs(1));
  // The whole class unreadable is not a device that is gone.
  host_.Remove("sys/class/infiniband");
  next = Tick(source);
  EXPECT_THAT(next.host->events, IsEmpty());
}

TEST_F(HardwareSourceTest, ProcessesComeAndGo) {
  HardwareSource source(options_);
  Tick(source);
  host_.AddProcess(9, {"/dev/null"});
  watched_.push_back({{9, 777}, {}, {}, {}});
  HardwareReading next = Tick(source);
  ASSERT_EQ(next.processes.size(), 1u);
  EXPECT_THAT(next.processes.at({9, 777}).gpus, IsEmpty());
  // It opens its devices later.
  host_.Link("proc/9/fd/1", "/dev/nvidia2");
  next = Tick(source);
  ASSERT_EQ(next.processes.size(), 1u);
  EXPECT_THAT(next.processes.at({9, 777}).gpus, ElementsAre(kGpu));
  EXPECT_FALSE(next.host);  // the GPU is known
  // An OOM kill in its group.
  host_.Write("sys/fs/cgroup/job/9/memory.events", "high 3\nmax 9\noom 1\noom_kill 1\n");
  next = Tick(source);
  EXPECT_EQ(next.processes.at({9, 777}).direct_reclaims, 12u);
  ASSERT_TRUE(next.host);
  ASSERT_THAT(next.host->events, SizeIs(1));
  EXPECT_EQ(next.host->events[0].kind, HardwareEventKind::kOomKill);
  EXPECT_EQ(next.host->events[0].pid, 9u);
  // Both end: their devices are no longer looked at, and nothing is said of that.
  host_.Remove("proc/9");
  host_.Remove("proc/7");
  next = Tick(source);
  EXPECT_FALSE(next.host);
  watched_.clear();
  host_.RemovePci(kGpu);
  EXPECT_FALSE(Tick(source).host);
}

TEST_F(HardwareSourceTest, AnotherProcessWithTheSamePidIsNotThisOne) {
  HardwareSource source(options_);
  watched_[0].key.start_time = 5;
  const HardwareReading first = Tick(source);
  EXPECT_TRUE(first.processes.empty());
  EXPECT_THAT(first.host->pci, IsEmpty());
}

TEST_F(HardwareSourceTest, SaysWhatItCannotSee) {
  host_.Remove("proc/driver");
  host_.Remove("proc/7/limits");
  host_.Write("proc/7/mountinfo", "26 24 0:25 / /dev/shm rw - fuse fuse rw\n");
  host_.Remove("sys/fs");
  host_.Write(host_.PciFolder(kNic) + "config", std::string("\xb3\x15\x21\x10", 4) +
                                                    std::string(60, '\0'));
  for (const char* address : {kNic, kNicRoot}) {
    for (const char* name : {"aer_dev_correctable", "aer_dev_fatal"}) {
      host_.Remove(host_.PciFolder(address) + name);
    }
  }
  HardwareSource source(options_);
  const HardwareReading first = Tick(source);
  ASSERT_TRUE(first.host);
  std::vector<std::string> troubled;
  for (const ProbeSample& probe : first.host->probes) {
    if (probe.problem.empty()) continue;
    troubled.push_back(probe.name);
    EXPECT_FALSE(probe.lost.empty()) << probe.name;
  }
  EXPECT_THAT(troubled, UnorderedElementsAre("poll.devices", "poll.pcie_config", "poll.pcie_aer",
                                             "poll.limits", "poll.shm", "poll.memory"));
}

TEST_F(HardwareSourceTest, JoinsTheKernelProbes) {
  FakeProbes probes;
  options_.probes = &probes;
  HardwareSource source(options_);
  QpSample qp;
  qp.device = "mlx5_0";
  qp.number = 300;
  qp.created_ns = 5;
  qp.posts[kQpWrite] = 10;
  MrSample mr;
  mr.device = "mlx5_0";
  mr.registrations = 3;
  ThreadDelaySample delay;
  delay.tid = 8;
  delay.runq_ns = 100;
  KernelProcessRows& rows = probes.next.processes[{7, 777}];
  rows.qps = {qp};
  rows.mrs = {mr};
  rows.delays = {delay};
  rows.direct_reclaim_ns = 11;
  rows.tcp_retransmits = 4;
  probes.next.devices[kGpu].dma_maps = 9;
  ProbeSample probe;
  probe.name = "verbs.post_send";
  probe.attached = "uprobe x";
  probes.next.probes = {probe};
  probes.next.lost_events = 2;
  HardwareReading next = Tick(source);
  EXPECT_EQ(probes.watched[0].tids, std::vector<uint32_t>{8});
  EXPECT_THAT(probes.watched[0].gpus, ElementsAre(kGpu));
  EXPECT_THAT(probes.watched[0].rdma_devices, ElementsAre("mlx5_0"));
  EXPECT_THAT(probes.pci, SizeIs(6));
  EXPECT_EQ(Find(next, kGpu)->dma_maps, 9u);
  EXPECT_THAT(next.host->probes, SizeIs(9));
  EXPECT_EQ(next.host->lost_events, 2u);
  const ProcessHardware& process = next.processes.at({7, 777});
  EXPECT_THAT(process.qps, ElementsAre(qp));
  EXPECT_THAT(process.mrs, ElementsAre(mr));
  EXPECT_THAT(process.delays, ElementsAre(delay));
  EXPECT_EQ(process.direct_reclaim_ns, 11u);  // the probes know better
  EXPECT_EQ(process.direct_reclaims, 7u);     // not attached: the cgroup
  EXPECT_EQ(process.tcp_retransmits, 4u);

  next = Tick(source);  // the same again
  EXPECT_FALSE(next.host);
  EXPECT_TRUE(next.processes.empty());

  // Only what has changed. A queue pair that moves: every three seconds.
  Tick(source, 2 * kSecond);
  rows.qps[0].posts[kQpWrite] = 11;
  probes.next.devices[kGpu].dma_maps = 10;
  next = Tick(source);
  ASSERT_EQ(next.processes.size(), 1u);
  EXPECT_THAT(next.processes.at({7, 777}).qps, SizeIs(1));
  EXPECT_EQ(next.processes.at({7, 777}).qps[0].posts[kQpWrite], 11u);
  EXPECT_THAT(next.processes.at({7, 777}).mrs, IsEmpty());
  EXPECT_THAT(next.processes.at({7, 777}).gpus, ElementsAre(kGpu));
  EXPECT_THAT(next.host->pci, SizeIs(1));
  // Memory through dmabuf is a peer memory path, module or not.
  rows.mrs[0].dmabuf = 1;
  EXPECT_EQ(Tick(source).host->peer_memory_module, true);
  // A probe that is armed.
  probes.next.probes[0].armed = true;
  next = Tick(source);
  ASSERT_THAT(next.host->probes, SizeIs(1));
  EXPECT_TRUE(next.host->probes[0].armed);
  // Its counters alone: once a minute.
  probes.next.probes[0].hits = 5;
  EXPECT_FALSE(Tick(source).host);
  next = Tick(source, 60 * kSecond);
  ASSERT_TRUE(next.host);
  bool hits = false;
  for (const ProbeSample& row : next.host->probes) hits |= row.hits == 5;
  EXPECT_TRUE(hits);

  source.ArmDeep({{7, 777}}, 99);
  EXPECT_THAT(probes.armed, SizeIs(1));
  EXPECT_EQ(probes.armed_until_ns, 99u);
}

TEST_F(HardwareSourceTest, AMovingQueuePairIsToldNowAndThenAStandingOneAtOnce) {
  FakeProbes probes;
  options_.probes = &probes;
  HardwareSource source(options_);
  KernelProcessRows& rows = probes.next.processes[{7, 777}];
  rows.qps.resize(1);
  QpSample& qp = rows.qps[0];
  qp.number = 300;
  const auto told = [&] {
    const HardwareReading reading = Tick(source);
    const auto it = reading.processes.find({7, 777});
    return it == reading.processes.end() ? 0 : it->second.qps.size();
  };
  EXPECT_EQ(told(), 1u);  // new
  std::vector<size_t> moving;
  for (int i = 0; i < 6; ++i) {
    ++qp.posts[kQpWrite];
    moving.push_back(told());
  }
  EXPECT_THAT(moving, ElementsAre(0, 0, 1, 0, 0, 1));
  ++qp.posts[kQpWrite];
  EXPECT_EQ(told(), 0u);
  EXPECT_EQ(told(), 1u);  // it stands still
  EXPECT_EQ(told(), 0u);
  ++qp.posts[kQpWrite];
  qp.state = QpState::kError;
  EXPECT_EQ(told(), 1u);  // more than a counter
  qp.completions_seen = true;
  EXPECT_EQ(told(), 1u);
  for (int i = 0; i < 3; ++i) {
    ++qp.completions;
    EXPECT_EQ(told(), 1u);  // deep mode
  }
}

TEST_F(HardwareSourceTest, ADestroyedQueuePairIsToldOnceAndItsNumberMayComeBack) {
  FakeProbes probes;
  options_.probes = &probes;
  HardwareSource source(options_);
  QpSample qp;
  qp.number = 300;
  qp.created_ns = 5;
  KernelProcessRows& rows = probes.next.processes[{7, 777}];
  rows.qps = {qp};
  Tick(source);
  rows.qps[0].destroyed = true;
  HardwareReading next = Tick(source);
  ASSERT_THAT(next.processes.at({7, 777}).qps, SizeIs(1));
  EXPECT_TRUE(next.processes.at({7, 777}).qps[0].destroyed);
  rows.qps.clear();
  EXPECT_TRUE(Tick(source).processes.empty());
  qp.created_ns = 17;
  rows.qps = {qp};
  next = Tick(source);
  ASSERT_THAT(next.processes.at({7, 777}).qps, SizeIs(1));
  EXPECT_EQ(next.processes.at({7, 777}).qps[0].created_ns, 17u);
}

TEST_F(HardwareSourceTest, WhatTheKernelTellsThePollDoesNotTellAgain) {
  FakeProbes probes;
  options_.probes = &probes;
  HardwareSource source(options_);
  Tick(source);
  HardwareEvent aer;
  aer.kind = HardwareEventKind::kAer;
  aer.device = kGpu;
  aer.t_ns = now_ + 1;
  aer.text = "kernel";
  probes.next.events = {aer};
  host_.SetAer(kGpu, 1, 0, 0);
  host_.SetAer(kNic, 1, 0, 0);
  const HardwareReading next = Tick(source);
  ASSERT_THAT(next.host->events, SizeIs(2));
  EXPECT_EQ(next.host->events[0].text, "kernel");
  EXPECT_EQ(next.host->events[1].device, kNic);
  EXPECT_THAT(next.host->pci, SizeIs(2));
}

TEST_F(HardwareSourceTest, AFloodOfEventsIsCutAndCounted) {
  FakeProbes probes;
  options_.probes = &probes;
  HardwareSource source(options_);
  Tick(source);
  probes.next.events.resize(5000);
  probes.next.lost_events = 7;
  HardwareReading next = Tick(source);
  EXPECT_THAT(next.host->events, SizeIs(1024));
  EXPECT_EQ(next.host->lost_events, 7u + 5000 - 1024);
}

// Everything below the roots is replaced by nonsense, file by file, or vanishes.
TEST_F(HardwareSourceTest, AnythingInTheFiles) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(host_.root())) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  ASSERT_GT(files.size(), 80u);
  const std::vector<std::string> contents = {
      "", "\n", "-1\n", "nonsense", std::string(100000, 'x'), std::string(300, '\0'),
      std::string("a\0b\n", 4), "18446744073709551616\n", "4: \n", "1: 1: 1:\n", "/ / / / -",
      std::string(4096, '\xff'), "TOTAL_ 5\n", "0000:3d:00.0\n", "../../../..\n"};
  HardwareSource source(options_);
  Tick(source);
  size_t round = 0;
  for (const std::filesystem::path& file : files) {
    const std::string& content = contents[round++ % contents.size()];
    std::filesystem::remove(file);
    if (round % 7 != 0) std::ofstream(file, std::ios::binary) << content;
    const HardwareReading next = Tick(source);
    if (!next.host) continue;
    for (const NicPortSample& port : next.host->nics) EXPECT_LE(port.gids.size(), 256u);
    for (const PciSample& pci : next.host->pci) EXPECT_TRUE(pci.width.value_or(1) <= 32);
  }
}

TEST_F(HardwareSourceTest, InTheBackground) {
  options_.inline_poll = false;
  HardwareSource source(options_);
  HardwareReading reading;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!reading.host && std::chrono::steady_clock::now() < deadline) {
    reading = Tick(source, kSecond / 10);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_TRUE(reading.host);
  EXPECT_THAT(reading.host->pci, SizeIs(6));
  EXPECT_EQ(reading.processes.size(), 1u);
  EXPECT_THAT(source.blind_spots(), IsEmpty());
}

// A device whose firmware does not answer holds the poll; the ticks go on, with what
// the kernel probes tell.
TEST_F(HardwareSourceTest, APollThatHangsDoesNotStopTheTicks) {
  struct Gate {
    std::atomic<bool> open{false};
    std::atomic<int> polls{0};
  };
  auto gate = std::make_shared<Gate>();
  FakeProbes probes;
  options_.probes = &probes;
  options_.inline_poll = false;
  options_.poll = [gate](uint64_t, const std::vector<ProcessKey>&) {
    ++gate->polls;
    while (!gate->open) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    PolledHardware polled;
    polled.iommu = "off";
    return polled;
  };
  {
    HardwareSource source(options_);
    for (int i = 0; i < 10; ++i) Tick(source);
    EXPECT_EQ(probes.collected, 10);
    ASSERT_THAT(source.blind_spots(), SizeIs(1));
    EXPECT_THAT(source.blind_spots()[0].lost, HasSubstr("ports"));
    gate->open = true;
    HardwareReading reading;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!reading.host && std::chrono::steady_clock::now() < deadline) {
      reading = Tick(source, kSecond / 10);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_TRUE(reading.host);
    EXPECT_EQ(reading.host->iommu, "off");
    EXPECT_THAT(source.blind_spots(), IsEmpty());
    // The source goes while a poll hangs: it does not wait for ever.
    gate->open = false;
    const int before = gate->polls;
    while (gate->polls == before) Tick(source);
  }
  gate->open = true;
}

}  // namespace
}  // namespace mycroft
