// SPDX-License-Identifier: Apache-2.0
#include "userspace/detect/suspicion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "userspace/decode/testing/hand_made_hardware.h"

namespace mycroft {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr uint64_t kSecond = 1'000'000'000;

class SuspicionTest : public ::testing::Test {
 protected:
  SuspicionTest() : job_(HandMadeJob::Options{.ranks = 8, .ranks_per_host = 2}), hw_(&job_, 2) {}
  void Feed() {
    for (const Snapshot& snapshot : hw_.Take()) {
      model_.Apply(snapshot);
      hardware_.Apply(snapshot);
    }
    for (const auto& worker : model_.workers()) {
      detectors_.try_emplace(worker->index, 2.0).first->second.Update(*worker);
    }
    plan_ = policy_.Update(model_, hardware_, detectors_);
  }
  void Steps(int count, double gpu_ms = 1) {
    std::vector<HandMadeJob::Cost> costs(8);
    costs[3].gpu_ms = gpu_ms;
    for (int i = 0; i < count; ++i) {
      job_.Cycle(costs);
      Feed();
    }
  }
  void Wait(double ms) {
    for (double done = 0; done < ms; done += 100) {
      job_.Sleep(100);
      Feed();
    }
  }
  // Rank 2 sends to rank 3 and gets no answer; the others have ended.
  void LosePath() {
    job_.Sleep(8);
    job_.EnterAll();
    job_.Ring(2, MC_FLOW_SEND_NET, MC_FLOW_RECV_REMOTE);
    for (int rank : {0, 1, 4, 5, 6, 7}) job_.Finish(rank, job_.Newest(rank));
    Feed();
  }
  HandMadeJob job_;
  HandMadeHardware hw_;
  JobModel model_;
  HardwareModel hardware_;
  std::map<size_t, CycleDetector> detectors_;
  SuspicionPolicy policy_;
  std::map<std::string, DeepProbes> plan_;
};

TEST_F(SuspicionTest, HealthyJobArmsNothing) {
  for (int i = 0; i < 500; ++i) {
    Steps(1);
    ASSERT_THAT(plan_, IsEmpty()) << i;
  }
  Wait(3'000);  // nothing in flight
  EXPECT_THAT(plan_, IsEmpty());
}

TEST_F(SuspicionTest, SlowFirstOperationArmsNothing) {
  job_.EnterAll();
  Wait(4'000);
  EXPECT_THAT(plan_, IsEmpty());
}

TEST_F(SuspicionTest, StallArmsBothEndsBeforeItIsCalledStuck) {
  Steps(40);
  LosePath();
  EXPECT_THAT(plan_, IsEmpty());
  Wait(400);
  // Ranks 1 to 4: those that stand still, and their neighbours.
  ASSERT_THAT(plan_, Contains(Key("node1")));
  EXPECT_THAT(plan_, Not(Contains(Key("node3"))));
  const DeepProbes& probes = plan_["node1"];
  EXPECT_TRUE(probes.armed());
  EXPECT_THAT(probes.reason, HasSubstr("rank 2 has not moved for 0.4 s"));
  EXPECT_THAT(
      probes.threads,
      UnorderedElementsAre(Pair(ProcessKey{1002, 77}, 1002u), Pair(ProcessKey{1002, 77}, 5002u),
                           Pair(ProcessKey{1003, 77}, 1003u), Pair(ProcessKey{1003, 77}, 5003u)));
  EXPECT_THAT(probes.qps, SizeIs(6));
  EXPECT_THAT(probes.devices, Contains(hw_.Address(3, HandMadeHardware::kGpu)));
  EXPECT_THAT(probes.devices, Contains(hw_.Address(3, HandMadeHardware::kRoot)));
  EXPECT_GT(probes.until_ns, job_.now_ns());
  EXPECT_LE(probes.until_ns, job_.now_ns() + 10 * kSecond);
}

TEST_F(SuspicionTest, DisarmsWhenItGoesOn) {
  Steps(40);
  LosePath();
  Wait(2'000);
  ASSERT_THAT(plan_, Not(IsEmpty()));
  job_.FinishAll();
  Feed();
  EXPECT_THAT(plan_, Not(IsEmpty()));  // a little longer
  Steps(600);                          // 6 s
  EXPECT_THAT(plan_, IsEmpty());
}

TEST_F(SuspicionTest, RestsAfterAMinute) {
  Steps(40);
  LosePath();
  Wait(59'000);
  ASSERT_THAT(plan_, Not(IsEmpty()));
  EXPECT_LE(plan_["node1"].until_ns, job_.now_ns() + 3 * kSecond);
  Wait(3'000);
  EXPECT_THAT(plan_, IsEmpty());
  Wait(50'000);
  EXPECT_THAT(plan_, IsEmpty());
  Wait(12'000);  // and looks again
  EXPECT_THAT(plan_, Not(IsEmpty()));
}

TEST_F(SuspicionTest, LongCyclesArm) {
  Steps(60);
  Steps(5, 81);
  EXPECT_THAT(plan_, Not(IsEmpty()));
}

TEST_F(SuspicionTest, IsBounded) {
  Steps(40);
  for (int i = 0; i < 1000; ++i) hw_.Connect(2, 6);  // to somebody who is well
  const uint32_t wanted = hw_.Connect(2, 3).number;
  for (uint32_t tid = 1; tid < 500; ++tid) {
    job_.Host(2).threads.push_back({.tid = 10'000 + tid, .roles = MC_THREAD_LAUNCH});
  }
  LosePath();
  Wait(1'500);
  EXPECT_THAT(plan_["node1"].qps, SizeIs(SuspicionPolicy::kMostQps));
  EXPECT_THAT(plan_["node1"].qps, Contains(::testing::Field(&DeepProbes::Qp::number, wanted)));
  EXPECT_THAT(plan_["node1"].threads, SizeIs(SuspicionPolicy::kMostThreads));
}

}  // namespace
}  // namespace mycroft
