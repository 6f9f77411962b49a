// SPDX-License-Identifier: Apache-2.0
//
// Rings of four whose steps cost what the test says: 40 normal ones, then 10 slow ones.
#include "userspace/attribute/blame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "userspace/decode/testing/hand_made_job.h"

namespace mycroft {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

using Costs = std::vector<HandMadeJob::Cost>;
constexpr double kMs = 1e6;

class BlameTest : public ::testing::Test {
 protected:
  void Run(HandMadeJob& job, int cycles, const Costs& costs) {
    for (int i = 0; i < cycles; ++i) {
      job.Cycle(costs);
      job.Apply(model_);
      for (const auto& worker : model_.workers()) {
        detectors_.try_emplace(worker->index, 2.0).first->second.Update(*worker);
      }
    }
  }
  BlameResult Blamed(HandMadeJob& job, const Costs& slow, const Costs& normal = Costs(4)) {
    Run(job, 40, normal);
    const uint64_t since = job.now_ns();
    Run(job, 10, slow);
    return FindBlame(model_.Jobs()[0], detectors_, since, job.now_ns());
  }
  BlameResult Blamed(const Costs& slow) {
    HandMadeJob job(4);
    return Blamed(job, slow);
  }
  // The only one blamed.
  static void ExpectOnly(const BlameResult& result, BlameKind kind, int rank, double excess_ms) {
    ASSERT_THAT(result.blames, SizeIs(1));
    const Blame& blame = result.blames[0];
    EXPECT_EQ(static_cast<int>(blame.kind), static_cast<int>(kind)) << blame.why;
    EXPECT_EQ(blame.worker->job_rank, rank) << blame.why;
    EXPECT_NEAR(blame.excess_ns, excess_ms * kMs, 0.02 * excess_ms * kMs);
    EXPECT_NEAR(result.lost_ns, excess_ms * kMs, 0.1 * excess_ms * kMs);
    EXPECT_FALSE(result.whole_job_paused);
  }
  static std::vector<int> Ranks(const std::vector<const Worker*>& workers) {
    std::vector<int> ranks;
    for (const Worker* worker : workers) ranks.push_back(worker->job_rank);
    return ranks;
  }
  JobModel model_;
  std::map<size_t, CycleDetector> detectors_;
};

TEST_F(BlameTest, SlowGpu) {
  Costs slow(4);
  slow[2].gpu_ms = 61;
  const BlameResult result = Blamed(slow);
  ExpectOnly(result, BlameKind::kGpu, 2, 60);
  EXPECT_THAT(result.blames[0].why,
              AllOf(HasSubstr("rank 2 spends 60.7 ms per cycle"), HasSubstr("usually 0.7 ms")));
  EXPECT_THAT(Ranks(result.victims), UnorderedElementsAre(0, 1, 3));
  EXPECT_NEAR(result.normal_ns, 10.4 * kMs, 0.1 * kMs);
  EXPECT_GT(result.confidence, 0.9);
  EXPECT_THAT(result.rejected, SizeIs(3));
  EXPECT_THAT(result.shares, SizeIs(4));
  for (const WorkerShares& shares : result.shares) EXPECT_EQ(shares.cycles, 10u);
}

TEST_F(BlameTest, LateHost) {
  Costs slow(4);
  slow[0].host_ms = 98;
  const BlameResult result = Blamed(slow);
  ExpectOnly(result, BlameKind::kHost, 0, 90);
  EXPECT_THAT(result.blames[0].why, HasSubstr("with nothing enqueued"));
}

TEST_F(BlameTest, SlowFlush) {
  Costs slow(4);
  slow[3].flush_ms = 40.1;
  ExpectOnly(Blamed(slow), BlameKind::kFlush, 3, 40);
}

TEST_F(BlameTest, SlowFlushExplainsTheGpuBehindIt) {
  Costs slow(4);
  slow[3].flush_ms = 40.1;
  slow[3].gpu_ms = 51;  // waits for the same path
  const BlameResult result = Blamed(slow);
  ASSERT_THAT(result.blames, SizeIs(1));
  EXPECT_EQ(result.blames[0].kind, BlameKind::kFlush);
  EXPECT_THAT(result.rejected, Contains(Field(&Rejected::suspect, "gpu of rank 3")));
}

TEST_F(BlameTest, EdgeThatLeavesTheSenderSlowly) {
  Costs slow(4);
  slow[1].net_ms = 50.3;
  slow[1].leaves_slowly = true;
  const BlameResult result = Blamed(slow);
  ExpectOnly(result, BlameKind::kNetSender, 1, 50);
  EXPECT_THAT(result.blames[0].why,
              AllOf(HasSubstr("from rank 1 to rank 2"), HasSubstr("no faster than it arrives")));
}

TEST_F(BlameTest, EdgeWhoseSideIsNotKnown) {
  Costs slow(4);
  slow[1].net_ms = 50.3;
  const BlameResult result = Blamed(slow);
  ASSERT_THAT(result.blames, SizeIs(1));
  EXPECT_EQ(result.blames[0].kind, BlameKind::kNetEdge);
  EXPECT_EQ(result.blames[0].worker->job_rank, 1);
  EXPECT_EQ(result.blames[0].other->job_rank, 2);
  EXPECT_LE(result.confidence, 0.5);  // a place, not a culprit
}

// A lost packet now and then: nine operations of ten are as fast as ever.
TEST_F(BlameTest, HeldUpAtTimesIsThePath) {
  HandMadeJob job(4);
  Run(job, 40, Costs(4));
  const uint64_t since = job.now_ns();
  Costs slow(4);
  slow[1].net_ms = 600;
  slow[1].leaves_slowly = true;
  Run(job, 9, Costs(4));
  Run(job, 1, slow);
  const BlameResult result = FindBlame(model_.Jobs()[0], detectors_, since, job.now_ns());
  ASSERT_THAT(result.blames, SizeIs(1));
  EXPECT_EQ(result.blames[0].kind, BlameKind::kNetEdge);
  EXPECT_EQ(result.blames[0].worker->job_rank, 1);
  EXPECT_EQ(result.blames[0].other->job_rank, 2);
  EXPECT_THAT(result.blames[0].why, HasSubstr("1 of 10 operations held up in transit"));
  EXPECT_NEAR(result.blames[0].excess_ns, 60 * kMs, 1 * kMs);
  EXPECT_GT(result.explained_ns, 0.9 * result.lost_ns);
}

TEST_F(BlameTest, SlowInBothDirectionsIsTheOneBetween) {
  Costs slow(4);
  slow[1].net_ms = 50.3;  // 1 to 2
  slow[2].net_ms = 45.3;  // 2 to 3
  const BlameResult result = Blamed(slow);
  ASSERT_THAT(result.blames, SizeIs(1));
  EXPECT_EQ(result.blames[0].kind, BlameKind::kNetNode);
  EXPECT_EQ(result.blames[0].worker->job_rank, 2);
}

TEST_F(BlameTest, TwoSlowNetworks) {
  HandMadeJob job(8);
  Costs slow(8);
  for (int rank : {0, 1, 4, 5}) slow[rank].net_ms = 50.3;
  const BlameResult result = Blamed(job, slow, Costs(8));
  std::vector<int> ranks;
  for (const Blame& blame : result.blames) {
    EXPECT_EQ(blame.kind, BlameKind::kNetNode);
    ranks.push_back(blame.worker->job_rank);
  }
  EXPECT_THAT(ranks, UnorderedElementsAre(1, 5));
}

TEST_F(BlameTest, BlockedSendsExcuseTheGpu) {
  Costs slow(4);
  slow[1].net_ms = 50.3;
  slow[1].leaves_slowly = true;
  slow[1].gpu_ms = 116;  // of which 50 in which its send slots were taken
  const BlameResult result = Blamed(slow);
  for (const Blame& blame : result.blames) EXPECT_NE(blame.kind, BlameKind::kGpu) << blame.why;
  EXPECT_THAT(result.rejected,
              Contains(AllOf(Field(&Rejected::suspect, "gpu of rank 1"),
                             Field(&Rejected::reason, HasSubstr("its sends are blocked")))));
}

TEST_F(BlameTest, LateReceiverIsNoSlowEdge) {
  // Its buffers come late, so what was sent to it lies about.
  Costs slow(4);
  slow[2].host_ms = 108;
  const BlameResult result = Blamed(slow);
  ExpectOnly(result, BlameKind::kHost, 2, 100);
  for (const EdgeTransit& edge : result.edges) {
    EXPECT_NEAR(edge.now_ns, edge.normal_ns, 0.1 * kMs)
        << edge.from->job_rank << " to " << edge.to->job_rank;
  }
}

TEST_F(BlameTest, TransitOfEveryEdge) {
  Costs slow(4);
  slow[0].net_ms = 20.3;
  const BlameResult result = Blamed(slow);
  ASSERT_THAT(result.edges, SizeIs(4));
  for (const EdgeTransit& edge : result.edges) {
    EXPECT_EQ(edge.to->job_rank, (edge.from->job_rank + 1) % 4);
    EXPECT_NEAR(edge.normal_ns, 0.3 * kMs, 1000);
    EXPECT_NEAR(edge.now_ns, edge.from->job_rank == 0 ? 20.3 * kMs : 0.3 * kMs, 1000);
    EXPECT_EQ(edge.now_ops, 10u);
    EXPECT_EQ(edge.normal_ops, 40u);
    EXPECT_EQ(edge.comm_id, 0xc0u);
  }
}

TEST_F(BlameTest, TwoCulprits) {
  Costs slow(4);
  slow[1].gpu_ms = 61;
  slow[3].host_ms = 60;
  const BlameResult result = Blamed(slow);
  ASSERT_THAT(result.blames, SizeIs(2));
  EXPECT_EQ(result.blames[0].kind, BlameKind::kGpu);
  EXPECT_EQ(result.blames[0].worker->job_rank, 1);
  EXPECT_EQ(result.blames[1].kind, BlameKind::kHost);
  EXPECT_EQ(result.blames[1].worker->job_rank, 3);
}

TEST_F(BlameTest, ASideEffectIsRejected) {
  Costs slow(4);
  slow[1].gpu_ms = 61;
  slow[3].gpu_ms = 1 + 22.5;
  const BlameResult result = Blamed(slow);
  ExpectOnly(result, BlameKind::kGpu, 1, 60);
  EXPECT_THAT(result.rejected, Contains(AllOf(Field(&Rejected::suspect, "rank 3"),
                                              Field(&Rejected::reason, HasSubstr("too little")))));
}

TEST_F(BlameTest, AllTogetherPausedIsNobodysFault) {
  Costs slow(4);
  for (auto& cost : slow) cost.host_ms = 300;
  const BlameResult result = Blamed(slow);
  EXPECT_TRUE(result.whole_job_paused);
  EXPECT_THAT(result.blames, IsEmpty());
}

TEST_F(BlameTest, NotSlowAtAll) {
  const BlameResult result = Blamed(Costs(4));
  EXPECT_LE(result.lost_ns, 1);
  EXPECT_THAT(result.blames, IsEmpty());
  Costs faster(4);
  for (auto& cost : faster) cost.host_ms = 2;
  EXPECT_THAT(Blamed(faster).blames, IsEmpty());
}

TEST_F(BlameTest, NoiseOfTheJobIsNoCause) {
  // The GPU of rank 1 takes 1 or 41 ms at random, always did; now rank 2 is slow too.
  HandMadeJob job(4);
  for (int i = 0; i < 80; ++i) {
    Costs costs(4);
    costs[1].gpu_ms = i % 3 == 0 || i % 7 == 0 ? 41 : 1;
    Run(job, 1, costs);
  }
  const uint64_t since = job.now_ns();
  for (int i = 0; i < 12; ++i) {
    Costs costs(4);
    costs[1].gpu_ms = i % 2 == 0 ? 41 : 1;
    costs[2].gpu_ms = 121;
    Run(job, 1, costs);
  }
  const BlameResult result = FindBlame(model_.Jobs()[0], detectors_, since, job.now_ns());
  ASSERT_FALSE(result.blames.empty());
  EXPECT_THAT(result.blames, SizeIs(1));
  EXPECT_EQ(result.blames[0].worker->job_rank, 2);
}

TEST_F(BlameTest, WithoutDetectorsThereIsNoAnswer) {
  HandMadeJob job(4);
  job.Cycle(Costs(4));
  job.Apply(model_);
  const BlameResult result = FindBlame(model_.Jobs()[0], detectors_, 0, job.now_ns());
  EXPECT_THAT(result.blames, IsEmpty());
  EXPECT_THAT(result.shares, IsEmpty());
}

TEST_F(BlameTest, WithARankUnseenASmallGpuExcessIsNotBlamed) {
  HandMadeJob job(4);
  job.Hide(3);
  Costs slow(4);
  slow[0].gpu_ms = 10;  // receives from the one that is not seen: may be its compute phase
  EXPECT_THAT(Blamed(job, slow).blames, IsEmpty());
}

TEST_F(BlameTest, WithARankUnseenALargeGpuExcessStillIs) {
  HandMadeJob job(4);
  job.Hide(3);
  Costs slow(4);
  slow[1].gpu_ms = 91;
  const BlameResult result = Blamed(job, slow);
  ASSERT_THAT(result.blames, SizeIs(1));
  EXPECT_EQ(result.blames[0].kind, BlameKind::kGpu);
  EXPECT_EQ(result.blames[0].worker->job_rank, 1);
}

}  // namespace
}  // namespace mycroft
