// SPDX-License-Identifier: Apache-2.0
//
// Each row of the table of waits as a job written by hand. A ring of four: rank r
// sends to r + 1 and receives from r - 1.
#include "userspace/attribute/wait_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "userspace/decode/testing/hand_made_job.h"

namespace mycroft {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr uint64_t kStillNs = 500'000'000;

class WaitGraphTest : public ::testing::Test {
 protected:
  // Some steps, so that ranks and sequences are known.
  void Warm(HandMadeJob& job, int steps = 3) {
    for (int i = 0; i < steps; ++i) {
      job.Sleep(10);
      job.EnterAll();
      job.Sleep(10);
      job.FinishAll();
    }
    job.Apply(model_);
    job.Sleep(10);
  }
  // What the graph says `ms` later.
  WaitGraph After(HandMadeJob& job, double ms = 2000) {
    job.Apply(model_);
    job.Sleep(ms);
    job.Apply(model_);
    const auto jobs = model_.Jobs();
    EXPECT_THAT(jobs, SizeIs(1));
    return BuildWaitGraph(model_, jobs[0], kStillNs);
  }
  static std::vector<int> Ranks(const std::vector<const Worker*>& workers) {
    std::vector<int> ranks;
    for (const Worker* worker : workers) ranks.push_back(worker->job_rank);
    return ranks;
  }
  // The only sink, of this kind, at this rank.
  static const Sink& OnlySink(const WaitGraph& graph, SinkKind kind, int rank) {
    static const Sink none;
    EXPECT_THAT(graph.sinks, SizeIs(1));
    if (graph.sinks.empty()) return none;
    const Sink& sink = graph.sinks[0];
    EXPECT_EQ(static_cast<int>(sink.kind), static_cast<int>(kind)) << sink.why;
    EXPECT_NE(sink.worker, nullptr);
    if (sink.worker != nullptr) {
      EXPECT_EQ(sink.worker->job_rank, rank) << sink.why;
    }
    return sink;
  }
  JobModel model_;
};

// ---- one sink each: the rows of the table ------------------------------------------

TEST_F(WaitGraphTest, GpuThatDoesNotConsume) {
  HandMadeJob job(4);
  Warm(job);
  job.EnterAll();
  job.Sleep(5);
  job.Ring(1, MC_FLOW_SEND_GPU, MC_FLOW_RECV_GPU);
  job.Ring(0, MC_FLOW_SEND_PEER, MC_FLOW_RECV_REMOTE);  // its slots at rank 1 are full
  const WaitGraph graph = After(job);
  const Sink& sink = OnlySink(graph, SinkKind::kGpu, 1);
  EXPECT_THAT(sink.where, HasSubstr("recv from rank 0"));
  EXPECT_THAT(sink.why, HasSubstr("its GPU does not take it"));
  EXPECT_EQ(sink.since_ns, job.now_ns() - 2'000'000'000);
  EXPECT_THAT(Ranks(graph.victims), UnorderedElementsAre(0, 2, 3));
  EXPECT_THAT(graph.cycle, IsEmpty());
  // 0 waits for 1 (no slot), 2 waits for 1 (no data), 3 for 2: the farthest is 3.
  ASSERT_THAT(graph.chain, SizeIs(2));
  EXPECT_EQ(graph.chain[0].from->job_rank, 3);
  EXPECT_EQ(graph.chain[0].to->job_rank, 2);
  EXPECT_EQ(graph.chain[1].from->job_rank, 2);
  EXPECT_EQ(graph.chain[1].to->job_rank, 1);
}

TEST_F(WaitGraphTest, GpuThatDoesNotFillWithoutAReceiveOfItsOwn) {
  HandMadeJob job(2);
  Warm(job);
  job.EnterP2p(0, 0, MC_OP_SEND, 1);  // SendGPUWait
  job.EnterP2p(1, 0, MC_OP_RECV, 0);  // RecvWait
  const WaitGraph graph = After(job);
  const Sink& sink = OnlySink(graph, SinkKind::kGpu, 0);
  EXPECT_THAT(sink.where, HasSubstr("send to rank 1"));
  EXPECT_THAT(sink.why, HasSubstr("does not fill the send slots"));
  EXPECT_THAT(Ranks(graph.victims), ElementsAre(1));
}

TEST_F(WaitGraphTest, SendGpuWaitWithAWaitingReceiveGoesUpstream) {
  HandMadeJob job(4);
  Warm(job);
  job.EnterAll();  // all: SendGPUWait and RecvWait
  job.Sleep(5);
  job.Ring(2, MC_FLOW_SEND_GPU, MC_FLOW_RECV_GPU);
  const WaitGraph graph = After(job);
  OnlySink(graph, SinkKind::kGpu, 2);
  // 3 waits for 2, 0 for 3, 1 for 0.
  ASSERT_THAT(graph.chain, SizeIs(3));
  EXPECT_EQ(graph.chain[0].from->job_rank, 1);
  EXPECT_EQ(graph.chain[2].to->job_rank, 2);
}

TEST_F(WaitGraphTest, FlushThatDoesNotEnd) {
  HandMadeJob job(4);
  Warm(job);
  job.EnterAll();
  job.Sleep(5);
  job.Ring(3, MC_FLOW_SEND_GPU, MC_FLOW_RECV_FLUSH);
  job.Ring(2, MC_FLOW_SEND_PEER, MC_FLOW_RECV_REMOTE);
  const WaitGraph graph = After(job);
  const Sink& sink = OnlySink(graph, SinkKind::kFlush, 3);
  EXPECT_THAT(sink.why, HasSubstr("flush"));
  EXPECT_THAT(Ranks(graph.victims), UnorderedElementsAre(0, 1, 2));
}

TEST_F(WaitGraphTest, InTheNetwork) {
  HandMadeJob job(4);
  Warm(job);
  job.EnterAll();
  job.Sleep(5);
  job.Ring(1, MC_FLOW_SEND_NET, MC_FLOW_RECV_GPU);  // handed to the NIC; blocked, so it cannot take
  const WaitGraph graph = After(job);
  const Sink& sink = OnlySink(graph, SinkKind::kPath, 1);
  ASSERT_NE(sink.other, nullptr);
  EXPECT_EQ(sink.other->job_rank, 2);
  EXPECT_THAT(sink.where, HasSubstr("rank 1 to rank 2"));
  EXPECT_TRUE(sink.nothing_in_flight);  // all that was acknowledged has arrived, no more
  EXPECT_THAT(Ranks(graph.victims), UnorderedElementsAre(0, 1, 2, 3));
}

TEST_F(WaitGraphTest, InTheNetworkAndPartlyArrived) {
  HandMadeJob job(4);
  Warm(job);
  job.EnterAll();
  job.Sleep(5);
  job.Ring(1, MC_FLOW_SEND_NET, MC_FLOW_RECV_GPU);
  for (int channel : {0, 1}) {  // acknowledged and not received
    FlowSample& flow = job.Flow(1, 0, channel, MC_SEND, 2);
    flow.done = flow.transmitted = flow.ready = 6;
    flow.posted = 8;
  }
  const WaitGraph graph = After(job);
  const Sink& sink = OnlySink(graph, SinkKind::kPath, 1);
  EXPECT_FALSE(sink.nothing_in_flight);
}

TEST_F(WaitGraphTest, PeerWaitOfASenderWhoseReceiverHasOfferedABuffer) {
  HandMadeJob job(4);
  Warm(job);
  job.EnterAll();
  job.Sleep(5);
  job.Ring(1, MC_FLOW_SEND_PEER, MC_FLOW_RECV_GPU);  // rank 2 says RecvWait: a lost credit
  const WaitGraph graph = After(job);
  const Sink& sink = OnlySink(graph, SinkKind::kPath, 1);
  ASSERT_NE(sink.other, nullptr);
  EXPECT_EQ(sink.other->job_rank, 2);
  EXPECT_THAT(sink.why, HasSubstr("offered a buffer"));
  EXPECT_FALSE(sink.nothing_in_flight);
}

TEST_F(WaitGraphTest, PeerWaitForAReceiverWithoutFreeSlots) {
  HandMadeJob job(2);
  Warm(job);
  job.EnterP2p(0, 0, MC_OP_SEND, 1);
  job.EnterP2p(1, 0, MC_OP_RECV, 0);
  job.Set(job.Flow(0, 0, 0, MC_SEND, 1), MC_FLOW_SEND_PEER);
  job.Set(job.Flow(1, 0, 0, MC_RECV, 0), MC_FLOW_RECV_GPU);
  const WaitGraph graph = After(job);
  OnlySink(graph, SinkKind::kGpu, 1);
  ASSERT_THAT(graph.chain, SizeIs(1));
  EXPECT_THAT(graph.chain[0].why, HasSubstr("no free slot"));
}

TEST_F(WaitGraphTest, ReceivedByNobodyAlthoughTheSenderHasFinished) {
  HandMadeJob job(2);
  Warm(job);
  OpSample& send = job.EnterP2p(0, 0, MC_OP_SEND, 1);
  job.EnterP2p(1, 0, MC_OP_RECV, 0);
  job.Sleep(1);
  job.Finish(0, send);
  const WaitGraph graph = After(job);
  const Sink& sink = OnlySink(graph, SinkKind::kPath, 0);
  EXPECT_THAT(sink.why, HasSubstr("has finished sending"));
  EXPECT_EQ(sink.other->job_rank, 1);
}

TEST_F(WaitGraphTest, ProxyThatDoesNotTakeUpTheOperation) {
  HandMadeJob job(4);
  Warm(job);
  job.EnterAll();
  job.Ring(2, MC_FLOW_QUEUED, MC_FLOW_QUEUED);
  job.Ring(1, MC_FLOW_SEND_PEER, MC_FLOW_RECV_REMOTE);
  const WaitGraph graph = After(job);
  const Sink& sink = OnlySink(graph, SinkKind::kHostProxy, 2);
  EXPECT_THAT(sink.why, HasSubstr("the proxy thread has not taken up AllReduce #3 on world"));
}

// Rank 1 has just sent again: what rank 2 does not have yet is not lost.
TEST_F(WaitGraphTest, DataThatIsOnItsWay) {
  HandMadeJob job(4);
  Warm(job);
  job.EnterAll();
  job.Sleep(5);
  job.Ring(0, MC_FLOW_SEND_GPU, MC_FLOW_RECV_GPU);
  job.Apply(model_);
  job.Sleep(2000);
  for (int channel : {0, 1}) {
    FlowSample& send = job.Flow(1, 0, channel, MC_SEND, 2);
    send.posted = send.ready = send.transmitted = send.done =
        job.Flow(2, 0, channel, MC_RECV, 1).ready + 1;
    send.state_ns = send.moved_ns = job.now_ns();
  }
  OnlySink(After(job, 10), SinkKind::kGpu, 0);
  // Two seconds later it is.
  EXPECT_THAT(After(job).sinks, Contains(testing::Field(&Sink::kind, SinkKind::kPath)));
}

TEST_F(WaitGraphTest, ProgressThreadThatHasEnded) {
  HandMadeJob job(4);
  HostSample& host = job.Host(2);
  host.state = 'S';
  host.threads = {{.tid = 7, .roles = MC_THREAD_LAUNCH, .state = 'S'},
                  {.tid = 8, .roles = MC_THREAD_PROGRESS, .state = 'X'},
                  {.tid = 9, .roles = MC_THREAD_PROGRESS, .state = 'S'}};
  Warm(job);
  job.EnterAll();
  job.Sleep(5);
  job.Ring(2, MC_FLOW_SEND_GPU, MC_FLOW_RECV_FLUSH);  // as it left them
  job.Ring(1, MC_FLOW_SEND_PEER, MC_FLOW_RECV_REMOTE);
  OnlySink(After(job), SinkKind::kFlush, 2);  // another is left, of some communicator
  job.Host(2).threads[2].state = 'X';
  const WaitGraph graph = After(job);
  EXPECT_THAT(OnlySink(graph, SinkKind::kProxyEnded, 2).why,
              HasSubstr("its progress thread has ended"));
  EXPECT_THAT(Ranks(graph.victims), UnorderedElementsAre(0, 1, 3));
}

TEST_F(WaitGraphTest, ProgressThreadsThatEndedBecauseAPeerIsGone) {
  HandMadeJob job(4);
  for (int rank : {1, 3}) {
    HostSample& host = job.Host(rank);
    host.state = 'S';
    host.threads = {{.tid = 7, .roles = MC_THREAD_LAUNCH, .state = 'S'},
                    {.tid = 8, .roles = MC_THREAD_PROGRESS, .state = 'S'}};
  }
  Warm(job);
  job.EnterAll();
  job.Ring(2, MC_FLOW_SEND_PEER, MC_FLOW_RECV_REMOTE);
  job.Exit(2);
  for (int rank : {1, 3}) job.Host(rank).threads[1].state = 'X';
  const WaitGraph graph = After(job);
  OnlySink(graph, SinkKind::kDead, 2);
  EXPECT_THAT(Ranks(graph.victims), UnorderedElementsAre(0, 1, 3));
}

TEST_F(WaitGraphTest, NotEntered) {
  HandMadeJob job(4);
  Warm(job);
  const uint64_t last_end = job.now_ns() - 10'000'000;
  for (int rank : {0, 1, 3}) job.Enter(rank);
  const WaitGraph graph = After(job);
  const Sink& sink = OnlySink(graph, SinkKind::kNotEntered, 2);
  EXPECT_THAT(sink.why, AllOf(HasSubstr("has not entered AllReduce #3 on world"),
                              HasSubstr("no operation in flight")));
  EXPECT_THAT(sink.why, testing::Not(HasSubstr("inside an NCCL call")));
  EXPECT_EQ(sink.since_ns, last_end);
  EXPECT_THAT(Ranks(graph.victims), UnorderedElementsAre(0, 1, 3));
}

TEST_F(WaitGraphTest, NotEnteredAndInsideACall) {
  HandMadeJob job(2);
  Warm(job);
  job.Comm(1).in_api = true;
  job.Enter(0);
  EXPECT_THAT(OnlySink(After(job), SinkKind::kNotEntered, 1).why, HasSubstr("inside an NCCL call"));
}

TEST_F(WaitGraphTest, NotEnteredBecauseOfAnotherCommunicator) {
  // Rank 1 is in an operation of "tp" with rank 2, whose GPU is stuck; rank 0 waits in "world".
  HandMadeJob job(3);
  const int tp = job.AddComm("tp", {1, 2});
  Warm(job);
  job.Enter(1, tp);
  job.Enter(2, tp);
  job.Ring(2, MC_FLOW_SEND_GPU, MC_FLOW_RECV_GPU, tp);
  job.Ring(1, MC_FLOW_SEND_PEER, MC_FLOW_RECV_REMOTE, tp);
  job.Enter(0);
  const WaitGraph graph = After(job);
  OnlySink(graph, SinkKind::kGpu, 2);
  EXPECT_THAT(Ranks(graph.victims), UnorderedElementsAre(0, 1));
  ASSERT_FALSE(graph.chain.empty());
  for (const WaitStep& step : graph.chain) {
    if (step.from->job_rank != 0) continue;
    EXPECT_THAT(step.why, HasSubstr("has not entered AllReduce #3 on world"));
  }
}

TEST_F(WaitGraphTest, PeerStillInAnEarlierOperation) {
  HandMadeJob job(3);
  const int tp = job.AddComm("tp", {1, 2});
  Warm(job);
  job.Enter(1, tp);
  job.Enter(2, tp);
  job.Ring(2, MC_FLOW_SEND_GPU, MC_FLOW_RECV_GPU, tp);
  job.Sleep(1);
  for (int rank : {0, 1, 2}) job.Enter(rank);  // enqueued behind it
  const WaitGraph graph = After(job);
  OnlySink(graph, SinkKind::kGpu, 2);
  ASSERT_FALSE(graph.chain.empty());
  EXPECT_THAT(graph.chain[0].why, HasSubstr("it is still in AllReduce #0 on tp, before "
                                            "AllReduce #3 on world"));
}

TEST_F(WaitGraphTest, WithoutProxiesTheOneThatHasNotEnteredIsTheSink) {
  HandMadeJob job(4);
  Warm(job);
  for (int rank : {0, 1, 2}) job.EnterSilent(rank);
  const WaitGraph graph = After(job, 1500);
  OnlySink(graph, SinkKind::kNotEntered, 3);
}

// ---- processes -----------------------------------------------------------------------

TEST_F(WaitGraphTest, Dead) {
  HandMadeJob job(4);
  Warm(job);
  job.EnterAll();
  job.Sleep(5);
  job.Exit(2);
  const WaitGraph graph = After(job);
  const Sink& sink = OnlySink(graph, SinkKind::kDead, 2);
  EXPECT_THAT(sink.why, HasSubstr("pid 1002"));
  EXPECT_EQ(sink.since_ns, job.now_ns() - 2'000'000'000);
  EXPECT_THAT(Ranks(graph.victims), UnorderedElementsAre(0, 1, 3));
}

TEST_F(WaitGraphTest, LeftInOrder) {
  HandMadeJob job(4);
  Warm(job);
  for (int rank : {0, 1, 3}) job.Enter(rank);
  job.Finalize(2);
  job.Exit(2);
  const WaitGraph graph = After(job);
  OnlySink(graph, SinkKind::kLeft, 2);
}

TEST_F(WaitGraphTest, Stopped) {
  HandMadeJob job(4);
  Warm(job);
  job.EnterAll();
  job.Sleep(5);
  for (int rank = 0; rank < 4; ++rank) job.Host(rank);
  job.Host(1).state = 'T';
  job.Ring(0, MC_FLOW_SEND_NET, MC_FLOW_RECV_REMOTE);  // TCP takes a while to fill up
  const WaitGraph graph = After(job);
  const Sink& sink = OnlySink(graph, SinkKind::kHostStopped, 1);
  EXPECT_THAT(sink.why, AllOf(HasSubstr("pid 1001"), HasSubstr("stopped")));
  EXPECT_THAT(Ranks(graph.victims), UnorderedElementsAre(0, 2, 3));
}

TEST_F(WaitGraphTest, StarvedByTheScheduler) {
  HandMadeJob job(4);
  Warm(job);
  job.EnterAll();
  for (int rank = 0; rank < 4; ++rank) {
    job.Host(rank).threads = {{.tid = 70, .roles = MC_THREAD_PROGRESS, .state = 'R'}};
  }
  job.Apply(model_);
  job.Sleep(1000);
  for (int rank = 0; rank < 4; ++rank) job.Host(rank).threads[0].run_ns = 900'000'000;
  job.Host(3).threads[0].run_ns = 100'000'000;
  job.Host(3).threads[0].runq_wait_ns = 900'000'000;
  job.Apply(model_);
  const WaitGraph graph = BuildWaitGraph(model_, model_.Jobs()[0], kStillNs);
  const Sink& sink = OnlySink(graph, SinkKind::kHostStarved, 3);
  EXPECT_THAT(sink.why, AllOf(HasSubstr("proxy thread (tid 70)"),
                              HasSubstr("waited for a CPU 900 ms of the last 1000 ms")));
}

TEST_F(WaitGraphTest, StarvedByItsQuota) {
  HandMadeJob job(2);
  Warm(job);
  job.EnterAll();
  job.Host(1);
  job.Apply(model_);
  job.Sleep(1000);
  job.Host(1).throttled_ns = 800'000'000;
  job.Apply(model_);
  std::string text;
  EXPECT_NEAR(CpuStarvation(*model_.workers()[1], 0, &text), 0.8, 1e-9);
  EXPECT_THAT(text, HasSubstr("throttled 800 ms of the last 1000 ms"));
  EXPECT_EQ(CpuStarvation(*model_.workers()[0], 0, nullptr), 0);
  OnlySink(BuildWaitGraph(model_, model_.Jobs()[0], kStillNs), SinkKind::kHostStarved, 1);
}

// A quota's waits enter the kernel's figures when they are over.
TEST_F(WaitGraphTest, StarvedWithoutAFigureUntilTheWaitIsOver) {
  HandMadeJob job(1);
  auto sample = [&](char state, uint64_t run_ms) {
    job.Host(0).threads = {{.tid = 70,
                            .roles = MC_THREAD_PROGRESS,
                            .state = state,
                            .run_ns = run_ms * 1'000'000,
                            .runq_wait_ns = 5}};
    job.Apply(model_);
    job.Sleep(250);
  };
  auto starvation = [&](std::string* text) { return CpuStarvation(*model_.workers()[0], 0, text); };
  for (char state : {'S', 'R', 'R'}) sample(state, 100);
  EXPECT_EQ(starvation(nullptr), 0);  // it may have slept
  sample('R', 105);
  std::string text;
  EXPECT_NEAR(starvation(&text), 0.99, 1e-9);
  EXPECT_THAT(text, HasSubstr("proxy thread (tid 70) waited for a CPU 495 ms of the last 500 ms"));
  sample('R', 355);  // it runs again
  EXPECT_NEAR(starvation(nullptr), 0.495, 1e-9);
  for (uint64_t run = 605; run < 1700; run += 250) sample('R', run);
  EXPECT_NEAR(starvation(nullptr), 0, 1e-9);
}

TEST_F(WaitGraphTest, CountersThatRunBackwardsAreNoStarvation) {
  HandMadeJob job(1);
  job.Host(0).threads = {{.tid = 70, .run_ns = 1000, .runq_wait_ns = 1'000'000'000'000}};
  job.Host(0).throttled_ns = 1'000'000'000'000;
  job.Apply(model_);
  job.Sleep(1000);
  job.Host(0).threads = {{.tid = 70, .run_ns = 0, .runq_wait_ns = 0}};
  job.Host(0).throttled_ns = 0;
  job.Apply(model_);
  EXPECT_EQ(CpuStarvation(*model_.workers()[0], 0, nullptr), 0);
}

// ---- several, none, unseen -----------------------------------------------------------

TEST_F(WaitGraphTest, TwoCulprits) {
  HandMadeJob job(6);
  Warm(job);
  job.EnterAll();
  job.Sleep(5);
  job.Ring(1, MC_FLOW_SEND_GPU, MC_FLOW_RECV_GPU);
  job.Ring(4, MC_FLOW_SEND_GPU, MC_FLOW_RECV_FLUSH);
  const WaitGraph graph = After(job);
  ASSERT_THAT(graph.sinks, SizeIs(2));
  EXPECT_EQ(graph.sinks[0].kind, SinkKind::kGpu);
  EXPECT_EQ(graph.sinks[0].worker->job_rank, 1);
  EXPECT_EQ(graph.sinks[1].kind, SinkKind::kFlush);
  EXPECT_EQ(graph.sinks[1].worker->job_rank, 4);
  EXPECT_THAT(Ranks(graph.victims), UnorderedElementsAre(0, 2, 3, 5));
}

TEST_F(WaitGraphTest, RankThatIsNotSeen) {
  HandMadeJob job(4);
  job.Hide(2);
  Warm(job);
  job.EnterAll();
  const WaitGraph graph = After(job);
  ASSERT_THAT(graph.sinks, SizeIs(1));
  EXPECT_EQ(graph.sinks[0].kind, SinkKind::kUnseen);
  EXPECT_EQ(graph.sinks[0].worker, nullptr);
  EXPECT_EQ(graph.sinks[0].rank, 2);
  EXPECT_EQ(graph.sinks[0].comm->name, "world");
  EXPECT_THAT(Ranks(graph.victims), UnorderedElementsAre(0, 1, 3));
}

TEST_F(WaitGraphTest, DeadlockAcrossTwoCommunicators) {
  // Rank 0 calls a, then b; rank 1 calls b, then a.
  HandMadeJob job(2);
  const int a = job.AddComm("a", {0, 1});
  const int b = job.AddComm("b", {0, 1});
  Warm(job);
  job.Enter(0, a);
  job.Enter(1, b);
  const WaitGraph graph = After(job);
  EXPECT_THAT(graph.sinks, IsEmpty());
  EXPECT_THAT(Ranks(graph.cycle), UnorderedElementsAre(0, 1));
  ASSERT_THAT(graph.cycle_steps, SizeIs(2));
  for (const WaitStep& step : graph.cycle_steps) {
    EXPECT_NE(step.from, step.to);
    EXPECT_THAT(step.why, HasSubstr("has not entered AllReduce #0 on"));
  }
}

TEST_F(WaitGraphTest, DeadlockWithEverythingEnqueued) {
  // Both have enqueued both, on one stream each, in another order.
  HandMadeJob job(2);
  const int a = job.AddComm("a", {0, 1});
  const int b = job.AddComm("b", {0, 1});
  Warm(job);
  job.Enter(0, a);
  job.Enter(1, b);
  job.Sleep(1);
  job.Enter(0, b);
  job.Enter(1, a);
  const WaitGraph graph = After(job);
  EXPECT_THAT(graph.sinks, IsEmpty());
  EXPECT_THAT(Ranks(graph.cycle), UnorderedElementsAre(0, 1));
}

TEST_F(WaitGraphTest, DeadlockOfThreeAcrossThreeCommunicators) {
  HandMadeJob job(3);
  const int a = job.AddComm("a", {0, 1});
  const int b = job.AddComm("b", {1, 2});
  const int c = job.AddComm("c", {2, 0});
  Warm(job);
  job.Enter(0, a);
  job.Enter(1, b);
  job.Enter(2, c);
  const WaitGraph graph = After(job);
  EXPECT_THAT(graph.sinks, IsEmpty());
  EXPECT_THAT(graph.cycle, SizeIs(3));
  EXPECT_THAT(graph.cycle_steps, SizeIs(3));
}

TEST_F(WaitGraphTest, ACycleWithAWayOutIsNoDeadlock) {
  // The ring of receives is a cycle too; rank 1 has a reason of its own.
  HandMadeJob job(4);
  Warm(job);
  job.EnterAll();
  job.Sleep(5);
  job.Ring(1, MC_FLOW_SEND_GPU, MC_FLOW_RECV_FLUSH);
  const WaitGraph graph = After(job);
  EXPECT_THAT(graph.cycle, IsEmpty());
  OnlySink(graph, SinkKind::kFlush, 1);
}

TEST_F(WaitGraphTest, WhoMovesIsNotWaiting) {
  HandMadeJob job(4);
  Warm(job);
  job.EnterAll();
  job.Ring(1, MC_FLOW_SEND_GPU, MC_FLOW_RECV_GPU);
  EXPECT_THAT(After(job, 100).victims, IsEmpty());
}

TEST_F(WaitGraphTest, NothingInFlightIsNoGraph) {
  HandMadeJob job(4);
  Warm(job);
  const WaitGraph graph = After(job);
  EXPECT_THAT(graph.sinks, IsEmpty());
  EXPECT_THAT(graph.victims, IsEmpty());
  EXPECT_THAT(graph.chain, IsEmpty());
  EXPECT_THAT(graph.cycle, IsEmpty());
}

TEST(ConnectedEdges, GroupsOfEdgesThatShareWorkers) {
  std::vector<Worker> w(8);
  for (size_t i = 0; i < w.size(); ++i) w[i].index = i;
  const auto edge = [&](int a, int b) { return WorkerOrder::Edge{&w[a], &w[b]}; };
  EXPECT_THAT(ConnectedEdges({}), IsEmpty());
  // 0-1 and 2-3 are joined by 3-0, which comes last.
  const auto groups = ConnectedEdges({edge(0, 1), edge(2, 3), edge(3, 0), edge(5, 4), edge(4, 6)});
  EXPECT_THAT(groups, UnorderedElementsAre(EdgeSet{edge(0, 1), edge(2, 3), edge(3, 0)},
                                           EdgeSet{edge(5, 4), edge(4, 6)}));
}

TEST_F(WaitGraphTest, Names) {
  HandMadeJob job(2);
  const int unnamed = job.AddComm("", {0, 1});
  job.Enter(0);
  job.Enter(0, unnamed);
  job.EnterP2p(0, 0, MC_OP_SEND, 1);
  job.EnterP2p(0, 0, MC_OP_RECV, 1);
  job.Apply(model_);
  const auto& ops = model_.workers()[0]->ops;
  EXPECT_EQ(NameOf(*model_.workers()[1]), "rank 1");
  EXPECT_EQ(OpName(ops.at(1)), "AllReduce #0 on world");
  EXPECT_EQ(OpName(ops.at(2)), "AllReduce #0 on communicator c1");
  EXPECT_EQ(OpName(ops.at(3)), "Send #0 to rank 1 on world");
  EXPECT_EQ(OpName(ops.at(4)), "Recv #0 from rank 1 on world");
}

}  // namespace
}  // namespace mycroft
