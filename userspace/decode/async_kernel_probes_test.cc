// SPDX-License-Identifier: Apache-2.0
#include "userspace/decode/async_kernel_probes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

namespace mycroft {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

// Attaching lasts until it is let go.
class SlowProbes final : public KernelProbes {
 public:
  explicit SlowProbes(std::atomic<bool>* busy) : busy_(busy) {}
  void Watch(const std::vector<WatchedProcess>&, const std::vector<std::string>&) override {
    while (*busy_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  KernelReadings Collect(uint64_t now_ns) override {
    KernelReadings out;
    out.events.push_back({.t_ns = now_ns});
    QpSample gone;
    gone.number = static_cast<uint32_t>(++collected_);
    gone.destroyed = true;
    out.processes[ProcessKey{}].qps = {gone};
    out.lost_events = collected_;
    return out;
  }
  void ArmDeep(const std::vector<ProcessKey>&, uint64_t) override {}

 private:
  std::atomic<bool>* busy_;
  uint64_t collected_ = 0;
};

TEST(AsyncKernelProbes, ReadingsOfNow) {
  std::atomic<bool> busy = false;
  AsyncKernelProbes probes(std::make_unique<SlowProbes>(&busy));
  KernelReadings got = probes.Collect(1);
  while (got.events.empty()) got = probes.Collect(1);  // on a busy machine
  EXPECT_THAT(got.processes[ProcessKey{}].qps, SizeIs(testing::Ge(1)));
}

TEST(AsyncKernelProbes, BusyThreadDoesNotHoldTheCallerAndLosesNothing) {
  std::atomic<bool> busy = true;
  AsyncKernelProbes probes(std::make_unique<SlowProbes>(&busy));
  probes.Watch({}, {});
  for (uint64_t i = 1; i <= 3; ++i) EXPECT_THAT(probes.Collect(i).events, IsEmpty());
  busy = false;
  size_t events = 0, destroyed = 0;
  uint64_t collected = 0;
  for (int i = 0; i < 1000 && collected < 3; ++i) {
    KernelReadings got = probes.Collect(9);
    events += got.events.size();
    for (const auto& [key, rows] : got.processes) destroyed += rows.qps.size();
    collected = got.lost_events;
  }
  EXPECT_GE(collected, 3u);
  EXPECT_EQ(events, collected);  // each once
  EXPECT_EQ(destroyed, collected);
}

}  // namespace
}  // namespace mycroft
