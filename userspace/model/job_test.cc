// SPDX-License-Identifier: Apache-2.0
#include "userspace/model/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "userspace/decode/testing/hand_made_job.h"

namespace mycroft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr double kMs = 1e6;

class JobModelTest : public ::testing::Test {
 protected:
  Worker& WorkerAt(size_t index) { return *model_.workers().at(index); }
  std::vector<uint64_t> HistoryIds(size_t index) {
    std::vector<uint64_t> ids;
    for (const Settled& s : WorkerAt(index).history) ids.push_back(s.id);
    return ids;
  }
  JobModel model_;
};

TEST_F(JobModelTest, WorkersAndCommunicators) {
  HandMadeJob job({.ranks = 4, .ranks_per_host = 2});
  job.AddComm("pair", {3, 1});
  job.Apply(model_);
  ASSERT_THAT(model_.workers(), SizeIs(4));
  EXPECT_EQ(WorkerAt(3).host, "node1");
  EXPECT_EQ(WorkerAt(3).key.pid, 1003u);
  EXPECT_EQ(WorkerAt(3).name, "train");
  EXPECT_EQ(WorkerAt(3).job_rank, 3);  // of the largest one, although it is rank 0 of "pair"
  ASSERT_THAT(model_.comms(), SizeIs(2));
  const Comm& pair = *model_.comms().at(0xc1);
  EXPECT_EQ(pair.name, "pair");
  EXPECT_EQ(pair.nranks, 2);
  ASSERT_THAT(pair.members, SizeIs(2));
  EXPECT_EQ(pair.members.at(0)->worker, &WorkerAt(3));
  EXPECT_EQ(pair.members.at(1)->worker, &WorkerAt(1));
  EXPECT_EQ(model_.malformed(), 0u);
}

TEST_F(JobModelTest, JobsAreWorkersThatShareCommunicators) {
  HandMadeJob a(2);
  HandMadeJob b({.ranks = 3, .start_ns = a.now_ns()});
  a.Apply(model_);
  for (Snapshot snapshot : b.Take()) {
    for (ProcessSample& process : snapshot.processes) {
      process.key.pid += 100;
      process.comms[0].comm_id = 0xdd;
    }
    model_.Apply(snapshot);
  }
  const auto jobs = model_.Jobs();
  ASSERT_THAT(jobs, SizeIs(2));
  EXPECT_THAT(jobs[0], SizeIs(2));
  EXPECT_THAT(jobs[1], SizeIs(3));
}

TEST_F(JobModelTest, OperationsSettleInOrderOfEnqueue) {
  HandMadeJob job(1);
  const int other = job.AddComm("other", {0});
  OpSample& first = job.Enter(0);
  job.Sleep(1);
  OpSample& second = job.Enter(0, other);
  job.Sleep(1);
  job.Enter(0);
  job.Apply(model_);
  EXPECT_EQ(WorkerAt(0).HeadOp()->s.id, 1u);

  job.Sleep(10);
  job.Finish(0, second);  // before the first
  const uint64_t second_end = job.now_ns();
  job.Apply(model_);
  EXPECT_THAT(HistoryIds(0), IsEmpty());
  EXPECT_EQ(WorkerAt(0).HeadOp()->s.id, 1u);

  job.Sleep(10);
  job.Finish(0, first);
  const uint64_t first_end = job.now_ns();
  job.Apply(model_);
  ASSERT_THAT(HistoryIds(0), ElementsAre(1, 2));
  const auto& history = WorkerAt(0).history;
  EXPECT_EQ(history[0].end_ns, first_end);
  EXPECT_GT(first_end, second_end);
  EXPECT_EQ(history[1].end_ns, first_end);  // never before the one before it
  EXPECT_EQ(history[1].head_ns, 0u);        // it never was the oldest open one
  EXPECT_EQ(WorkerAt(0).settled_count, 2u);
  EXPECT_EQ(WorkerAt(0).HeadOp()->s.id, 3u);
}

TEST_F(JobModelTest, OperationThatIsSampledLate) {
  // Its line was being written at every try; operations after it are settled already.
  HandMadeJob job(1);
  for (int i = 0; i < 4; ++i) job.Finish(0, job.Enter(0));
  Snapshot all = job.Take()[0];
  Snapshot late = all;
  all.processes[0].ops.erase(all.processes[0].ops.begin() + 1);
  late.processes[0].comms.clear();
  late.processes[0].ops = {late.processes[0].ops[1]};
  late.processes[0].ops[0].proxy_done = 0;
  model_.Apply(all);
  EXPECT_THAT(HistoryIds(0), ElementsAre(1, 3, 4));
  EXPECT_EQ(WorkerAt(0).HeadOp(), nullptr);
  model_.Apply(late);
  ASSERT_NE(WorkerAt(0).HeadOp(), nullptr);
  EXPECT_EQ(WorkerAt(0).HeadOp()->s.id, 2u);
  late.processes[0].ops[0].proxy_done = late.processes[0].ops[0].proxy_started;
  model_.Apply(late);
  EXPECT_THAT(HistoryIds(0), ElementsAre(1, 3, 4, 2));
  EXPECT_EQ(WorkerAt(0).settled_ops, 4u);
}

TEST_F(JobModelTest, NothingInFlight) {
  HandMadeJob job(1);
  job.Apply(model_);
  EXPECT_EQ(WorkerAt(0).HeadOp(), nullptr);
  job.Finish(0, job.Enter(0));
  job.Apply(model_);
  EXPECT_EQ(WorkerAt(0).HeadOp(), nullptr);
  EXPECT_THAT(HistoryIds(0), ElementsAre(1));
}

TEST_F(JobModelTest, TimeLineIsCutIntoShares) {
  HandMadeJob job(1);
  job.Finish(0, job.Enter(0));
  job.Apply(model_);
  job.Sleep(8);
  OpSample& op = job.Enter(0);  // 2 channels: 2 flows to send, 2 to receive
  job.Sleep(20);
  op.wait_ns[MC_WAIT_RECV_REMOTE] = static_cast<uint64_t>(2 * 6 * kMs);
  op.wait_ns[MC_WAIT_SEND_PEER] = static_cast<uint64_t>(2 * 2 * kMs);
  op.max_wait_ns[MC_MAX_SEND_NET] = static_cast<uint64_t>(1 * kMs);
  op.max_wait_ns[MC_MAX_RECV_FLUSH] = static_cast<uint64_t>(4 * kMs);
  op.max_wait_ns[MC_MAX_RECV_GPU] = static_cast<uint64_t>(9 * kMs);
  op.send_steps = 3;
  op.recv_data_sum_ns = 77;
  op.bytes_sent = 10;
  op.bytes_received = 5;
  job.Finish(0, op);
  job.Apply(model_);
  ASSERT_THAT(WorkerAt(0).history, SizeIs(2));
  const Settled& s = WorkerAt(0).history[1];
  EXPECT_EQ(s.kind, MC_OP_COLL);
  EXPECT_EQ(s.peer, -1);
  EXPECT_EQ(s.ordinal, 1u);
  EXPECT_EQ(s.head_ns, static_cast<uint64_t>(20 * kMs));
  EXPECT_DOUBLE_EQ(s.share[kHostGap], 8 * kMs);
  EXPECT_DOUBLE_EQ(s.share[kRemote], 6 * kMs);  // per flow
  EXPECT_DOUBLE_EQ(s.share[kSendPeer], 2 * kMs);
  EXPECT_DOUBLE_EQ(s.share[kSendNet], 1 * kMs);  // of the slowest flow
  EXPECT_DOUBLE_EQ(s.share[kFlush], 4 * kMs);
  EXPECT_DOUBLE_EQ(s.share[kOwnGpu], 6 * kMs);  // less the time its sends were blocked
  EXPECT_EQ(s.send_steps, 3u);
  EXPECT_EQ(s.recv_data_sum_ns, 77u);
  EXPECT_EQ(s.bytes, 15u);
}

// Its last steps wait in the network while the data of the next operation is there already.
TEST_F(JobModelTest, SlotsThatTheOperationBeforeHoldsAreNotTheGpus) {
  HandMadeJob job(1);
  OpSample& first = job.Enter(0);
  job.Sleep(10);
  OpSample& second = job.Enter(0);
  job.Sleep(40);
  first.max_wait_ns[MC_MAX_SEND_NET] = static_cast<uint64_t>(45 * kMs);
  job.Finish(0, first);
  job.Sleep(50);
  second.max_wait_ns[MC_MAX_RECV_GPU] = static_cast<uint64_t>(44 * kMs);
  job.Finish(0, second);
  // One that began afterwards has its slots to itself.
  OpSample& third = job.Enter(0);
  job.Sleep(50);
  third.max_wait_ns[MC_MAX_RECV_GPU] = static_cast<uint64_t>(44 * kMs);
  job.Finish(0, third);
  job.Apply(model_);
  ASSERT_THAT(WorkerAt(0).history, SizeIs(3));
  EXPECT_DOUBLE_EQ(WorkerAt(0).history[1].share[kOwnGpu], 4 * kMs);
  EXPECT_DOUBLE_EQ(WorkerAt(0).history[2].share[kOwnGpu], 44 * kMs);
}

TEST_F(JobModelTest, SharesAreNeverLongerThanTheOperation) {
  HandMadeJob job(1);
  job.Finish(0, job.Enter(0));
  OpSample& op = job.Enter(0);
  job.Sleep(5);
  for (uint64_t& wait : op.wait_ns) wait = UINT64_MAX;
  for (uint64_t& wait : op.max_wait_ns) wait = UINT64_MAX;
  job.Finish(0, op);
  job.Apply(model_);
  for (double share : WorkerAt(0).history[1].share) {
    EXPECT_GE(share, 0);
    EXPECT_LE(share, 5 * kMs);
  }
}

TEST_F(JobModelTest, MessagesKeepTheirPeer) {
  HandMadeJob job(3);
  OpSample& send = job.EnterP2p(0, 0, MC_OP_SEND, 2);
  job.Sleep(3);
  send.wait_ns[MC_WAIT_SEND_GPU] = static_cast<uint64_t>(2 * kMs);
  job.Finish(0, send);
  job.Apply(model_);
  const Settled& s = WorkerAt(0).history[0];
  EXPECT_EQ(s.kind, MC_OP_SEND);
  EXPECT_EQ(s.peer, 2);
  EXPECT_DOUBLE_EQ(s.share[kOwnGpu], 2 * kMs);
}

TEST_F(JobModelTest, KeysTellOperationsApart) {
  HandMadeJob job(2);
  const int other = job.AddComm("other", {0, 1});
  job.Enter(0, 0, MC_FUNC_ALLREDUCE, 100);
  job.Enter(0, 0, MC_FUNC_ALLREDUCE, 200);
  job.Enter(0, 0, MC_FUNC_ALLGATHER, 100);
  job.Enter(0, other, MC_FUNC_ALLREDUCE, 100);
  job.EnterP2p(0, 0, MC_OP_SEND, 1, 100);
  job.EnterP2p(0, 0, MC_OP_RECV, 1, 100);
  job.Enter(0, 0, MC_FUNC_ALLREDUCE, 100);
  job.Apply(model_);
  const auto& ops = WorkerAt(0).ops;
  std::set<uint64_t> keys, shapes;
  for (const auto& [id, op] : ops) {
    keys.insert(OpKey(op, true));
    shapes.insert(OpKey(op, false));
  }
  EXPECT_THAT(keys, SizeIs(6));
  EXPECT_THAT(shapes, SizeIs(5));  // 100 and 200 elements are of one shape
  EXPECT_EQ(OpKey(ops.at(1), true), OpKey(ops.at(7), true));
}

TEST_F(JobModelTest, OperationWithoutProxiesEndsWithALaterOne) {
  HandMadeJob job(1);
  job.EnterSilent(0);
  job.Apply(model_);
  EXPECT_EQ(WorkerAt(0).HeadOp()->s.id, 1u);
  job.Sleep(1);
  job.Finish(0, job.Enter(0));
  job.Apply(model_);
  EXPECT_EQ(WorkerAt(0).HeadOp(), nullptr);
  EXPECT_THAT(HistoryIds(0), ElementsAre(2));  // when the first ended is not known
}

TEST_F(JobModelTest, OperationWithoutProxiesIsGivenUpAfterAWhile) {
  HandMadeJob job(1);
  job.EnterSilent(0);
  job.Apply(model_);
  job.Sleep(1900);
  job.Apply(model_);
  EXPECT_NE(WorkerAt(0).HeadOp(), nullptr);
  job.Sleep(200);
  job.Apply(model_);
  EXPECT_EQ(WorkerAt(0).HeadOp(), nullptr);
  EXPECT_THAT(HistoryIds(0), IsEmpty());
}

TEST_F(JobModelTest, KernelThatNeverStopsIsGivenUpAfterTheData) {
  HandMadeJob job(1);
  OpSample& op = job.Enter(0);
  op.kernel_started = 2;
  op.kernel_stopped = 1;
  job.Sleep(5);
  job.Finish(0, op);
  const uint64_t end = job.now_ns();
  job.Apply(model_);
  EXPECT_NE(WorkerAt(0).HeadOp(), nullptr);
  job.Sleep(2100);
  job.Apply(model_);
  EXPECT_EQ(WorkerAt(0).HeadOp(), nullptr);
  ASSERT_THAT(HistoryIds(0), ElementsAre(1));
  EXPECT_EQ(WorkerAt(0).history[0].end_ns, end);
}

TEST_F(JobModelTest, OperationThatIsEnqueuedAndNoMoreIsNotComplete) {
  HandMadeJob job(1);
  OpSample& op = job.Enter(0);
  job.Finish(0, op);
  op.stop_ns = 0;  // the call has not returned
  job.Apply(model_);
  EXPECT_NE(WorkerAt(0).HeadOp(), nullptr);
}

TEST_F(JobModelTest, LineOfTheBoardIsUsedAgain) {
  HandMadeJob job(2);
  job.Finish(0, job.Enter(0));
  job.Enter(0);
  job.Apply(model_);
  ASSERT_THAT(WorkerAt(0).history, SizeIs(1));

  CommSample& line = job.Comm(0);
  line.generation = 2;
  line.comm_id = 0xdd;
  line.rank = 1;
  job.Apply(model_);
  EXPECT_THAT(WorkerAt(0).history, IsEmpty());
  EXPECT_THAT(WorkerAt(0).ops, IsEmpty());
  EXPECT_EQ(model_.comms().at(0xdd)->members.at(1)->worker, &WorkerAt(0));
  EXPECT_EQ(model_.comms().at(0xc0)->members.count(0), 0u);
  ASSERT_THAT(model_.workers(), SizeIs(2));

  // What still comes of the earlier communicator is not taken for one of the new.
  job.Newest(0).comm_generation = 1;
  job.Newest(0).proxy_progress = 1;
  job.Apply(model_);
  EXPECT_THAT(WorkerAt(0).ops, IsEmpty());
  EXPECT_GT(model_.malformed(), 0u);
}

// Boards are hostile: a line may change its identity without a new generation.
TEST_F(JobModelTest, LineThatChangesItsIdentity) {
  HandMadeJob job(2);
  job.Enter(0);
  job.Enter(1);
  job.Apply(model_);
  job.Comm(0).rank = 1;  // now both say that they are rank 1
  job.Apply(model_);
  job.Comm(0).comm_id = 0xdd;
  job.Apply(model_);
  job.Comm(0).generation = 2;
  job.Comm(0).rank = 0;
  job.Apply(model_);
  for (const auto& [id, comm] : model_.comms()) {
    for (const auto& [rank, member] : comm->members) {
      EXPECT_EQ(member->comm, comm.get());
      EXPECT_EQ(member->info.rank, rank);
      EXPECT_EQ(member->info.comm_id, id);
    }
  }
  EXPECT_EQ(model_.comms().at(0xdd)->members.at(0)->worker, &WorkerAt(0));
  model_.View();
}

TEST_F(JobModelTest, TwoProcessesThatSayTheyAreTheSameRank) {
  HandMadeJob job(2);
  job.Comm(0).rank = 1;
  job.Enter(0);
  job.Enter(1);
  job.Apply(model_);
  for (int rank : {1, 0}) {  // both lines are used again
    job.Comm(rank).generation = 2;
    job.Comm(rank).comm_id = 0xdd;
    job.Apply(model_);
  }
  EXPECT_THAT(model_.comms().at(0xc0)->members, IsEmpty());
  EXPECT_THAT(model_.comms().at(0xdd)->members, SizeIs(1));
  model_.Jobs();
  model_.View();
}

TEST_F(JobModelTest, TwoGpusInOneProcess) {
  HandMadeJob job(2);
  Snapshot snapshot = job.Take()[0];
  // One process with two lines of the same communicator.
  ProcessSample& process = snapshot.processes[0];
  CommSample second = snapshot.processes[1].comms[0];
  second.index = 5;
  process.comms.push_back(second);
  for (uint64_t id : {1, 2}) {
    OpSample op;
    op.id = id;
    op.comm = id == 1 ? 0 : 5;
    op.comm_generation = 1;
    op.kind = MC_OP_COLL;
    op.start_ns = job.now_ns();
    process.ops.push_back(op);
  }
  snapshot.processes.pop_back();
  model_.Apply(snapshot);
  ASSERT_THAT(model_.workers(), SizeIs(2));
  EXPECT_EQ(WorkerAt(0).job_rank, 0);
  EXPECT_EQ(WorkerAt(1).job_rank, 1);
  EXPECT_EQ(WorkerAt(0).key, WorkerAt(1).key);
  EXPECT_EQ(WorkerAt(1).name, "train");
  EXPECT_EQ(WorkerAt(0).HeadOp()->s.id, 1u);
  EXPECT_EQ(WorkerAt(1).HeadOp()->s.id, 2u);
  ASSERT_THAT(model_.Jobs(), SizeIs(1));
  EXPECT_EQ(model_.View().processes, 1u);
}

TEST_F(JobModelTest, MalformedSamplesAreCountedAndLeftOut) {
  HandMadeJob job(1);
  job.Apply(model_);
  Snapshot snapshot;
  snapshot.host = "node0";
  snapshot.t_ns = job.now_ns();
  ProcessSample process = job.Process(0);
  OpSample op;
  op.kind = MC_OP_COLL;
  op.comm_generation = 1;
  process.ops.push_back(op);  // no id
  op.id = 1;
  op.comm = 99;
  process.ops.push_back(op);  // no such line
  op.comm = 0;
  op.comm_generation = 7;
  process.ops.push_back(op);  // of another generation
  op.comm_generation = 1;
  op.kind = MC_OP_NONE;
  process.ops.push_back(op);
  FlowSample flow;
  flow.comm = 99;
  process.flows.push_back(flow);
  flow.owner_pid = 4242;  // run by the proxy for another process (PXN): not malformed
  process.flows.push_back(flow);
  CommSample comm;
  comm.index = 3;
  comm.state = MC_COMM_ACTIVE;
  comm.rank = 2;
  comm.nranks = 2;
  process.comms.push_back(comm);
  snapshot.processes.push_back(process);
  model_.Apply(snapshot);
  EXPECT_EQ(model_.malformed(), 5u);
  EXPECT_THAT(WorkerAt(0).ops, IsEmpty());
  EXPECT_THAT(model_.comms(), SizeIs(1));
}

TEST_F(JobModelTest, SearchByPlaceInTheSequence) {
  HandMadeJob job(2);
  for (int i = 0; i < 3; ++i) job.Finish(0, job.Enter(0));
  job.EnterP2p(0, 0, MC_OP_SEND, 1);
  job.EnterP2p(0, 0, MC_OP_RECV, 1);
  job.EnterP2p(0, 0, MC_OP_SEND, 1);
  job.Apply(model_);
  const Member& member = *model_.comms().at(0xc0)->members.at(0);
  EXPECT_TRUE(member.has_coll);
  EXPECT_EQ(member.last_coll_ordinal, 2u);
  ASSERT_NE(JobModel::FindColl(member, 1), nullptr);
  EXPECT_EQ(JobModel::FindColl(member, 1)->s.id, 2u);
  EXPECT_EQ(JobModel::FindColl(member, 3), nullptr);
  ASSERT_NE(JobModel::FindP2p(member, MC_OP_SEND, 1, 1), nullptr);
  EXPECT_EQ(JobModel::FindP2p(member, MC_OP_SEND, 1, 1)->s.id, 6u);
  EXPECT_EQ(JobModel::FindP2p(member, MC_OP_RECV, 1, 0)->s.id, 5u);
  EXPECT_EQ(JobModel::FindP2p(member, MC_OP_RECV, 1, 1), nullptr);
  EXPECT_EQ(JobModel::FindP2p(member, MC_OP_SEND, 0, 0), nullptr);
}

TEST_F(JobModelTest, ProcessThatEnds) {
  HandMadeJob job(2);
  job.Host(1).state = 'R';
  job.Apply(model_);
  EXPECT_TRUE(WorkerAt(1).alive());
  job.Sleep(100);
  job.Exit(1);
  job.Apply(model_);
  EXPECT_FALSE(WorkerAt(1).alive());
  EXPECT_EQ(WorkerAt(1).exited_ns, job.now_ns());
  EXPECT_EQ(model_.View().processes, 1u);
  EXPECT_EQ(model_.View().comms[0].ranks[1].process_state, 'X');
}

TEST_F(JobModelTest, HostSamplesOfTheLastSeconds) {
  HandMadeJob job(1);
  const uint64_t first = job.now_ns();
  for (uint64_t i = 0; i < 200; ++i) {  // ten seconds, 50 ms apart
    job.Host(0).throttled_ns = i;
    job.Apply(model_);
    EXPECT_EQ(WorkerAt(0).host_now()->throttled_ns, i);
    if (i == 2) {
      EXPECT_EQ(WorkerAt(0).host_samples.size(), 2u);
      EXPECT_EQ(WorkerAt(0).host_samples.front().t_ns, first);
    }
    job.Sleep(50);
  }
  const auto& kept = WorkerAt(0).host_samples;
  EXPECT_GE(kept.size(), kHostHistoryNs / kHostStepNs);
  EXPECT_LE(kept.size(), kHostHistoryNs / kHostStepNs + 3);
  EXPECT_GE(kept.back().t_ns, kept.front().t_ns + kHostHistoryNs);
  for (size_t i = 2; i < kept.size(); ++i) {
    EXPECT_GE(kept[i - 1].t_ns, kept[i - 2].t_ns + kHostStepNs);
  }
}

TEST_F(JobModelTest, BlindSpotsOfAllHosts) {
  Snapshot a;
  a.host = "a";
  a.blind_spots = {{"x", "", ""}, {"y", "", ""}};
  a.blind_spots_changed = true;
  Snapshot b;
  b.host = "b";
  b.blind_spots = {{"z", "", ""}};
  b.blind_spots_changed = true;
  model_.Apply(a);
  model_.Apply(b);
  EXPECT_THAT(model_.source_blind_spots(), SizeIs(3));
  a.blind_spots.clear();
  model_.Apply(a);
  ASSERT_THAT(model_.source_blind_spots(), SizeIs(1));
  EXPECT_EQ(model_.source_blind_spots()[0].what, "z");
  a.blind_spots_changed = false;
  model_.Apply(a);
  EXPECT_THAT(model_.source_blind_spots(), SizeIs(1));
}

TEST_F(JobModelTest, MemoryIsBounded) {
  HandMadeJob job(1);
  for (int i = 0; i < 3000; ++i) {
    job.Sleep(1);
    job.Finish(0, job.Enter(0));
    if (i % 10 == 0) job.Apply(model_);
  }
  job.Apply(model_);
  EXPECT_EQ(WorkerAt(0).settled_count, 3000u);
  EXPECT_LE(WorkerAt(0).history.size(), 1024u);
  EXPECT_LE(WorkerAt(0).ops.size(), 300u);
  EXPECT_EQ(WorkerAt(0).history.back().id, 3000u);
  // A first operation that never ends holds up the others: they are bounded as well.
  HandMadeJob stuck(1);
  JobModel model;
  stuck.Enter(0);
  for (int i = 0; i < 5000; ++i) {
    stuck.Sleep(1);
    stuck.Finish(0, stuck.Enter(0));
    if (i % 10 == 0) stuck.Apply(model);
  }
  EXPECT_LE(model.workers()[0]->ops.size(), 2049u);
  for (const Worker* worker : {&WorkerAt(0), model.workers()[0].get()}) {
    size_t settled = 0;
    for (const auto& [id, op] : worker->ops) settled += op.settled ? 1 : 0;
    EXPECT_EQ(worker->settled_ops, settled);
  }
}

TEST_F(JobModelTest, View) {
  HandMadeJob job(2);
  job.AddComm("pair", {0});
  for (int i = 0; i < 6; ++i) job.Cycle({{}, {}});
  job.Sleep(10);
  job.EnterAll();
  job.Sleep(20);
  job.Ring(0, MC_FLOW_SEND_GPU, MC_FLOW_RECV_GPU);
  job.Sleep(30);
  job.Process(0).lost[MC_LOSS_STALE_HANDLE] = 2;
  job.Process(1).lost[MC_LOSS_STALE_HANDLE] = 3;
  job.Apply(model_);
  const JobView view = model_.View();
  EXPECT_EQ(view.t_ns, job.now_ns());
  EXPECT_EQ(view.processes, 2u);
  EXPECT_EQ(view.level, static_cast<uint32_t>(MC_LEVEL_STEPS));
  EXPECT_EQ(view.lost[MC_LOSS_STALE_HANDLE], 5u);
  ASSERT_THAT(view.comms, SizeIs(2));
  EXPECT_EQ(view.comms[0].name, "world");
  ASSERT_THAT(view.comms[0].ranks, SizeIs(2));
  const RankView& rank = view.comms[0].ranks[0];
  EXPECT_EQ(rank.func, MC_FUNC_ALLREDUCE);
  EXPECT_EQ(rank.ordinal, 6u);
  EXPECT_TRUE(rank.in_flight);
  EXPECT_EQ(rank.age_ns, static_cast<uint64_t>(50 * kMs));
  EXPECT_EQ(rank.wait_age_ns, static_cast<uint64_t>(30 * kMs));
  EXPECT_EQ(rank.op_bytes, 4u << 20);
  EXPECT_DOUBLE_EQ(rank.progress, 0.25);  // 4 of 16 steps on each flow
  EXPECT_GT(rank.baseline_bytes_per_s, 0);
  EXPECT_THAT(rank.flows, SizeIs(4));
  EXPECT_FALSE(view.comms[1].ranks[0].in_flight);
}

}  // namespace
}  // namespace mycroft
