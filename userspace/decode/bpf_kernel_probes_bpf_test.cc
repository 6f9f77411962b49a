// SPDX-License-Identifier: Apache-2.0
//
// The kernel probes as the live source sees them, on this process and this machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "userspace/decode/bpf_kernel_probes.h"
#include "userspace/decode/hardware_source.h"
#include "userspace/source/probes/testing/bpf_machine.h"
#include "userspace/source/proc.h"

namespace mycroft {
namespace {

using std::chrono::milliseconds;

uint64_t NowNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

WatchedProcess Process(uint32_t pid) {
  WatchedProcess process;
  process.key.pid = pid;
  const auto stat = ReadProcStat("/proc", pid);
  process.key.start_time = stat ? stat->start_time : 1;
  return process;
}

const ProbeSample* Find(const std::vector<ProbeSample>& probes, const std::string& name) {
  for (const ProbeSample& probe : probes)
    if (probe.name == name) return &probe;
  return nullptr;
}

TEST(BpfKernelProbesBpfTest, RowsEventsAndDevicesOfWhatIsWatched) {
  MYCROFT_REQUIRE_BPF();
  auto probes = BpfKernelProbes::Create({});
  ASSERT_TRUE(probes.ok()) << probes.status();
  const pid_t child = fork();
  if (child == 0) {
    usleep(200'000);
    _exit(5);
  }
  const WatchedProcess own = Process(static_cast<uint32_t>(getpid()));
  const WatchedProcess other = Process(static_cast<uint32_t>(child));
  (*probes)->Watch({own, other}, {"0000:00:00.0", "nonsense"});
  std::this_thread::sleep_for(milliseconds(100));
  KernelReadings readings = (*probes)->Collect(NowNs());
  ASSERT_EQ(readings.processes.size(), 2u);
  for (const WatchedProcess& process : {own, other}) {
    const KernelProcessRows& rows = readings.processes.at(process.key);
    ASSERT_EQ(rows.delays.size(), 1u);
    EXPECT_EQ(rows.delays[0].tid, process.key.pid);
    EXPECT_GT(rows.delays[0].off_cpu_ns, 50'000'000u);
    EXPECT_EQ(rows.direct_reclaims, 0u);
    EXPECT_EQ(rows.tcp_retransmits, 0u);
    EXPECT_TRUE(rows.qps.empty());
    EXPECT_TRUE(rows.mrs.empty());
  }
  ASSERT_EQ(readings.devices.size(), 1u);
  EXPECT_TRUE(readings.devices.at("0000:00:00.0").interrupts.has_value());
  EXPECT_TRUE(readings.events.empty());
  EXPECT_EQ(readings.probes.size(), ProbeTable().size());
  EXPECT_EQ(readings.lost_events, 0u);

  waitpid(child, nullptr, 0);
  (*probes)->Watch({own}, {});
  readings = (*probes)->Collect(NowNs());
  ASSERT_EQ(readings.events.size(), 1u);
  EXPECT_EQ(readings.events[0].kind, HardwareEventKind::kProcessExit);
  EXPECT_EQ(readings.events[0].severity, Severity::kFatal);
  EXPECT_EQ(readings.events[0].pid, other.key.pid);
  EXPECT_EQ(readings.events[0].number, 5u << 8);
  EXPECT_EQ(readings.processes.count(other.key), 0u);
  EXPECT_TRUE(readings.devices.empty());
}

TEST(BpfKernelProbesBpfTest, DeepProbesAreArmedForAWhile) {
  MYCROFT_REQUIRE_BPF();
  auto probes = BpfKernelProbes::Create({});
  ASSERT_TRUE(probes.ok()) << probes.status();
  const WatchedProcess own = Process(static_cast<uint32_t>(getpid()));
  const auto armed = [&](uint64_t now) {
    std::set<std::string> names;
    for (const ProbeSample& probe : (*probes)->Collect(now).probes)
      if (probe.armed) names.insert(probe.name);
    return names;
  };
  (*probes)->Watch({own}, {});
  EXPECT_TRUE(armed(NowNs()).empty());
  ProcessKey reused = own.key;
  ++reused.start_time;
  (*probes)->ArmDeep({reused}, NowNs() + 10'000'000'000);
  EXPECT_TRUE(armed(NowNs()).empty());
  const uint64_t until = NowNs() + 10'000'000'000;
  (*probes)->ArmDeep({own.key}, until);
  // Not the verbs probes: this process has no libibverbs.
  EXPECT_THAT(armed(NowNs()), testing::ElementsAre("host.sleep_stack"));
  (*probes)->ArmDeep({own.key}, until);
  EXPECT_THAT(armed(until - 1), testing::Contains("host.sleep_stack"));
  EXPECT_TRUE(armed(until).empty());
  (*probes)->ArmDeep({own.key}, NowNs() + 10'000'000'000);
  EXPECT_FALSE(armed(NowNs()).empty());
  (*probes)->ArmDeep({}, 0);
  EXPECT_TRUE(armed(NowNs()).empty());
}

// Through the hardware part of the live source, into what a snapshot has.
TEST(BpfKernelProbesBpfTest, DelaysReachTheSnapshot) {
  MYCROFT_REQUIRE_BPF();
  auto probes = BpfKernelProbes::Create({});
  ASSERT_TRUE(probes.ok()) << probes.status();
  HardwareOptions options;
  options.inline_poll = true;
  options.probes = probes->get();
  HardwareSource source(options);
  const WatchedProcess own = Process(static_cast<uint32_t>(getpid()));
  uint64_t now = NowNs();
  HardwareReading first = source.Sample(now, {own});
  ASSERT_TRUE(first.host.has_value());
  EXPECT_NE(Find(first.host->probes, "host.delay"), nullptr);
  std::this_thread::sleep_for(milliseconds(1100));
  now = NowNs();
  const HardwareReading second = source.Sample(now, {own});
  ASSERT_EQ(second.processes.count(own.key), 1u);
  const ProcessHardware& process = second.processes.at(own.key);
  ASSERT_EQ(process.delays.size(), 1u);
  EXPECT_EQ(process.delays[0].tid, own.key.pid);
  EXPECT_GT(process.delays[0].off_cpu_ns, 1'000'000'000u);
}

TEST(BpfKernelProbesTest, WithoutProbesValuesAreEmpty) {
  ProbeSet::Options options;
  options.load = false;
  auto probes = BpfKernelProbes::Create(options);
  ASSERT_TRUE(probes.ok()) << probes.status();
  const WatchedProcess own = Process(static_cast<uint32_t>(getpid()));
  (*probes)->Watch({own}, {"0000:3b:00.0"});
  (*probes)->ArmDeep({own.key}, NowNs() + 1'000'000'000);
  const KernelReadings readings = (*probes)->Collect(NowNs());
  const KernelProcessRows& rows = readings.processes.at(own.key);
  EXPECT_TRUE(rows.delays.empty());
  EXPECT_EQ(rows.direct_reclaims, std::nullopt);
  EXPECT_EQ(rows.tcp_retransmits, std::nullopt);
  EXPECT_EQ(readings.devices.at("0000:3b:00.0").dma_maps, std::nullopt);
  EXPECT_TRUE(readings.events.empty());
  for (const ProbeSample& probe : readings.probes) {
    EXPECT_FALSE(probe.armed) << probe.name;
    EXPECT_TRUE(!probe.problem.empty() || probe.attached.rfind("poll ", 0) == 0) << probe.name;
  }
}

}  // namespace
}  // namespace mycroft
