// SPDX-License-Identifier: Apache-2.0
#include "userspace/detect/mismatch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "userspace/decode/testing/hand_made_job.h"

namespace mycroft {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class MismatchTest : public ::testing::Test {
 protected:
  std::vector<Mismatch> Update(HandMadeJob& job) {
    job.Apply(model_);
    return detector_.Update(model_);
  }
  // Steps in which all call the same.
  void Agree(HandMadeJob& job, int steps) {
    for (int i = 0; i < steps; ++i) {
      job.EnterAll();
      job.Sleep(10);
      job.FinishAll();
      ASSERT_THAT(Update(job), IsEmpty());
    }
  }
  std::vector<int> Deviating(const Mismatch& mismatch) {
    std::vector<int> ranks;
    for (const Worker* worker : mismatch.deviating) ranks.push_back(worker->job_rank);
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }
  JobModel model_;
  MismatchDetector detector_;
};

TEST_F(MismatchTest, EqualCallsAreNone) {
  HandMadeJob job(4);
  Agree(job, 300);
}

TEST_F(MismatchTest, TheMinorityDeviates) {
  HandMadeJob job(4);
  Agree(job, 3);
  job.Sleep(10);
  for (int rank : {0, 1, 3}) job.Enter(rank);
  job.Sleep(5);
  job.Enter(2, 0, MC_FUNC_BROADCAST, 77);
  const uint64_t onset = job.now_ns();
  const auto found = Update(job);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(Deviating(found[0]), ElementsAre(2));
  EXPECT_EQ(found[0].ordinal, 3u);
  EXPECT_EQ(found[0].comm->name, "world");
  EXPECT_EQ(found[0].onset_ns, onset);
  EXPECT_THAT(found[0].calls, SizeIs(4));
  EXPECT_THAT(found[0].calls, Contains("rank 2: Broadcast of 77 float32, root 0"));
  EXPECT_THAT(found[0].calls, Contains("rank 0: AllReduce of 1048576 float32, root 0"));
  // Said once.
  job.Sleep(1000);
  EXPECT_THAT(Update(job), IsEmpty());
  job.Enter(2, 0, MC_FUNC_BROADCAST, 78);
  job.Enter(1);
  EXPECT_THAT(Update(job), IsEmpty());
}

TEST_F(MismatchTest, EachFieldCounts) {
  for (int field = 0; field < 4; ++field) {
    SCOPED_TRACE(field);
    model_ = JobModel();
    detector_ = MismatchDetector();
    HandMadeJob job(3);
    Agree(job, 2);
    job.EnterAll();
    OpSample& op = job.Newest(1);
    if (field == 0) op.func = MC_FUNC_ALLGATHER;
    if (field == 1) op.count += 1;
    if (field == 2) op.datatype = MC_TYPE_BFLOAT16;
    if (field == 3) op.root_or_peer = 2;
    const auto found = Update(job);
    ASSERT_THAT(found, SizeIs(1));
    EXPECT_THAT(Deviating(found[0]), ElementsAre(1));
  }
}

TEST_F(MismatchTest, AMajorityOfTheCommunicatorIsEnough) {
  HandMadeJob job(5);
  Agree(job, 2);
  for (int rank : {0, 1, 2}) job.Enter(rank);
  job.Enter(3, 0, MC_FUNC_REDUCE);
  const auto found = Update(job);  // rank 4 has not called yet
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(Deviating(found[0]), ElementsAre(3));
}

TEST_F(MismatchTest, WaitsForTheOthersBeforeItSays) {
  HandMadeJob job(4);
  Agree(job, 2);
  job.Enter(0);
  job.Enter(1, 0, MC_FUNC_REDUCE);
  EXPECT_THAT(Update(job), IsEmpty());  // one against one: who is right?
  job.Sleep(900);
  EXPECT_THAT(Update(job), IsEmpty());
  job.Sleep(200);
  const auto found = Update(job);  // no more came
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(Deviating(found[0]), ElementsAre(1));  // it never called a Reduce before
}

TEST_F(MismatchTest, InATieHistoryDecides) {
  HandMadeJob job(2);
  Agree(job, 3);
  job.Enter(0, 0, MC_FUNC_ALLGATHER);
  job.Enter(1);
  const auto found = Update(job);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(Deviating(found[0]), ElementsAre(0));
}

TEST_F(MismatchTest, ATieWithoutHistoryNamesNobody) {
  HandMadeJob job(2);
  job.Enter(0, 0, MC_FUNC_ALLGATHER);
  job.Enter(1);
  const auto found = Update(job);  // the very first call
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].deviating, IsEmpty());
  EXPECT_THAT(found[0].calls, SizeIs(2));
}

TEST_F(MismatchTest, ATieOfTwoKnownCallsNamesNobody) {
  HandMadeJob job(2);
  for (int i = 0; i < 3; ++i) {  // a step of two collectives
    for (mc_func func : {MC_FUNC_ALLREDUCE, MC_FUNC_ALLGATHER}) {
      for (int rank : {0, 1}) job.Finish(rank, job.Enter(rank, 0, func));
      ASSERT_THAT(Update(job), IsEmpty());
    }
  }
  // Rank 1 calls them in the other order.
  job.Enter(0, 0, MC_FUNC_ALLREDUCE);
  job.Enter(1, 0, MC_FUNC_ALLGATHER);
  job.Enter(0, 0, MC_FUNC_ALLGATHER);
  job.Enter(1, 0, MC_FUNC_ALLREDUCE);
  const auto found = Update(job);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].ordinal, 6u);
  EXPECT_THAT(found[0].deviating, IsEmpty());
}

TEST_F(MismatchTest, OtherOrderAgainstAMajority) {
  HandMadeJob job(3);
  for (int i = 0; i < 3; ++i) {
    for (mc_func func : {MC_FUNC_ALLREDUCE, MC_FUNC_ALLGATHER}) {
      for (int rank : {0, 1, 2}) job.Finish(rank, job.Enter(rank, 0, func));
    }
    ASSERT_THAT(Update(job), IsEmpty());
  }
  for (int rank : {0, 1, 2}) {
    job.Enter(rank, 0, rank == 2 ? MC_FUNC_ALLGATHER : MC_FUNC_ALLREDUCE);
    job.Enter(rank, 0, rank == 2 ? MC_FUNC_ALLREDUCE : MC_FUNC_ALLGATHER);
  }
  const auto found = Update(job);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(Deviating(found[0]), ElementsAre(2));
}

TEST_F(MismatchTest, MessagesAreNotCompared) {
  HandMadeJob job(2);
  job.EnterP2p(0, 0, MC_OP_SEND, 1, 100);
  job.EnterP2p(1, 0, MC_OP_RECV, 0, 100);
  EXPECT_THAT(Update(job), IsEmpty());
  job.Sleep(5000);
  EXPECT_THAT(Update(job), IsEmpty());
}

TEST_F(MismatchTest, CommunicatorsAreApart) {
  HandMadeJob job(4);
  const int left = job.AddComm("left", {0, 1});
  const int right = job.AddComm("right", {2, 3});
  for (int i = 0; i < 3; ++i) {
    for (int rank = 0; rank < 4; ++rank) {
      const int comm = rank < 2 ? left : right;
      job.Finish(rank, job.Enter(rank, comm, rank < 2 ? MC_FUNC_ALLREDUCE : MC_FUNC_ALLGATHER));
    }
    ASSERT_THAT(Update(job), IsEmpty());
  }
  job.Enter(0, left);
  job.Enter(1, left, MC_FUNC_REDUCE);
  job.Enter(2, right, MC_FUNC_ALLGATHER);
  job.Enter(3, right, MC_FUNC_REDUCE);
  EXPECT_THAT(Update(job), SizeIs(2));
}

// The agent comes late: it sees calls from the middle, and of some ranks from
// another place than of others.
TEST_F(MismatchTest, AViewThatBeginsLateIsNoMismatch) {
  HandMadeJob job(2);
  const mc_func pattern[] = {MC_FUNC_ALLREDUCE, MC_FUNC_ALLGATHER, MC_FUNC_REDUCESCATTER};
  for (int i = 0; i < 12; ++i) {
    for (int rank : {0, 1}) {
      OpSample& op = job.Enter(rank, 0, pattern[i % 3]);
      op.ordinal += 1000 + static_cast<uint64_t>(rank);  // rank 1 lost count of one
      job.Finish(rank, op);
    }
    job.Sleep(100);
    EXPECT_THAT(Update(job), IsEmpty()) << i;
  }
  job.Sleep(3000);
  EXPECT_THAT(Update(job), IsEmpty());
}

TEST_F(MismatchTest, AViewThatBeginsLateStillSeesOne) {
  HandMadeJob job(3);
  for (int i = 0; i < 12; ++i) {
    for (int rank : {0, 1, 2}) {
      OpSample& op = job.Enter(rank);
      op.ordinal += 1000;
      job.Finish(rank, op);
    }
    job.Sleep(100);
    ASSERT_THAT(Update(job), IsEmpty());
  }
  for (int rank : {0, 1, 2}) {
    job.Enter(rank, 0, rank == 0 ? MC_FUNC_REDUCE : MC_FUNC_ALLREDUCE).ordinal += 1000;
  }
  const auto found = Update(job);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(Deviating(found[0]), ElementsAre(0));
}

TEST_F(MismatchTest, FromTwoHostsOneAfterTheOther) {
  HandMadeJob job({.ranks = 4, .ranks_per_host = 2});
  Agree(job, 2);
  for (int rank = 0; rank < 4; ++rank) {
    job.Enter(rank, 0, rank == 3 ? MC_FUNC_REDUCE : MC_FUNC_ALLREDUCE);
  }
  std::vector<Mismatch> found;
  for (const Snapshot& snapshot : job.Take()) {
    model_.Apply(snapshot);
    for (Mismatch& mismatch : detector_.Update(model_)) found.push_back(std::move(mismatch));
  }
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(Deviating(found[0]), ElementsAre(3));
}

}  // namespace
}  // namespace mycroft
