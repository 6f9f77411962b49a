// SPDX-License-Identifier: Apache-2.0
#include "userspace/detect/cycle.h"

#include <gtest/gtest.h>

#include <random>

namespace mycroft {
namespace {

constexpr double kMs = 1e6;

// A worker whose operations end when the test says so.
class CycleTest : public ::testing::Test {
 protected:
  // One operation that ends `ms` after the one before it.
  void Op(uint64_t key, double ms, mc_op_kind kind = MC_OP_COLL, uint64_t size = 1) {
    Settled s;
    s.key = key * 1000 + size;
    s.shape_key = key;
    s.kind = kind;
    now_ += static_cast<uint64_t>(ms * kMs);
    s.end_ns = now_;
    s.head_ns = static_cast<uint64_t>(ms * kMs);
    s.share[kHostGap] = 0.25 * ms * kMs;
    s.share[kRemote] = 0.75 * ms * kMs;
    worker_.history.push_back(s);
    ++worker_.settled_count;
    if (worker_.history.size() > 1024) worker_.history.pop_front();
  }
  // A training step of three operations.
  void Step(double ms) {
    Op(1, ms / 4);
    Op(2, ms / 4);
    Op(3, ms / 2);
    detector_.Update(worker_);
  }
  // One whose second operation takes so much longer.
  void StalledStep(double ms, double stall_ms) {
    Op(1, ms / 4);
    Op(2, ms / 4 + stall_ms);
    Op(3, ms / 2);
    detector_.Update(worker_);
  }
  void Steps(int count, double ms) {
    for (int i = 0; i < count; ++i) Step(ms);
  }

  Worker worker_;
  CycleDetector detector_{2.0};
  uint64_t now_ = 1'000'000'000'000;
};

TEST_F(CycleTest, FindsThePeriod) {
  EXPECT_FALSE(detector_.ready());
  Steps(20, 40);
  EXPECT_EQ(detector_.period(), 3u);
  EXPECT_EQ(detector_.anchor(), 0u);
  ASSERT_TRUE(detector_.ready());
  EXPECT_NEAR(detector_.baseline_ns(), 40 * kMs, 1);
  EXPECT_NEAR(detector_.baseline_share()[kHostGap], 10 * kMs, 1);
  EXPECT_NEAR(detector_.baseline_share()[kRemote], 30 * kMs, 1);
  EXPECT_FALSE(detector_.slow());
  EXPECT_EQ(detector_.CountCycles(worker_, 0, now_), 20);
  EXPECT_EQ(detector_.CountCycles(worker_, now_ - static_cast<uint64_t>(80 * kMs), now_), 2);
}

TEST_F(CycleTest, FindsTheSmallestPeriod) {
  for (int i = 0; i < 40; ++i) {
    Op(1, 10);
    detector_.Update(worker_);
  }
  EXPECT_EQ(detector_.period(), 1u);
  EXPECT_NEAR(detector_.baseline_ns(), 10 * kMs, 1);
}

// Long steps: what repeats within them must not be taken for the step.
TEST_F(CycleTest, PeriodOfALongStep) {
  for (int bucket : {1, 2, 20}) {  // operations between two updates
    SCOPED_TRACE(bucket);
    worker_ = Worker();
    detector_ = CycleDetector(2.0);
    int count = 0;
    const auto op = [&](uint64_t key, double ms) {
      Op(key, ms);
      if (++count % bucket == 0) detector_.Update(worker_);
    };
    const auto step = [&](double compute_ms) {
      op(1, compute_ms);
      for (int i = 0; i < 38; ++i) op(1, 1);
      op(2, 1);
      for (int i = 0; i < 20; ++i) op(3, 1);
    };
    for (int i = 0; i < 30; ++i) step(100);
    EXPECT_EQ(detector_.period(), 60u);
    ASSERT_TRUE(detector_.ready());
    EXPECT_NEAR(detector_.baseline_ns(), 159 * kMs, 1);
    EXPECT_FALSE(detector_.slow());
    // A late data loader: one operation of sixty comes late.
    for (int i = 0; i < 4; ++i) step(300);
    EXPECT_TRUE(detector_.slow());
  }
}

TEST_F(CycleTest, SizesThatVaryStillHaveAPeriod) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 30; ++i) {
    Op(1, 10, MC_OP_SEND, random());
    Op(2, 10, MC_OP_RECV, random());
    Op(3, 10, MC_OP_COLL, 5);
    detector_.Update(worker_);
  }
  EXPECT_EQ(detector_.period(), 3u);
  EXPECT_NEAR(detector_.baseline_ns(), 30 * kMs, 1);
}

TEST_F(CycleTest, WithoutAPeriodTheRarestCollectiveIsTheAnchor) {
  // A mixture of experts: other peers and another number of messages every time.
  std::mt19937_64 random(5);
  for (int i = 0; i < 60; ++i) {
    double left = 36;
    for (int k = 0; k < 2 + static_cast<int>(random() % 4); ++k) {
      Op(100 + random() % 50, 4, random() % 2 == 0 ? MC_OP_SEND : MC_OP_RECV);
      left -= 4;
    }
    Op(1, left / 2);
    if (i % 2 == 0) Op(1, 0.1);
    Op(2, left / 2);
    detector_.Update(worker_);
  }
  EXPECT_EQ(detector_.period(), 0u);
  EXPECT_EQ(detector_.anchor(), 2u);
  ASSERT_TRUE(detector_.ready());
  EXPECT_NEAR(detector_.baseline_ns(), 36 * kMs, 0.2 * kMs);
  EXPECT_FALSE(detector_.slow());
  EXPECT_NEAR(detector_.CountCycles(worker_, now_ - static_cast<uint64_t>(361 * kMs), now_), 10, 1);
}

TEST_F(CycleTest, TwiceAsLongIsSeenWithinThreeCycles) {
  Steps(30, 100);
  const uint64_t onset = now_;
  int cycles = 0;
  while (!detector_.slow() && cycles < 10) {
    Step(210);
    ++cycles;
  }
  // Cycles are cut at the end of the first operation of a step: the third whole one
  // ends in the fourth step.
  EXPECT_LE(cycles, 4);
  ASSERT_TRUE(detector_.slow());
  EXPECT_FALSE(detector_.by_change());
  EXPECT_GE(detector_.slow_since_ns(), onset);
  EXPECT_LE(detector_.slow_since_ns(), onset + static_cast<uint64_t>(53 * kMs));
  EXPECT_LE(detector_.slow_detected_ns(), now_);
  EXPECT_EQ(detector_.slow_cycles().size(), 3u);
  EXPECT_NEAR(detector_.lost_per_cycle_ns(), 110 * kMs, 1);
  EXPECT_NEAR(detector_.lost_total_ns(), 3 * 110 * kMs, 10);
  EXPECT_NEAR(detector_.baseline_ns(), 100 * kMs, 1);  // the baseline stands still
  Steps(50, 210);
  EXPECT_TRUE(detector_.slow());
  EXPECT_NEAR(detector_.baseline_ns(), 100 * kMs, 1);
}

TEST_F(CycleTest, MuchLongerIsSeenWithinTwoCycles) {
  Steps(30, 100);
  Steps(3, 600);  // two whole cycles
  EXPECT_TRUE(detector_.slow());
}

TEST_F(CycleTest, OneLongCycleIsACheckpoint) {
  Steps(30, 100);
  for (int i = 0; i < 10; ++i) {
    Step(5000);
    EXPECT_FALSE(detector_.slow());
    Steps(20, 100);
    EXPECT_FALSE(detector_.slow());
  }
  EXPECT_NEAR(detector_.baseline_ns(), 100 * kMs, 1);
}

TEST_F(CycleTest, AFewMillisecondsAreNotWorthAnAlarm) {
  Steps(30, 2);  // a job of tiny steps on a busy host
  Steps(10, 5);
  EXPECT_FALSE(detector_.slow());
}

TEST_F(CycleTest, RecoversAfterThreeNormalCycles) {
  Steps(30, 100);
  Steps(5, 300);
  ASSERT_TRUE(detector_.slow());
  const uint64_t end = now_;
  Steps(2, 100);
  EXPECT_TRUE(detector_.slow());
  Step(300);  // not yet
  Steps(2, 100);
  EXPECT_TRUE(detector_.slow());
  const uint64_t last_slow_end = now_ - static_cast<uint64_t>(200 * kMs);
  Steps(2, 100);
  EXPECT_FALSE(detector_.slow());
  EXPECT_GT(detector_.recovered_ns(), end);
  EXPECT_NEAR(detector_.recovered_ns(), last_slow_end, 100 * kMs);
  // And can be slow again.
  Steps(4, 300);
  EXPECT_TRUE(detector_.slow());
}

TEST_F(CycleTest, MuchWorseIsANewSlowTime) {
  Steps(30, 40);
  Steps(8, 120);
  ASSERT_TRUE(detector_.slow());
  const uint64_t onset = now_;
  Steps(2, 500);
  EXPECT_LT(detector_.slow_since_ns() + static_cast<uint64_t>(120 * kMs), onset);
  Steps(2, 500);  // a cycle may end in the middle of a step
  const uint64_t since = detector_.slow_since_ns();
  EXPECT_GE(since + static_cast<uint64_t>(120 * kMs), onset);
  EXPECT_LE(since, onset + static_cast<uint64_t>(500 * kMs));
  EXPECT_LE(detector_.slow_cycles().size(), 4u);
  EXPECT_NEAR(detector_.lost_per_cycle_ns(), 460 * kMs, 100 * kMs);
  Steps(20, 600);  // hardly worse
  EXPECT_EQ(detector_.slow_since_ns(), since);
  Steps(4, 40);
  EXPECT_FALSE(detector_.slow());
}

TEST_F(CycleTest, SmallShiftThatStays) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> noise(0, 1);
  for (int i = 0; i < 60; ++i) Step(100 + noise(random));
  EXPECT_FALSE(detector_.slow());
  const uint64_t onset = now_;
  int cycles = 0;
  while (!detector_.slow() && cycles < 100) {
    Step(125 + noise(random));
    ++cycles;
  }
  ASSERT_TRUE(detector_.slow());
  EXPECT_TRUE(detector_.by_change());
  EXPECT_LE(cycles, 25);
  EXPECT_GE(detector_.slow_since_ns() + static_cast<uint64_t>(300 * kMs), onset);
  EXPECT_LE(detector_.slow_since_ns(), onset + static_cast<uint64_t>(300 * kMs));
  EXPECT_NEAR(detector_.lost_per_cycle_ns(), 25 * kMs, 3 * kMs);
  for (int i = 0; i < 5; ++i) Step(100 + noise(random));
  EXPECT_FALSE(detector_.slow());
}

TEST_F(CycleTest, SmallShiftThatGoesAgain) {
  Steps(60, 100);
  Steps(8, 125);  // less than a dozen cycles
  Steps(30, 100);
  EXPECT_FALSE(detector_.slow());
}

// A data loader that had some batches ready; probes that attach: no fault.
TEST_F(CycleTest, AYoungJobFindsItsPace) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> noise(0, 2);
  for (int i = 0; i < 25; ++i) Step(100 + noise(random));
  for (int i = 0; i < 100; ++i) Step(125 + noise(random));
  EXPECT_FALSE(detector_.slow());
  EXPECT_NEAR(detector_.baseline_ns(), 125 * kMs, 3 * kMs);
  int cycles = 0;
  while (!detector_.slow() && cycles < 100) {
    Step(150 + noise(random));
    ++cycles;
  }
  EXPECT_LE(cycles, 30);
}

TEST_F(CycleTest, ShiftBelowTenPercentIsNotSaid) {
  Steps(60, 100);
  Steps(300, 107);
  EXPECT_FALSE(detector_.slow());
}

TEST_F(CycleTest, SlowDriftIsFollowed) {
  // 20 % over 4,000 steps: a growing sequence length, not a fault.
  for (int i = 0; i < 4000; ++i) {
    Step(100.0 * (1 + 0.2 * i / 4000.0));
    ASSERT_FALSE(detector_.slow()) << i;
  }
  EXPECT_NEAR(detector_.baseline_ns(), 120 * kMs, 3 * kMs);
}

TEST_F(CycleTest, FasterIsNoAlarm) {
  Steps(60, 100);
  Steps(100, 50);
  EXPECT_FALSE(detector_.slow());
}

TEST_F(CycleTest, SlowFirstIterations) {
  Step(8000);
  Step(3000);
  Step(900);
  Steps(40, 100);
  EXPECT_FALSE(detector_.slow());
  EXPECT_NEAR(detector_.baseline_ns(), 100 * kMs, 1);
  Steps(4, 250);
  EXPECT_TRUE(detector_.slow());
}

TEST_F(CycleTest, ManySlowFirstIterationsDoNotBecomeTheBaseline) {
  Steps(8, 500);
  Steps(40, 100);
  EXPECT_FALSE(detector_.slow());
  EXPECT_NEAR(detector_.baseline_ns(), 100 * kMs, 1);
}

TEST_F(CycleTest, AnotherSequenceIsLearntAnew) {
  Steps(30, 100);
  ASSERT_EQ(detector_.period(), 3u);
  // An evaluation phase: other operations, and longer.
  for (int i = 0; i < 40; ++i) {
    Op(7, 150);
    Op(8, 150);
    detector_.Update(worker_);
    EXPECT_FALSE(detector_.slow()) << i;
  }
  EXPECT_EQ(detector_.period(), 2u);
  EXPECT_NEAR(detector_.baseline_ns(), 300 * kMs, 1);
  Steps(30, 100);
  EXPECT_EQ(detector_.period(), 3u);
  EXPECT_FALSE(detector_.slow());
}

TEST_F(CycleTest, SlowJobThatChangesItsSequenceIsNoLongerSlow) {
  Steps(30, 100);
  Steps(5, 300);
  ASSERT_TRUE(detector_.slow());
  for (int i = 0; i < 40; ++i) {
    Op(7, 10);
    Op(8, 10);
    detector_.Update(worker_);
  }
  EXPECT_FALSE(detector_.slow());
  EXPECT_NE(detector_.recovered_ns(), 0u);
}

TEST_F(CycleTest, ManyOperationsBetweenTwoUpdates) {
  for (int i = 0; i < 600; ++i) {
    Op(1, 5);
    Op(2, 5);
    Op(3, 10);
    if (i % 100 == 99) detector_.Update(worker_);
  }
  EXPECT_EQ(detector_.period(), 3u);
  EXPECT_NEAR(detector_.baseline_ns(), 20 * kMs, 1);
  // More than the history holds: what was lost is not counted as one long cycle.
  for (int i = 0; i < 1000; ++i) {
    Op(1, 5);
    Op(2, 5);
    Op(3, 10);
  }
  detector_.Update(worker_);
  EXPECT_FALSE(detector_.slow());
}

// A lost packet every ten cycles, 0.6 s each: nearly half of the time.
TEST_F(CycleTest, StallsThatComeBack) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> noise(0, 3);
  for (int i = 0; i < 80; ++i) Step(70 + noise(random));
  const uint64_t onset = now_;
  for (int i = 0; i < 25; ++i) {
    StalledStep(70 + noise(random), i % 10 == 0 ? 580 : 0);
    if (i < 20) {
      EXPECT_FALSE(detector_.slow()) << i;
    }
  }
  ASSERT_TRUE(detector_.slow());
  EXPECT_TRUE(detector_.by_change());
  EXPECT_LE(detector_.slow_since_ns(), onset + static_cast<uint64_t>(100 * kMs));
  EXPECT_NEAR(detector_.lost_per_cycle_ns(), 3 * 580 * kMs / 21, 15 * kMs);
  // Between two of them it is not over.
  for (int i = 0; i < 9; ++i) Step(70 + noise(random));
  EXPECT_TRUE(detector_.slow());
  StalledStep(70, 580);
  for (int i = 0; i < 40; ++i) Step(70 + noise(random));
  EXPECT_FALSE(detector_.slow());
  EXPECT_NEAR(detector_.baseline_ns(), 70 * kMs, 2 * kMs);
}

TEST_F(CycleTest, AStallIsNoShift) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> noise(0, 3);
  for (int i = 0; i < 80; ++i) Step(70 + noise(random));
  for (int round = 0; round < 2; ++round) {
    StalledStep(70, 1100);
    for (int i = 0; i < 11; ++i) Step(80 + noise(random));  // the load of the machine
    for (int i = 0; i < 60; ++i) Step(70 + noise(random));
    EXPECT_FALSE(detector_.slow());
  }
}

// +-30 % of jitter on every step, independent, for 100,000 steps (2.8 hours).
TEST_F(CycleTest, JitterGivesNoAlarm) {
  for (uint64_t seed : {1, 2, 3}) {
    SetUp();
    worker_ = Worker();
    detector_ = CycleDetector(2.0);
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<double> jitter(0.7, 1.3);
    for (int i = 0; i < 100'000; ++i) {
      Op(1, 100 * jitter(random));
      detector_.Update(worker_);
      ASSERT_FALSE(detector_.slow()) << "seed " << seed << ", step " << i;
    }
    EXPECT_NEAR(detector_.baseline_ns(), 100 * kMs, 8 * kMs);
  }
}

// The same with what happens on real hosts: rare pauses, checkpoints, phases of 5 %.
TEST_F(CycleTest, JitterWithPausesGivesNoAlarm) {
  std::mt19937_64 random(9);
  std::uniform_real_distribution<double> jitter(0.85, 1.15);
  for (int i = 0; i < 100'000; ++i) {
    double ms = 100 * jitter(random);
    if (i % 500 == 499) ms += 3000;                                     // checkpoint
    if (random() % 300 == 0) ms += static_cast<double>(random() % 80);  // a daemon
    if ((i / 1000) % 2 == 1) ms *= 1.05;
    Op(1, ms);
    detector_.Update(worker_);
    ASSERT_FALSE(detector_.slow()) << i;
  }
}

}  // namespace
}  // namespace mycroft
