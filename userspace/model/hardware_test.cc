// SPDX-License-Identifier: Apache-2.0
#include "userspace/model/hardware.h"

#include <gtest/gtest.h>

#include <limits>

namespace mycroft {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

Snapshot Tick(const std::string& host, uint64_t t_ns) {
  Snapshot snapshot;
  snapshot.host = host;
  snapshot.t_ns = t_ns;
  snapshot.hardware.emplace();
  return snapshot;
}

PciSample Device(const std::string& address, const std::string& parent, PciKind kind,
                 double speed = 16, uint32_t width = 16) {
  PciSample pci;
  pci.address = address;
  pci.parent = parent;
  pci.kind = kind;
  pci.speed_gts = speed;
  pci.max_speed_gts = 16;
  pci.width = width;
  pci.max_width = 16;
  return pci;
}

ProcessSample Process(uint32_t pid) {
  ProcessSample process;
  process.key = {pid, 1};
  process.hardware.emplace();
  return process;
}

QpSample Pair(const std::string& device, uint32_t number, uint64_t created_ns) {
  QpSample qp;
  qp.device = device;
  qp.port = 1;
  qp.number = number;
  qp.created_ns = created_ns;
  return qp;
}

TEST(CounterHistory, IncreasesBetweenTwoTimes) {
  CounterHistory counter;
  EXPECT_FALSE(counter.Increase(0, 100));
  counter.Add(10, 5);
  counter.Add(20, 5);
  counter.Add(30, 9);
  EXPECT_FALSE(counter.Increase(0, 9));    // never read by then
  EXPECT_EQ(counter.Increase(0, 20), 0u);  // what it was before is not known
  EXPECT_EQ(counter.Increase(0, 30), 4u);
  EXPECT_EQ(counter.Increase(10, 29), 0u);
  EXPECT_EQ(counter.Increase(30, 99), 0u);
  EXPECT_EQ(counter.FirstRise(0, 99), 30u);
  EXPECT_EQ(counter.FirstRise(30, 99), 0u);
}

TEST(CounterHistory, ResetIsNotNegative) {
  CounterHistory counter;
  counter.Add(1, 1000);
  counter.Add(2, 3);  // the driver was loaded again
  EXPECT_EQ(counter.resets(), 1u);
  EXPECT_EQ(counter.Increase(1, 2), 3u);
  counter.Add(3, 4);
  EXPECT_EQ(counter.Increase(1, 3), 4u);
  counter.Add(2, 900);  // out of order: not taken
  EXPECT_EQ(counter.last(), 1004u);
}

TEST(CounterHistory, HostileValuesSaturate) {
  CounterHistory counter;
  counter.Add(1, UINT64_MAX);
  counter.Add(2, 0);
  counter.Add(3, UINT64_MAX);
  EXPECT_EQ(counter.last(), UINT64_MAX);
  EXPECT_EQ(counter.Increase(1, 3), 0u);
}

TEST(CounterHistory, IsBoundedAndKeepsItsBegin) {
  CounterHistory counter(16);
  for (uint64_t i = 1; i <= 100'000; ++i) counter.Add(i, 2 * i);
  EXPECT_LE(counter.points().size(), 16u);
  EXPECT_EQ(counter.Increase(0, 100'000), 2u * 100'000 - 2);
  EXPECT_EQ(counter.Increase(99'998, 100'000), 4u);
}

TEST(Link, BytesPerSecond) {
  EXPECT_NEAR(LinkBytesPerSecond({2.5, 1}), 250e6, 1);
  EXPECT_NEAR(LinkBytesPerSecond({16.0, 16}), 31.5e9, 0.1e9);
  EXPECT_EQ(LinkBytesPerSecond({16.0, std::nullopt}), 0);
  EXPECT_EQ(LinkBytesPerSecond({-1.0, 16}), 0);
  EXPECT_EQ(LinkBytesPerSecond({std::numeric_limits<double>::quiet_NaN(), 16}), 0);
  EXPECT_EQ(ToString(Link{8.0, 4}), "8 GT/s x4");
  EXPECT_EQ(ToString(Link{}), "unknown");
}

TEST(HardwareModel, NothingWithoutSamples) {
  HardwareModel model;
  Snapshot snapshot;
  snapshot.host = "a";
  snapshot.processes.emplace_back();
  model.Apply(snapshot);
  EXPECT_FALSE(model.any());
  EXPECT_TRUE(model.hosts().empty());
}

TEST(HardwareModel, PathToRootAndCommonBridge) {
  HardwareModel model;
  Snapshot tick = Tick("a", kSecond);
  tick.hardware->pci = {
      Device("root", "", PciKind::kRootPort),     Device("up", "root", PciKind::kBridge),
      Device("down0", "up", PciKind::kBridge),    Device("down1", "up", PciKind::kBridge),
      Device("gpu", "down0", PciKind::kGpu),      Device("nic", "down1", PciKind::kNic),
      Device("loop0", "loop1", PciKind::kBridge), Device("loop1", "loop0", PciKind::kBridge)};
  model.Apply(tick);
  const HostHardware& host = *model.FindHost("a");
  auto path = HardwareModel::PathToRoot(host, "gpu");
  ASSERT_EQ(path.size(), 4u);
  EXPECT_EQ(path[0]->now.address, "gpu");
  EXPECT_EQ(path[3]->now.address, "root");
  EXPECT_EQ(HardwareModel::CommonBridge(host, "gpu", "nic")->now.address, "up");
  EXPECT_EQ(HardwareModel::CommonBridge(host, "gpu", "none"), nullptr);
  EXPECT_EQ(HardwareModel::PathToRoot(host, "loop0").size(), 2u);
  EXPECT_TRUE(HardwareModel::PathToRoot(host, "none").empty());
}

TEST(HardwareModel, BestLinkIsWhatBothEndsAllow) {
  // A slow card in a fast slot is no fault; a fast card below an unseen bridge is not judged.
  HardwareModel model;
  Snapshot tick = Tick("a", kSecond);
  PciSample card = Device("card", "root", PciKind::kNic, 8, 8);
  card.max_speed_gts = 8;
  card.max_width = 8;
  tick.hardware->pci = {Device("root", "", PciKind::kRootPort, 8, 8), card,
                        Device("orphan", "unseen", PciKind::kGpu, 2.5)};
  model.Apply(tick);
  const HostHardware& host = *model.FindHost("a");
  EXPECT_EQ(host.pci.at("card").best, (Link{8.0, 8}));
  EXPECT_EQ(host.pci.at("root").best, (Link{8.0, 8}));
  EXPECT_FALSE(host.pci.at("orphan").best.known());
}

TEST(HardwareModel, AllOnesAreNoValuesAndGoneIsRemembered) {
  HardwareModel model;
  Snapshot tick = Tick("a", kSecond);
  tick.hardware->pci = {Device("gpu", "", PciKind::kGpu)};
  model.Apply(tick);
  tick = Tick("a", 2 * kSecond);
  PciSample dead = Device("gpu", "", PciKind::kGpu, 63, 63);
  dead.unreachable = true;
  dead.aer_fatal = UINT32_MAX;
  tick.hardware->pci = {dead};
  model.Apply(tick);
  const PciDevice& gpu = model.FindHost("a")->pci.at("gpu");
  EXPECT_EQ(gpu.unreachable_ns, 2 * kSecond);
  EXPECT_EQ(gpu.link.changes().size(), 1u);
  EXPECT_FALSE(gpu.aer_fatal.known());
  tick = Tick("a", 3 * kSecond);
  dead.present = false;
  tick.hardware->pci = {dead};
  model.Apply(tick);
  EXPECT_EQ(gpu.gone_ns, 3 * kSecond);
}

TEST(HardwareModel, LinkIsJudgedUnderLoadOnly) {
  CounterHistory traffic;
  HardwareModel model;
  auto speed = [&](uint64_t s, double gts) {
    Snapshot tick = Tick("a", s * kSecond);
    tick.hardware->pci = {Device("gpu", "", PciKind::kGpu, gts)};
    model.Apply(tick);
  };
  uint64_t bytes = 0;
  auto load = [&](uint64_t s, uint64_t gbytes) {
    bytes += gbytes * kSecond;
    traffic.Add(s * kSecond, bytes);
  };
  for (uint64_t s = 1; s <= 10; ++s) {
    load(s, 5);
    speed(s, 16);
  }
  for (uint64_t s = 11; s <= 20; ++s) speed(s, 2.5);  // idle: it saves power
  speed(21, 16);
  for (uint64_t s = 21; s <= 30; ++s) load(s, 5);
  const PciDevice& gpu = model.FindHost("a")->pci.at("gpu");
  LinkUnderLoad judged = JudgeLink(gpu, traffic, 0, 30 * kSecond);
  EXPECT_GE(judged.readings, 10u);
  EXPECT_EQ(judged.below, 0u);
  // Flapping while data moves.
  for (uint64_t s = 31; s <= 40; ++s) {
    speed(s, s % 2 == 0 ? 16 : 2.5);
    load(s, 5);
  }
  judged = JudgeLink(gpu, traffic, 30 * kSecond, 40 * kSecond);
  EXPECT_GE(judged.below, 4u);
  EXPECT_LT(judged.below, judged.readings);
  EXPECT_EQ(judged.worst, (Link{2.5, 16}));
  EXPECT_NEAR(judged.bytes_per_s, 5e9, 1e9);
}

TEST(HardwareModel, TrafficOfAGpuIsWhatTheFlowsMoved) {
  HardwareModel model;
  Snapshot tick = Tick("a", kSecond);
  tick.processes = {Process(7)};
  FlowSample flow;
  flow.bytes = 100;
  tick.processes[0].flows = {flow};
  model.Apply(tick);
  tick.t_ns = 2 * kSecond;
  tick.processes[0].flows[0].bytes = 350;
  model.Apply(tick);
  tick.t_ns = 3 * kSecond;
  tick.processes[0].flows[0].bytes = 50;  // the line is used again
  model.Apply(tick);
  tick.t_ns = 4 * kSecond;
  flow.index = 1;
  flow.owner_pid = 9;  // of another process's GPU
  flow.bytes = 1 << 30;
  tick.processes[0].flows = {flow};
  model.Apply(tick);
  const ProcessState& process = *model.FindProcess("a", {7, 1});
  EXPECT_EQ(process.sent_bytes.Increase(kSecond, 9 * kSecond), 300u);
  EXPECT_EQ(process.received_bytes.Increase(kSecond, 9 * kSecond), 0u);
}

TEST(HardwareModel, FailedReadLeavesTheLastValue) {
  HardwareModel model;
  Snapshot tick = Tick("a", kSecond);
  NicPortSample port;
  port.device = "mlx5_0";
  port.state = "ACTIVE";
  port.gids = {{3, "g", "RoCE v2"}};
  port.counters = {{"link_downed", 4}};
  tick.hardware->nics = {port};
  model.Apply(tick);
  tick.t_ns = 2 * kSecond;
  port.state.clear();
  port.counters.clear();
  port.gids.clear();
  tick.hardware->nics = {port};
  model.Apply(tick);
  const Port& known = *model.FindPort("a", "mlx5_0", 0);  // its only port
  EXPECT_EQ(known.state.changes().size(), 1u);
  EXPECT_EQ(known.counters.at("link_downed").last(), 4u);
  EXPECT_EQ(known.now.gids.size(), 1u);
  EXPECT_EQ(model.FindPort("a", "mlx5_0", 2), nullptr);
  EXPECT_EQ(model.FindPort("b", "mlx5_0", 1), nullptr);
}

class TwoEnds : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* host : {"a", "b"}) {
      Snapshot tick = Tick(host, kSecond);
      NicPortSample port;
      port.device = "mlx5_0";
      port.gids = {{3, std::string("gid-") + host, "RoCE v2"}};
      tick.hardware->nics = {port};
      QpSample qp = Pair("mlx5_0", host[0] == 'a' ? 10 : 20, 5);
      qp.remote_number = host[0] == 'a' ? 20 : 10;
      qp.remote_gid = host[0] == 'a' ? "gid-b" : "gid-a";
      qp.gid_index = 3;
      tick.processes = {Process(1)};
      tick.processes[0].hardware->qps = {qp};
      model_.Apply(tick);
    }
  }
  const Qp& At(const std::string& host, uint32_t number) {
    return model_.FindProcess(host, {1, 1})->qps.at({"mlx5_0", number});
  }
  void Give(const std::string& host, uint64_t t_ns, const QpSample& qp) {
    Snapshot tick = Tick(host, t_ns);
    tick.processes = {Process(1)};
    tick.processes[0].hardware->qps = {qp};
    model_.Apply(tick);
  }
  HardwareModel model_;
};

TEST_F(TwoEnds, FindEachOther) {
  auto end = model_.Remote(*model_.FindHost("a"), At("a", 10));
  ASSERT_NE(end.qp, nullptr);
  EXPECT_EQ(end.host->name, "b");
  EXPECT_EQ(end.qp->now.number, 20u);
  EXPECT_EQ(model_.GidOf(*end.host, *end.qp)->gid, "gid-b");
}

TEST_F(TwoEnds, TheSameNumberOnAnotherHostIsAnother) {
  QpSample other = Pair("mlx5_0", 20, 5);
  other.remote_number = 99;  // connected to somebody else
  Give("c", kSecond, other);
  EXPECT_EQ(model_.Remote(*model_.FindHost("a"), At("a", 10)).host->name, "b");
}

TEST_F(TwoEnds, NumberUsedAgainIsAnotherQueuePair) {
  QpSample qp = At("a", 10).now;
  qp.state = QpState::kError;
  qp.state_ns = 2 * kSecond;
  qp.posts[kQpSend] = 7;
  Give("a", 2 * kSecond, qp);
  EXPECT_TRUE(At("a", 10).in_error());
  EXPECT_EQ(At("a", 10).error_ns, 2 * kSecond);
  QpSample again = Pair("mlx5_0", 10, 3 * kSecond);
  again.state = QpState::kReadyToSend;
  Give("a", 3 * kSecond, again);
  EXPECT_FALSE(At("a", 10).in_error());
  EXPECT_EQ(At("a", 10).total_posts(), 0u);
  EXPECT_EQ(model_.Remote(*model_.FindHost("a"), At("a", 10)).qp, nullptr);  // not connected yet
}

TEST_F(TwoEnds, HostileNumbersStayBounded) {
  Snapshot tick = Tick("a", 2 * kSecond);
  tick.processes = {Process(1)};
  for (uint32_t i = 0; i < 20'000; ++i) {
    QpSample qp = Pair("mlx5_0", 1000 + i, 6);
    qp.destroyed = i < 5'000;
    tick.processes[0].hardware->qps.push_back(qp);
  }
  model_.Apply(tick);
  EXPECT_LE(model_.FindProcess("a", {1, 1})->qps.size(), 16384u);
  EXPECT_EQ(model_.dropped(), 0u);  // the destroyed ones made room
  for (uint32_t i = 0; i < 20'000; ++i) {
    tick.processes[0].hardware->qps[i].number += 1'000'000;
    tick.processes[0].hardware->qps[i].destroyed = false;
  }
  tick.t_ns = 3 * kSecond;
  model_.Apply(tick);
  EXPECT_LE(model_.FindProcess("a", {1, 1})->qps.size(), 16384u);
  EXPECT_GT(model_.dropped(), 0u);
}

GpuSample Gpu(uint32_t mhz, uint64_t reasons) {
  GpuSample gpu;
  gpu.address = "0000:3b:00.0";
  gpu.sm_mhz = mhz;
  gpu.clock_reasons = reasons;
  return gpu;
}

TEST(HardwareModel, ClocksOfAGpuAtWork) {
  HardwareModel model;
  const auto at = [&model](uint64_t t_s, const GpuSample& gpu) {
    Snapshot tick = Tick("a", t_s * kSecond);
    tick.hardware.emplace().gpus = {gpu};
    model.Apply(tick);
  };
  constexpr uint64_t kHot = clock_reason::kHardwareThermal;
  at(10, Gpu(2000, 0));
  at(20, Gpu(500, kHot));
  at(26, Gpu(210, clock_reason::kIdle));  // rests
  at(30, Gpu(2000, 0));
  const GpuDevice& gpu = model.FindHost("a")->gpus.at("0000:3b:00.0");
  ClocksUnderLoad clocks = JudgeClocks(gpu, kHot, 10 * kSecond, 20 * kSecond);
  EXPECT_EQ(clocks.ns, 10 * kSecond);
  EXPECT_DOUBLE_EQ(clocks.sm_mhz, 2000);
  EXPECT_EQ(clocks.reasons, 0u);
  EXPECT_EQ(clocks.since_ns, 0u);
  clocks = JudgeClocks(gpu, kHot, 20 * kSecond, 30 * kSecond);
  EXPECT_EQ(clocks.ns, 6 * kSecond);  // without the rest
  EXPECT_DOUBLE_EQ(clocks.sm_mhz, 500);
  EXPECT_EQ(clocks.reasons, kHot);
  EXPECT_EQ(clocks.since_ns, 20 * kSecond);
  EXPECT_DOUBLE_EQ(clocks.throttled, 1);
  clocks = JudgeClocks(gpu, kHot, 20 * kSecond, 60 * kSecond);
  EXPECT_EQ(clocks.ns, 36 * kSecond);
  EXPECT_EQ(clocks.reasons, 0u);  // less than a fifth
  EXPECT_EQ(JudgeClocks(gpu, kHot, 0, 5 * kSecond).ns, 0u);
  // What is said after the driver fell silent is old.
  GpuSample silent = Gpu(2000, 0);
  silent.silent_since_ns = 31 * kSecond;
  at(40, silent);
  EXPECT_EQ(JudgeClocks(gpu, kHot, 30 * kSecond, 60 * kSecond).ns, kSecond);
}

TEST(HardwareModel, LostGpus) {
  HardwareModel model;
  const auto at = [&model](uint64_t t_s, bool lost) {
    Snapshot tick = Tick("a", t_s * kSecond);
    GpuSample gpu = Gpu(2000, 0);
    gpu.lost = lost;
    tick.hardware.emplace().gpus = {gpu};
    model.Apply(tick);
    return model.FindHost("a")->gpus.at(gpu.address).lost_ns;
  };
  EXPECT_EQ(at(1, false), 0u);
  EXPECT_EQ(at(2, true), 2 * kSecond);
  EXPECT_EQ(at(3, true), 2 * kSecond);
  EXPECT_EQ(at(4, false), 0u);
}

TEST(HardwareModel, ProcessesThatEndedMakeRoom) {
  HardwareModel model;
  for (uint32_t pid = 1; pid <= 3000; ++pid) {
    Snapshot tick = Tick("a", pid * kSecond);
    tick.processes = {Process(pid)};
    tick.processes[0].status = ProcessStatus::kExited;
    model.Apply(tick);
  }
  EXPECT_LE(model.FindHost("a")->processes.size(), 1024u);
  EXPECT_NE(model.FindProcess("a", {3000, 1}), nullptr);
  EXPECT_EQ(model.FindProcess("a", {1, 1}), nullptr);
  EXPECT_EQ(model.dropped(), 0u);
}

}  // namespace
}  // namespace mycroft
