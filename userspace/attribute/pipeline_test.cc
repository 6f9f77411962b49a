// SPDX-License-Identifier: Apache-2.0
//
// The life of incidents, on jobs written by hand. A ring of four: rank r sends to
// r + 1 and receives from r - 1.
#include "userspace/attribute/pipeline.h"

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
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

using Costs = std::vector<HandMadeJob::Cost>;
constexpr uint64_t kSecond = 1'000'000'000;

class PipelineTest : public ::testing::Test {
 protected:
  void Steps(HandMadeJob& job, int count, const Costs& costs) {
    for (int i = 0; i < count; ++i) {
      job.Cycle(costs);
      job.Feed(pipeline_);
    }
  }
  // Healthy steps: the rhythm is known.
  void Warm(HandMadeJob& job) { Steps(job, 40, Costs(job.ranks())); }
  // Time goes by at the agent's ticks.
  void Wait(HandMadeJob& job, double ms) {
    for (double done = 0; done < ms; done += 100) {
      job.Sleep(100);
      job.Feed(pipeline_);
    }
  }
  // All enter; the GPU of `rank` takes nothing.
  void StickGpu(HandMadeJob& job, int rank) {
    job.Sleep(8);
    job.EnterAll();
    job.Sleep(1);
    job.Ring(rank, MC_FLOW_SEND_GPU, MC_FLOW_RECV_GPU);
    job.Feed(pipeline_);
  }
  void GoOn(HandMadeJob& job) {
    job.Sleep(5);
    job.FinishAll();
    job.Feed(pipeline_);
  }
  // Rank 1 becomes slow, while its proxy thread waits for a CPU `waited_ns` of the 90 ms of
  // each cycle, in so many turns; 0: the kernel does not count turns.
  // Before that it waited `usual_ns` of the 10 ms of each.
  void SlowOnABusyHost(const Costs& slow, uint64_t waited_ns, uint64_t turns = 0,
                       uint64_t usual_ns = 0, int cycles = 8) {
    HandMadeJob job(4);
    for (int rank = 0; rank < 4; ++rank) {
      job.Host(rank).threads = {
          {.tid = 7, .roles = MC_THREAD_PROGRESS, .slices = turns > 0 ? 1000u : 0u}};
    }
    for (int i = 0; i < 40; ++i) {
      job.Host(1).threads[0].runq_wait_ns += usual_ns;
      job.Host(1).threads[0].slices += usual_ns > 0 ? turns : 0;
      Steps(job, 1, Costs(job.ranks()));
    }
    for (int i = 0; i < cycles; ++i) {
      job.Host(1).threads[0].runq_wait_ns += waited_ns;
      job.Host(1).threads[0].slices += turns;
      Steps(job, 1, slow);
    }
  }
  const Incident& At(size_t index) { return pipeline_.incidents().at(index); }
  // The newest of `count` incidents has this one culprit.
  void ExpectLast(size_t count, IncidentKind kind, int rank, Component component) {
    ASSERT_THAT(pipeline_.incidents(), SizeIs(count));
    const Incident& last = At(count - 1);
    EXPECT_EQ(last.kind, kind) << ToString(last.kind) << ": " << last.summary;
    ASSERT_THAT(last.culprits, SizeIs(1)) << last.summary;
    EXPECT_EQ(last.culprits[0].rank, rank) << last.summary;
    EXPECT_EQ(last.culprits[0].component, component) << ToString(last.culprits[0].component);
  }
  void ExpectOne(IncidentKind kind, int rank, Component component) {
    ExpectLast(1, kind, rank, component);
  }
  Pipeline pipeline_;
};

// ---- quiet -----------------------------------------------------------------------------

TEST_F(PipelineTest, NothingAtAll) {
  pipeline_.Finish();
  EXPECT_THAT(pipeline_.incidents(), IsEmpty());
  EXPECT_THAT(pipeline_.BlindSpots(), IsEmpty());
  EXPECT_THAT(pipeline_.View().comms, IsEmpty());
  pipeline_.Feed(Snapshot());
  EXPECT_THAT(pipeline_.incidents(), IsEmpty());
}

TEST_F(PipelineTest, HealthyJob) {
  HandMadeJob job(4);
  Steps(job, 500, Costs(4));
  EXPECT_THAT(pipeline_.incidents(), IsEmpty());
  EXPECT_THAT(pipeline_.BlindSpots(), IsEmpty());
  EXPECT_THAT(pipeline_.View().comms, SizeIs(1));
}

TEST_F(PipelineTest, JobThatPausesAsAWholeIsNoIncident) {
  HandMadeJob job(4);
  Warm(job);
  Wait(job, 60'000);  // nothing in flight: an evaluation without communication
  Warm(job);
  Costs checkpoint(4);
  for (auto& cost : checkpoint) cost.host_ms = 20'000;
  for (int i = 0; i < 3; ++i) {
    Steps(job, 1, checkpoint);
    Warm(job);
  }
  EXPECT_THAT(pipeline_.incidents(), IsEmpty());
}

TEST_F(PipelineTest, JobThatSlowsDownAsAWholeIsNoIncident) {
  HandMadeJob job(4);
  Warm(job);
  Costs longer(4);  // every rank computes longer: a longer sequence length
  for (auto& cost : longer) cost.host_ms = 200;
  Steps(job, 40, longer);
  EXPECT_THAT(pipeline_.incidents(), IsEmpty());
}

// What was found to be nothing does not hide what comes after.
TEST_F(PipelineTest, JobThatSlowsDownAsAWholeAndThenBecauseOfOneRank) {
  HandMadeJob job(4);
  Warm(job);
  Costs longer(4);
  for (auto& cost : longer) cost.host_ms = 40;
  Steps(job, 100, longer);
  EXPECT_THAT(pipeline_.incidents(), IsEmpty());
  const uint64_t onset = job.now_ns();
  longer[1].host_ms = 400;
  Steps(job, 5, longer);
  ExpectOne(IncidentKind::kSlow, 1, Component::kHost);
  EXPECT_EQ(At(0).onset_ns, onset);
}

TEST_F(PipelineTest, LongFirstOperationIsNoIncident) {
  HandMadeJob job(4);
  job.EnterAll();
  Wait(job, 9'000);  // connecting, compiling
  EXPECT_THAT(pipeline_.incidents(), IsEmpty());
  job.FinishAll();
  Warm(job);
  EXPECT_THAT(pipeline_.incidents(), IsEmpty());
}

TEST_F(PipelineTest, JobThatEndsInOrder) {
  HandMadeJob job(4);
  Warm(job);
  for (int rank = 0; rank < 4; ++rank) {
    job.Finalize(rank);
    Wait(job, 300);
    job.Exit(rank);
    Wait(job, 700);
  }
  Wait(job, 5'000);
  EXPECT_THAT(pipeline_.incidents(), IsEmpty());
}

// ---- stuck -----------------------------------------------------------------------------

TEST_F(PipelineTest, StuckGpu) {
  HandMadeJob job(4);
  job.AddComm("pair", {2, 3});
  Warm(job);
  StickGpu(job, 2);
  const uint64_t onset = job.now_ns();
  Wait(job, 900);
  EXPECT_THAT(pipeline_.incidents(), IsEmpty());
  Wait(job, 300);
  ExpectOne(IncidentKind::kStuck, 2, Component::kGpu);
  const Incident& incident = At(0);
  EXPECT_EQ(incident.id, 1u);
  EXPECT_EQ(incident.onset_ns, onset);
  EXPECT_LE(incident.detected_ns, onset + 2 * kSecond);
  EXPECT_LE(incident.verdict_ns, onset + 3 * kSecond);
  EXPECT_GE(incident.verdict_ns, incident.detected_ns);
  EXPECT_FALSE(incident.cleared_ns);
  EXPECT_EQ(incident.comm_id, 0xc0u);
  EXPECT_EQ(incident.comm_name, "world");
  EXPECT_THAT(incident.summary, HasSubstr("rank 2"));
  EXPECT_THAT(incident.victims, UnorderedElementsAre(0, 1, 3));
  EXPECT_THAT(incident.chain, Not(IsEmpty()));
  EXPECT_THAT(incident.evidence, Not(IsEmpty()));
  EXPECT_THAT(incident.rejected, SizeIs(3));
  const Culprit& culprit = incident.culprits[0];
  EXPECT_EQ(culprit.host, "node0");
  EXPECT_EQ(culprit.pid, 1002u);
  EXPECT_GT(culprit.confidence, 0.5);
  ASSERT_THAT(culprit.comms, SizeIs(2));
  EXPECT_EQ(culprit.comms[1].comm_name, "pair");
  EXPECT_EQ(culprit.comms[1].rank, 0);
  EXPECT_THAT(culprit.where, HasSubstr("recv from rank 1"));

  Wait(job, 20'000);  // it lasts: the same incident, and the loss grows
  ASSERT_THAT(pipeline_.incidents(), SizeIs(1));
  EXPECT_NEAR(At(0).culprits[0].gpu_seconds_lost, 4 * 21.2, 1);
  EXPECT_FALSE(At(0).cleared_ns);
}

TEST_F(PipelineTest, StuckThatGoesOnWasSlow) {
  HandMadeJob job(4);
  Warm(job);
  StickGpu(job, 1);
  Wait(job, 4'000);
  ExpectOne(IncidentKind::kStuck, 1, Component::kGpu);
  GoOn(job);
  const uint64_t end = job.now_ns();
  Warm(job);
  ExpectOne(IncidentKind::kSlow, 1, Component::kGpu);
  ASSERT_TRUE(At(0).cleared_ns);
  EXPECT_EQ(*At(0).cleared_ns, end);
  EXPECT_THAT(At(0).summary, HasSubstr("went on after 4.0"));
  EXPECT_NEAR(At(0).culprits[0].gpu_seconds_lost, 4 * 4.0, 0.5);
}

TEST_F(PipelineTest, TheSameSoonAfterIsTheSameIncident) {
  HandMadeJob job(4);
  Warm(job);
  for (int i = 0; i < 2; ++i) {
    StickGpu(job, 1);
    Wait(job, 2'000);
    ExpectOne(IncidentKind::kStuck, 1, Component::kGpu);
    EXPECT_FALSE(At(0).cleared_ns) << i;
    GoOn(job);
    EXPECT_TRUE(At(0).cleared_ns) << i;
    Steps(job, 5, Costs(4));
  }
}

TEST_F(PipelineTest, TheSameMuchLaterOrAnotherCulpritIsAnotherIncident) {
  HandMadeJob job(4);
  Warm(job);
  StickGpu(job, 1);
  Wait(job, 2'000);
  GoOn(job);
  Steps(job, 5, Costs(4));
  StickGpu(job, 3);
  Wait(job, 2'000);
  ExpectLast(2, IncidentKind::kStuck, 3, Component::kGpu);
  EXPECT_EQ(At(1).id, 2u);
  GoOn(job);
  for (int i = 0; i < 30; ++i) Steps(job, 40, Costs(4));  // 12 s
  StickGpu(job, 1);
  Wait(job, 2'000);
  ExpectLast(3, IncidentKind::kStuck, 1, Component::kGpu);
}

TEST_F(PipelineTest, StuckInTheFirstOperationIsSaidAfterAWhile) {
  HandMadeJob job(4);
  job.EnterAll();
  job.Ring(0, MC_FLOW_SEND_GPU, MC_FLOW_RECV_GPU);
  Wait(job, 11'000);
  ExpectOne(IncidentKind::kStuck, 0, Component::kGpu);
}

TEST_F(PipelineTest, LongOperationsAreUsual) {
  // Operations of 5 s each: waiting 3 s is no stall, 20 s is.
  HandMadeJob job(4);
  for (int i = 0; i < 12; ++i) {
    job.EnterAll();
    Wait(job, 5'000);
    GoOn(job);
  }
  EXPECT_THAT(pipeline_.incidents(), IsEmpty());
  StickGpu(job, 1);
  Wait(job, 14'000);
  EXPECT_THAT(pipeline_.incidents(), IsEmpty());
  Wait(job, 3'000);
  ExpectOne(IncidentKind::kStuck, 1, Component::kGpu);
}

TEST_F(PipelineTest, Absent) {
  HandMadeJob job(4);
  Warm(job);
  job.Sleep(8);
  for (int rank : {0, 1, 2}) job.Enter(rank);
  const uint64_t entered = job.now_ns();
  Wait(job, 2'000);
  ExpectOne(IncidentKind::kAbsent, 3, Component::kHost);
  EXPECT_EQ(At(0).onset_ns, entered);
  EXPECT_THAT(At(0).victims, UnorderedElementsAre(0, 1, 2));
}

TEST_F(PipelineTest, AbsentThatComesWasSlow) {
  HandMadeJob job(4);
  Warm(job);
  for (int rank : {0, 1, 2}) job.Enter(rank);
  Wait(job, 3'000);
  ExpectOne(IncidentKind::kAbsent, 3, Component::kHost);
  job.Enter(3);
  GoOn(job);
  Warm(job);
  ExpectOne(IncidentKind::kSlow, 3, Component::kHost);
  EXPECT_TRUE(At(0).cleared_ns);
}

TEST_F(PipelineTest, Flush) {
  HandMadeJob job(4);
  Warm(job);
  job.EnterAll();
  job.Ring(0, MC_FLOW_SEND_GPU, MC_FLOW_RECV_FLUSH);
  Wait(job, 2'000);
  ExpectOne(IncidentKind::kStuck, 0, Component::kPcie);
}

TEST_F(PipelineTest, StoppedProcess) {
  HandMadeJob job(4);
  for (int rank = 0; rank < 4; ++rank) job.Host(rank);
  Warm(job);
  job.EnterAll();
  job.Host(2).state = 'T';
  Wait(job, 2'000);
  ExpectOne(IncidentKind::kStuck, 2, Component::kHost);
  EXPECT_GT(At(0).culprits[0].confidence, 0.9);
}

TEST_F(PipelineTest, NetworkOfOneRank) {
  HandMadeJob job(4);
  Warm(job);
  job.EnterAll();
  job.Sleep(1);
  job.Ring(0, MC_FLOW_SEND_NET, MC_FLOW_RECV_REMOTE);  // to 1
  job.Ring(1, MC_FLOW_SEND_NET, MC_FLOW_RECV_REMOTE);  // from 1
  Wait(job, 2'000);
  ExpectOne(IncidentKind::kStuck, 1, Component::kNic);
}

// Every path of a ring is broken: what is left when two have been taken away is no node.
TEST_F(PipelineTest, AllPathsOfARingArePinnedOnNobody) {
  HandMadeJob job(4);
  Warm(job);
  job.EnterAll();
  job.Sleep(1);
  for (int rank = 0; rank < 4; ++rank) job.Ring(rank, MC_FLOW_SEND_NET, MC_FLOW_RECV_REMOTE);
  Wait(job, 2'000);
  ASSERT_THAT(pipeline_.incidents(), SizeIs(1));
  EXPECT_THAT(At(0).culprits, SizeIs(4));
  for (const Culprit& culprit : At(0).culprits) {
    EXPECT_EQ(culprit.component, Component::kUnknown) << culprit.rank;
  }
}

TEST_F(PipelineTest, NetworksOfTwoRanks) {
  HandMadeJob job(8);
  Warm(job);
  job.EnterAll();
  job.Sleep(1);
  for (int rank : {0, 1, 4, 5}) job.Ring(rank, MC_FLOW_SEND_NET, MC_FLOW_RECV_REMOTE);
  Wait(job, 2'000);
  ASSERT_THAT(pipeline_.incidents(), SizeIs(1));
  EXPECT_THAT(At(0).culprits,
              UnorderedElementsAre(
                  AllOf(Field(&Culprit::rank, 1), Field(&Culprit::component, Component::kNic)),
                  AllOf(Field(&Culprit::rank, 5), Field(&Culprit::component, Component::kNic))));
}

TEST_F(PipelineTest, OnePathIsNotPinnedOnARank) {
  HandMadeJob job(4);
  Warm(job);
  job.EnterAll();
  job.Sleep(1);
  job.Ring(1, MC_FLOW_SEND_NET, MC_FLOW_RECV_REMOTE);
  Wait(job, 2'000);
  ExpectOne(IncidentKind::kStuck, 1, Component::kUnknown);
  EXPECT_THAT(At(0).culprits[0].candidates, Contains(Component::kNic));
  EXPECT_THAT(At(0).culprits[0].candidates, Contains(Component::kFabric));
  EXPECT_LE(At(0).culprits[0].confidence, 0.5);
}

TEST_F(PipelineTest, TwoCulprits) {
  HandMadeJob job(6);
  Warm(job);
  job.EnterAll();
  job.Ring(1, MC_FLOW_SEND_GPU, MC_FLOW_RECV_GPU);
  job.Ring(4, MC_FLOW_SEND_GPU, MC_FLOW_RECV_FLUSH);
  Wait(job, 2'000);
  ASSERT_THAT(pipeline_.incidents(), SizeIs(1));
  EXPECT_THAT(At(0).culprits,
              UnorderedElementsAre(
                  AllOf(Field(&Culprit::rank, 1), Field(&Culprit::component, Component::kGpu)),
                  AllOf(Field(&Culprit::rank, 4), Field(&Culprit::component, Component::kPcie))));
  EXPECT_THAT(At(0).victims, UnorderedElementsAre(0, 2, 3, 5));
}

TEST_F(PipelineTest, NewEvidenceMayNameAnother) {
  // First it looks as if a path was broken; then the host says that a process is stopped.
  HandMadeJob job(4);
  Warm(job);
  job.EnterAll();
  job.Sleep(1);
  job.Ring(1, MC_FLOW_SEND_NET, MC_FLOW_RECV_REMOTE);
  Wait(job, 1'500);
  ExpectOne(IncidentKind::kStuck, 1, Component::kUnknown);
  for (int rank = 0; rank < 4; ++rank) job.Host(rank);
  job.Host(2).state = 'T';
  Wait(job, 1'500);
  ExpectOne(IncidentKind::kStuck, 2, Component::kHost);
  EXPECT_FALSE(At(0).cleared_ns);
}

// ---- dead ------------------------------------------------------------------------------

TEST_F(PipelineTest, Dead) {
  HandMadeJob job(4);
  Warm(job);
  job.EnterAll();
  job.Sleep(5);
  job.Exit(1);
  const uint64_t death = job.now_ns();
  Wait(job, 1'200);
  ExpectOne(IncidentKind::kDead, 1, Component::kHost);
  EXPECT_LE(At(0).verdict_ns, death + kSecond);
  EXPECT_LE(At(0).onset_ns, death + kSecond / 10);
  EXPECT_FALSE(At(0).cleared_ns);
  // The others notice, give up and end: after-effects.
  for (int rank : {0, 2, 3}) job.Finalize(rank);
  Wait(job, 1'000);
  for (int rank : {0, 2, 3}) job.Exit(rank);
  Wait(job, 3'000);
  ExpectOne(IncidentKind::kDead, 1, Component::kHost);
  EXPECT_TRUE(At(0).cleared_ns);
}

TEST_F(PipelineTest, AfterEffectsOfAJobThatBreaksUp) {
  // A stuck GPU; a watchdog of rank 0 ends its process, then the others go.
  HandMadeJob job(4);
  Warm(job);
  StickGpu(job, 2);
  Wait(job, 3'000);
  ExpectOne(IncidentKind::kStuck, 2, Component::kGpu);
  job.Exit(0);
  Wait(job, 1'000);
  job.Exit(1);
  Wait(job, 1'000);
  ExpectOne(IncidentKind::kStuck, 2, Component::kGpu);
  job.Exit(2);
  job.Exit(3);
  Wait(job, 3'000);
  ExpectOne(IncidentKind::kStuck, 2, Component::kGpu);
  EXPECT_TRUE(At(0).cleared_ns);
}

// ---- slow ------------------------------------------------------------------------------

TEST_F(PipelineTest, SlowGpu) {
  HandMadeJob job(4);
  Warm(job);
  const uint64_t onset = job.now_ns();
  Costs slow(4);
  slow[2].gpu_ms = 81;
  Steps(job, 5, slow);
  ExpectOne(IncidentKind::kSlow, 2, Component::kGpu);
  EXPECT_EQ(At(0).onset_ns, onset);
  EXPECT_FALSE(At(0).cleared_ns);
  EXPECT_THAT(At(0).summary, AllOf(HasSubstr("instead of 10.4 ms"), HasSubstr("GPU of rank 2")));
  EXPECT_THAT(At(0).victims, ElementsAre(0, 1, 3));
  EXPECT_EQ(At(0).comm_name, "world");
  Steps(job, 20, slow);
  EXPECT_NEAR(At(0).culprits[0].gpu_seconds_lost, 25 * 0.08 * 4, 0.5);
  const uint64_t end = job.now_ns();
  Steps(job, 10, Costs(4));
  ExpectOne(IncidentKind::kSlow, 2, Component::kGpu);
  ASSERT_TRUE(At(0).cleared_ns);
  EXPECT_EQ(*At(0).cleared_ns, end);
}

TEST_F(PipelineTest, SlowAgainSoonAfterIsTheSameIncident) {
  HandMadeJob job(4);
  Warm(job);
  Costs slow(4);
  slow[0].host_ms = 150;
  for (int i = 0; i < 3; ++i) {
    Steps(job, 8, slow);
    ExpectOne(IncidentKind::kSlow, 0, Component::kHost);
    EXPECT_FALSE(At(0).cleared_ns) << i;
    Steps(job, 8, Costs(4));
    EXPECT_TRUE(At(0).cleared_ns) << i;
  }
}

TEST_F(PipelineTest, SlowBecauseOfStarvationIsTheHost) {
  Costs slow(4);
  slow[1].gpu_ms = 81;
  SlowOnABusyHost(slow, 60'000'000);
  ExpectOne(IncidentKind::kSlow, 1, Component::kHost);
  EXPECT_THAT(At(0).evidence, Contains(HasSubstr("waited for a CPU")));
}

// On a busy host threads wait for a CPU in every fault: what counts is whether that
// explains what was lost.
TEST_F(PipelineTest, ABusyHostIsNotTheCauseOfASlowGpu) {
  Costs slow(4);
  slow[1].gpu_ms = 81;
  SlowOnABusyHost(slow, 20'000'000);
  ExpectOne(IncidentKind::kSlow, 1, Component::kGpu);
  EXPECT_THAT(At(0).rejected, Contains(Field(&Rejected::reason, HasSubstr("too little"))));
}

// Its threads waited as much before: what has changed is the GPU. Also when the samples of
// before are no longer kept.
TEST_F(PipelineTest, AHostAsBusyAsEver) {
  Costs slow(4);
  slow[1].gpu_ms = 81;
  SlowOnABusyHost(slow, 60'000'000, 0, 6'000'000, 200);
  ExpectOne(IncidentKind::kSlow, 1, Component::kGpu);
}

// It waited a third of the time, and now waits two thirds: that costs as much as if it had
// not waited before.
TEST_F(PipelineTest, ABusyHostThatBecomesBusier) {
  Costs slow(4);
  slow[1].gpu_ms = 81;
  SlowOnABusyHost(slow, 84'000'000, 0, 3'000'000, 200);
  ExpectOne(IncidentKind::kSlow, 1, Component::kHost);
}

TEST_F(PipelineTest, GpuOrHostWhenWaitingForACpuExplainsSomeOfIt) {
  Costs slow(4);
  slow[1].gpu_ms = 81;
  SlowOnABusyHost(slow, 34'000'000);
  ExpectOne(IncidentKind::kSlow, 1, Component::kUnknown);
  EXPECT_THAT(At(0).culprits[0].candidates, ElementsAre(Component::kGpu, Component::kHost));
}

// A proxy thread that is woken often waits often: what a step takes longer must be some
// turns' wait, else the network is slow and the host only busy.
TEST_F(PipelineTest, ASlowNetworkOnABusyHost) {
  Costs slow(4);
  slow[1].net_ms = 81;
  slow[1].leaves_slowly = true;
  SlowOnABusyHost(slow, 60'000'000, 100);
  ExpectOne(IncidentKind::kSlow, 1, Component::kNic);
}

TEST_F(PipelineTest, AStarvedProxyLooksLikeASlowNetwork) {
  Costs slow(4);
  slow[1].net_ms = 81;
  slow[1].leaves_slowly = true;
  SlowOnABusyHost(slow, 60'000'000, 3);
  ExpectOne(IncidentKind::kSlow, 1, Component::kHost);
}

TEST_F(PipelineTest, SlowThenStuckIsOneIncident) {
  HandMadeJob job(4);
  Warm(job);
  Costs slow(4);
  slow[2].gpu_ms = 81;
  Steps(job, 8, slow);
  ExpectOne(IncidentKind::kSlow, 2, Component::kGpu);
  const uint64_t onset = At(0).onset_ns;
  StickGpu(job, 2);
  Wait(job, 10'000);
  ExpectOne(IncidentKind::kStuck, 2, Component::kGpu);
  EXPECT_EQ(At(0).onset_ns, onset);
  EXPECT_FALSE(At(0).cleared_ns);
}

TEST_F(PipelineTest, SlowThenStuckForAnotherReason) {
  HandMadeJob job(4);
  Warm(job);
  Costs slow(4);
  slow[2].gpu_ms = 81;
  Steps(job, 8, slow);
  ExpectOne(IncidentKind::kSlow, 2, Component::kGpu);
  job.EnterAll();
  job.Ring(0, MC_FLOW_SEND_GPU, MC_FLOW_RECV_FLUSH);
  Wait(job, 10'000);
  ExpectLast(2, IncidentKind::kStuck, 0, Component::kPcie);
  EXPECT_TRUE(At(0).cleared_ns);  // what it was has ended; what holds now is another thing
  EXPECT_FALSE(At(1).cleared_ns);
}

TEST_F(PipelineTest, SlowThenMuchSlowerForAnotherReason) {
  HandMadeJob job(4);
  Warm(job);
  Costs slow(4);
  slow[2].gpu_ms = 30;
  Steps(job, 60, slow);
  ExpectOne(IncidentKind::kSlow, 2, Component::kGpu);
  const uint64_t onset = job.now_ns();
  slow[1].host_ms = 250;
  Steps(job, 4, slow);
  ExpectLast(2, IncidentKind::kSlow, 1, Component::kHost);
  EXPECT_EQ(At(0).cleared_ns, onset);
  EXPECT_EQ(At(1).onset_ns, onset);
  EXPECT_FALSE(At(1).cleared_ns);
}

TEST_F(PipelineTest, SlowThenMuchSlowerForTheSameReasonIsOneIncident) {
  HandMadeJob job(4);
  Warm(job);
  Costs slow(4);
  slow[2].gpu_ms = 30;
  Steps(job, 60, slow);
  const uint64_t onset = At(0).onset_ns;
  slow[2].gpu_ms = 250;
  Steps(job, 4, slow);
  ExpectOne(IncidentKind::kSlow, 2, Component::kGpu);
  EXPECT_EQ(At(0).onset_ns, onset);
  EXPECT_THAT(At(0).summary, HasSubstr("instead of 10.4 ms"));
}

// A slow job hangs after ten of its cycles, not only after five seconds.
TEST_F(PipelineTest, SlowThenStuckIsSoonSeen) {
  HandMadeJob job(4);
  Warm(job);
  Costs slow(4);
  slow[2].gpu_ms = 81;
  Steps(job, 8, slow);
  StickGpu(job, 1);
  Wait(job, 1'600);
  ExpectLast(2, IncidentKind::kStuck, 1, Component::kGpu);
}

TEST_F(PipelineTest, SlowThenDead) {
  HandMadeJob job(4);
  Warm(job);
  Costs slow(4);
  slow[2].gpu_ms = 81;
  Steps(job, 8, slow);
  job.EnterAll();
  job.Exit(1);
  Wait(job, 2'000);
  ExpectLast(2, IncidentKind::kDead, 1, Component::kHost);
  EXPECT_TRUE(At(0).cleared_ns);
}

// ---- mismatch --------------------------------------------------------------------------

TEST_F(PipelineTest, MismatchAndItsAfterEffects) {
  HandMadeJob job(4);
  Warm(job);
  job.Sleep(8);
  for (int rank = 0; rank < 4; ++rank) {
    job.Enter(rank, 0, rank == 1 ? MC_FUNC_BROADCAST : MC_FUNC_ALLREDUCE);
  }
  job.Feed(pipeline_);
  ExpectOne(IncidentKind::kMismatch, 1, Component::kApp);
  EXPECT_EQ(At(0).verdict_ns, job.now_ns());
  EXPECT_THAT(At(0).summary, HasSubstr("rank 1"));
  EXPECT_THAT(At(0).evidence, Contains(HasSubstr("rank 1: Broadcast")));
  EXPECT_THAT(At(0).victims, UnorderedElementsAre(0, 2, 3));
  Wait(job, 20'000);  // it hangs, of course
  ExpectOne(IncidentKind::kMismatch, 1, Component::kApp);
  EXPECT_FALSE(At(0).cleared_ns);
  for (int rank = 0; rank < 4; ++rank) job.Exit(rank);
  Wait(job, 1'000);
  ExpectOne(IncidentKind::kMismatch, 1, Component::kApp);
  EXPECT_TRUE(At(0).cleared_ns);
}

TEST_F(PipelineTest, MismatchThatDoesNotHang) {
  // The data is wrong from here on; what follows is no incident of its own.
  HandMadeJob job(4);
  Warm(job);
  for (int rank = 0; rank < 4; ++rank) job.Enter(rank, 0, MC_FUNC_ALLREDUCE, rank == 1 ? 9 : 10);
  job.Feed(pipeline_);
  GoOn(job);
  Costs slow(4);
  slow[2].gpu_ms = 81;
  Steps(job, 10, slow);
  ExpectOne(IncidentKind::kMismatch, 1, Component::kApp);
}

TEST_F(PipelineTest, MismatchOnACommunicatorThatIsGone) {
  HandMadeJob job(4);
  Warm(job);
  job.Enter(0);
  job.Enter(1, 0, MC_FUNC_REDUCE);
  job.Feed(pipeline_);
  // Before it is decided, all lines are used for other communicators.
  for (int rank = 0; rank < 4; ++rank) {
    job.Comm(rank).generation = 2;
    job.Comm(rank).comm_id = 0xdd;
  }
  Wait(job, 3'000);
  EXPECT_LE(pipeline_.incidents().size(), 1u);
}

// ---- deadlock --------------------------------------------------------------------------

TEST_F(PipelineTest, DeadlockNamesWhoLeftItsRhythm) {
  HandMadeJob job(2);
  const int a = job.AddComm("a", {0, 1});
  const int b = job.AddComm("b", {0, 1});
  for (int i = 0; i < 30; ++i) {
    job.Cycle(Costs(2), a);
    job.Cycle(Costs(2), b);
    job.Feed(pipeline_);
  }
  job.Enter(0, a);
  job.Enter(1, b);  // it has always been a first
  Wait(job, 3'000);
  ExpectOne(IncidentKind::kStuck, 1, Component::kApp);
  EXPECT_THAT(At(0).summary, HasSubstr("deadlock"));
  EXPECT_THAT(At(0).chain, SizeIs(2));
}

TEST_F(PipelineTest, DeadlockWithoutAHistoryNamesNoOne) {
  HandMadeJob job(2);
  const int a = job.AddComm("a", {0, 1});
  const int b = job.AddComm("b", {0, 1});
  Warm(job);
  job.Enter(0, a);
  job.Enter(1, b);
  Wait(job, 3'000);
  ASSERT_THAT(pipeline_.incidents(), SizeIs(1));
  for (const Culprit& culprit : At(0).culprits) {
    EXPECT_EQ(culprit.component, Component::kUnknown);
    EXPECT_THAT(culprit.candidates, UnorderedElementsAre(Component::kApp, Component::kCcl));
    EXPECT_LE(culprit.confidence, 0.5);
  }
}

// ---- what is not seen ------------------------------------------------------------------

TEST_F(PipelineTest, ChainThatEndsAtARankThatIsNotSeen) {
  HandMadeJob job(4);
  job.Hide(2);
  Warm(job);
  job.Sleep(8);
  job.EnterAll();
  const uint64_t onset = job.now_ns();
  Wait(job, 5'000);
  ASSERT_THAT(pipeline_.incidents(), SizeIs(1));
  EXPECT_THAT(At(0).culprits, IsEmpty());
  EXPECT_THAT(At(0).summary, HasSubstr("rank 2"));
  EXPECT_THAT(At(0).evidence, Contains(HasSubstr("not enough evidence")));
  EXPECT_LE(At(0).detected_ns, onset + 4 * kSecond);
  EXPECT_THAT(pipeline_.BlindSpots(),
              Contains(Field(&BlindSpot::what, HasSubstr("3 of 4 ranks are seen"))));
}

TEST_F(PipelineTest, CulpritThatIsSeenIsNamedAlthoughAnotherRankIsNot) {
  HandMadeJob job(4);
  job.Hide(3);
  Warm(job);
  StickGpu(job, 1);
  Wait(job, 5'000);
  ExpectOne(IncidentKind::kStuck, 1, Component::kGpu);
}

TEST_F(PipelineTest, TwoHosts) {
  HandMadeJob job({.ranks = 4, .ranks_per_host = 2});
  Warm(job);
  StickGpu(job, 3);
  Wait(job, 2'000);
  ExpectOne(IncidentKind::kStuck, 3, Component::kGpu);
  EXPECT_EQ(At(0).culprits[0].host, "node1");
  GoOn(job);
  Warm(job);
  Costs slow(4);
  slow[0].gpu_ms = 81;
  Steps(job, 10, slow);
  ExpectLast(2, IncidentKind::kSlow, 0, Component::kGpu);
  EXPECT_EQ(At(1).culprits[0].host, "node0");
}

TEST_F(PipelineTest, TwoJobsOnOneHost) {
  HandMadeJob a(2);
  HandMadeJob b(2);
  const auto feed = [&] {
    Snapshot both = a.Take()[0];
    Snapshot of_b = b.Take()[0];
    for (ProcessSample& process : of_b.processes) {
      process.key.pid += 500;
      for (CommSample& comm : process.comms) comm.comm_id += 0x1000;
      both.processes.push_back(process);
    }
    pipeline_.Feed(both);
  };
  for (int i = 0; i < 40; ++i) {
    a.Cycle(Costs(2));
    b.Cycle(Costs(2));
    feed();
  }
  a.EnterAll();
  a.Ring(0, MC_FLOW_SEND_GPU, MC_FLOW_RECV_GPU);
  for (int i = 0; i < 40; ++i) {
    a.Sleep(100);
    b.Cycle(Costs(2));
    b.Sleep(100 - 10.4);
    feed();
  }
  ASSERT_THAT(pipeline_.incidents(), SizeIs(1));
  EXPECT_EQ(At(0).culprits.at(0).pid, 1000u);
  b.EnterAll();
  b.Ring(1, MC_FLOW_SEND_GPU, MC_FLOW_RECV_FLUSH);
  for (int i = 0; i < 30; ++i) {
    a.Sleep(100);
    b.Sleep(100);
    feed();
  }
  ASSERT_THAT(pipeline_.incidents(), SizeIs(2));
  EXPECT_EQ(At(1).culprits.at(0).pid, 1501u);
}

TEST_F(PipelineTest, BlindSpots) {
  HandMadeJob job(2);
  job.Process(0).lost[MC_LOSS_FLOW_TABLE_FULL] = 3;
  job.Process(1).lost[MC_LOSS_FLOW_TABLE_FULL] = 4;
  job.Process(1).lost[MC_LOSS_DUPLICATE_STEP] = 9;  // no loss: NCCL tries again
  job.Process(1).torn_reads = 2;
  std::vector<Snapshot> snapshots = job.Take();
  snapshots[0].processes[0].ops.emplace_back();  // nonsense
  snapshots[0].blind_spots = {{"pid 7 has no board", "x", "y"}};
  snapshots[0].blind_spots_changed = true;
  pipeline_.Feed(snapshots[0]);
  EXPECT_THAT(pipeline_.BlindSpots(),
              ElementsAre(Field(&BlindSpot::what, "pid 7 has no board"),
                          Field(&BlindSpot::what, HasSubstr("7 proxy operations belong to flows")),
                          Field(&BlindSpot::what, HasSubstr("2 lines of boards")),
                          Field(&BlindSpot::what, HasSubstr("1 malformed records"))));
}

TEST_F(PipelineTest, TheSameSnapshotsGiveTheSameIncidents) {
  Pipeline again;
  HandMadeJob job({.ranks = 6, .ranks_per_host = 3});
  const auto both = [&] {
    for (const Snapshot& snapshot : job.Take()) {
      pipeline_.Feed(snapshot);
      again.Feed(snapshot);
    }
  };
  Costs slow(6);
  slow[1].gpu_ms = 81;
  slow[4].net_ms = 70;
  for (int i = 0; i < 60; ++i) {
    job.Cycle(i < 40 ? Costs(6) : slow);
    both();
  }
  job.EnterAll();
  job.Ring(3, MC_FLOW_SEND_NET, MC_FLOW_RECV_FLUSH);
  for (int i = 0; i < 40; ++i) {
    job.Sleep(100);
    both();
  }
  EXPECT_THAT(pipeline_.incidents(), Not(IsEmpty()));
  EXPECT_EQ(pipeline_.incidents(), again.incidents());
  const Pipeline moved = std::move(again);
  EXPECT_EQ(pipeline_.incidents(), moved.incidents());
}

TEST_F(PipelineTest, StuckMinimumIsAnOption) {
  pipeline_ = Pipeline({.stuck_min_ns = 5 * kSecond});
  HandMadeJob job(4);
  Warm(job);
  StickGpu(job, 1);
  Wait(job, 4'500);
  EXPECT_THAT(pipeline_.incidents(), IsEmpty());
  Wait(job, 1'000);
  ExpectOne(IncidentKind::kStuck, 1, Component::kGpu);
}

TEST_F(PipelineTest, SlowFactorIsAnOption) {
  pipeline_ = Pipeline({.slow_factor = 20});
  HandMadeJob job(4);
  Warm(job);
  Costs slow(4);
  slow[2].gpu_ms = 81;  // 8.7 times as long
  Steps(job, 5, slow);
  EXPECT_THAT(pipeline_.incidents(), IsEmpty());
}

}  // namespace
}  // namespace mycroft
