// SPDX-License-Identifier: Apache-2.0
//
// Drives the built library the way NCCL does and reads the board the way the agent
// does. Nothing of the plugin is linked into this test.
#include <errno.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <thread>
#include <vector>

#include "cupti/nccl/plugin_driver.h"

namespace mycroft::nccl {
namespace {

using V5 = Driver<5>;

// ---- the board -------------------------------------------------------------------

TEST(Board, IsSealedSizedAndNamed) {
  V5 n;
  const mc_board_header& h = n.board().header();
  EXPECT_EQ(n.board().seals() & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
            F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  EXPECT_NE(ftruncate(n.board().fd(), 4096), 0);
  EXPECT_EQ(h.magic, MC_BOARD_MAGIC);
  EXPECT_EQ(h.version, MC_BOARD_VERSION);
  EXPECT_EQ(h.header_bytes, sizeof(mc_board_header));
  EXPECT_EQ(h.total_bytes, n.board().bytes());
  EXPECT_LE(h.total_bytes, MC_BOARD_MAX_BYTES);
  EXPECT_EQ(h.pid, static_cast<uint32_t>(getpid()));
  EXPECT_EQ(h.profiler_api, 5u);
  EXPECT_EQ(h.created_ns, T(0));
  EXPECT_STREQ(h.process_name, program_invocation_short_name);
  EXPECT_STREQ(h.plugin_version, MYCROFT_VERSION);
  EXPECT_EQ(h.level, static_cast<uint32_t>(MC_LEVEL_STEPS));
  EXPECT_EQ(h.next_op_id, 1u);
  for (const mc_board_table& t : {h.comms, h.threads, h.ops, h.flows}) {
    EXPECT_EQ(t.offset % 64, 0u);
    EXPECT_LE(t.offset + uint64_t{t.stride} * t.capacity, h.total_bytes);
  }
  for (uint64_t l : h.lost) EXPECT_EQ(l, 0u);
}

TEST(Board, DescriptorDoesNotSurviveExec) {
  const std::set<std::string> before = BoardFds();
  V5 n;
  for (const std::string& path : BoardFds()) {
    if (before.contains(path)) continue;
    EXPECT_EQ(fcntl(atoi(path.c_str() + strlen("/proc/self/fd/")), F_GETFD) & FD_CLOEXEC,
              FD_CLOEXEC);
  }
}

TEST(Board, CommunicatorLine) {
  V5 n(false);
  At(50);
  void* c = n.Init(0xABCDEF, "tp", 3, 8);
  const mc_board_comm& line = n.board().comm(0);
  EXPECT_EQ(line.comm_id, 0xABCDEFu);
  EXPECT_EQ(line.rank, 3);
  EXPECT_EQ(line.nranks, 8);
  EXPECT_EQ(line.nnodes, 1);
  EXPECT_EQ(line.state, static_cast<uint32_t>(MC_COMM_ACTIVE));
  EXPECT_EQ(line.init_ns, T(50));
  EXPECT_STREQ(line.name, "tp");
  EXPECT_EQ(n.board().header().comms_used, 1u);
  At(90);
  n.Finalize(c);
  EXPECT_EQ(line.state, static_cast<uint32_t>(MC_COMM_FINALIZED));
  EXPECT_EQ(line.finalize_ns, T(90));
}

TEST(Board, LongAndMissingNames) {
  V5 n(false);
  n.Init(1, std::string(200, 'x').c_str(), 0, 2);
  n.Init(2, nullptr, 0, 2);
  EXPECT_EQ(std::string(n.board().comm(0).name), std::string(63, 'x'));
  EXPECT_STREQ(n.board().comm(1).name, "");
}

TEST(Board, ThreadIsRegisteredOnceWithItsRoles) {
  V5 n;
  EXPECT_EQ(n.board().header().threads_used, 0u);
  void* coll = n.Coll();
  n.ProxyOp(coll, 0, 1, true);
  EXPECT_EQ(n.board().header().threads_used, 1u);
  EXPECT_EQ(n.board().thread(0).tid, static_cast<uint32_t>(gettid()));
  EXPECT_EQ(n.board().thread(0).roles, uint32_t{MC_THREAD_LAUNCH | MC_THREAD_PROGRESS});
  uint32_t tid = 0;
  std::thread([&] {
    tid = static_cast<uint32_t>(gettid());
    n.ProxyOp(coll, 1, 1, true);
  }).join();
  EXPECT_EQ(n.board().header().threads_used, 2u);
  EXPECT_EQ(n.board().thread(1).tid, tid);
  EXPECT_EQ(n.board().thread(1).roles, uint32_t{MC_THREAD_PROGRESS});
}

// ---- operations ------------------------------------------------------------------

TEST(Operation, CollectiveFieldsV5) {
  V5 n;
  At(100);
  void* group = n.Start(V5::Event(kGroupApi));
  EXPECT_EQ(n.board().comm(0).in_api, 1u);
  EXPECT_EQ(n.board().comm(0).api_enter_ns, T(100));
  At(110);
  V5::Descr d = V5::Event(kCollApi, group);
  d.coll_api.stream = reinterpret_cast<void*>(0x5000);
  void* api = n.Start(d);
  At(150);
  d = V5::CollEvent(api, "ReduceScatter", 42);
  d.coll.root = 0;
  void* coll = n.Start(d);
  At(160);
  n.Stop(coll);
  At(170);
  n.Stop(group);

  const mc_board_op& op = n.last_op();
  EXPECT_EQ(op.id, 1u);
  EXPECT_EQ(op.comm, 0u);
  EXPECT_EQ(op.comm_generation, n.board().comm(0).generation);
  EXPECT_EQ(op.api_ns, T(110));
  EXPECT_EQ(op.start_ns, T(150));
  EXPECT_EQ(op.stop_ns, T(160));
  EXPECT_EQ(op.ordinal, 0u);
  EXPECT_EQ(op.nccl_seq, 42u);
  EXPECT_EQ(op.count, 1024u);
  EXPECT_NE(op.stream, 0u);
  EXPECT_NE(op.stream, 0x5000u);  // addresses are not given away
  EXPECT_NE(op.group_id, 0u);
  EXPECT_EQ(op.kind, MC_OP_COLL);
  EXPECT_EQ(op.func, MC_FUNC_REDUCESCATTER);
  EXPECT_EQ(op.datatype, MC_TYPE_FLOAT32);
  EXPECT_EQ(op.algo, MC_ALGO_RING);
  EXPECT_EQ(op.proto, MC_PROTO_SIMPLE);
  EXPECT_EQ(op.channels, 2u);
  EXPECT_EQ(op.flags, 0u);
  EXPECT_EQ(op.proxy_started, 0u);
  EXPECT_EQ(n.board().comm(0).coll_count, 1u);
  EXPECT_EQ(n.board().comm(0).last_op_id, 1u);
  EXPECT_EQ(n.board().comm(0).in_api, 0u);
  EXPECT_EQ(n.board().comm(0).api_leave_ns, T(170));
  EXPECT_EQ(n.board().header().last_callback_ns, T(150));
  EXPECT_EQ(n.TotalLost(), 0u);
}

TEST(Operation, V4HasNoApiCallButAGroup) {
  Driver<4> n;
  void* group = n.Start(Driver<4>::Event(kGroup));
  EXPECT_EQ(n.board().comm(0).in_api, 1u);
  n.Start(Driver<4>::CollEvent(group));
  const uint64_t first = n.last_op().group_id;
  n.Start(Driver<4>::P2pEvent(group, "Send", 1));
  n.Stop(group);
  EXPECT_NE(first, 0u);
  EXPECT_EQ(n.last_op().group_id, first);
  EXPECT_EQ(n.last_op().api_ns, 0u);
  EXPECT_EQ(n.board().comm(0).in_api, 0u);
  EXPECT_EQ(n.board().header().profiler_api, 4u);
}

TEST(Operation, OrdinalsCountCollectivesTogetherAndP2pByPeerAndDirection) {
  V5 n;
  n.Coll("AllReduce");
  EXPECT_EQ(n.last_op().ordinal, 0u);
  n.Coll("AllGather");
  EXPECT_EQ(n.last_op().ordinal, 1u);
  auto p2p = [&](const char* func, int peer) {
    n.Start(V5::P2pEvent(nullptr, func, peer));
    return n.last_op().ordinal;
  };
  EXPECT_EQ(p2p("Send", 1), 0u);
  EXPECT_EQ(n.last_op().kind, MC_OP_SEND);
  EXPECT_EQ(n.last_op().root_or_peer, 1);
  EXPECT_EQ(p2p("Send", 1), 1u);
  EXPECT_EQ(p2p("Recv", 1), 0u);
  EXPECT_EQ(n.last_op().kind, MC_OP_RECV);
  EXPECT_EQ(p2p("Send", 0), 0u);
  EXPECT_EQ(p2p("Send", 1), 2u);
  n.Coll("Broadcast");
  EXPECT_EQ(n.last_op().ordinal, 2u);
  EXPECT_EQ(n.board().comm(0).p2p_count, 5u);
  EXPECT_EQ(n.TotalLost(), 0u);
}

TEST(Operation, OrdinalsOfManyPeersStayExact) {
  V5 n;
  for (int round = 0; round < 2; ++round) {
    for (int peer = 0; peer < 600; ++peer) {
      n.Start(V5::P2pEvent(nullptr, "Send", peer));
      ASSERT_EQ(n.last_op().ordinal, static_cast<uint64_t>(round)) << peer;
    }
  }
  EXPECT_EQ(n.board().lost(MC_LOSS_FLOW_TABLE_FULL), 0u);
}

TEST(Operation, PeersBeyondTheTableAreCounted) {
  V5 n;
  for (int peer = 0; peer < 3000; ++peer) n.Start(V5::P2pEvent(nullptr, "Send", peer));
  EXPECT_GT(n.board().lost(MC_LOSS_FLOW_TABLE_FULL), 0u);
  n.board().ExpectSane();
}

TEST(Operation, OneApiGroupOneGroupId) {
  V5 n;
  void* group = n.Start(V5::Event(kGroupApi));
  void* api1 = n.Start(V5::Event(kP2pApi, group));
  void* api2 = n.Start(V5::Event(kP2pApi, group));
  n.Start(V5::P2pEvent(api1, "Send", 1));
  const uint64_t id = n.last_op().group_id;
  n.Start(V5::P2pEvent(api2, "Recv", 1));
  EXPECT_EQ(n.last_op().group_id, id);
  n.Stop(group);
  n.Coll();
  EXPECT_NE(n.last_op().group_id, id);
}

TEST(Operation, UnknownStringsAreUnknownNotACrash) {
  V5 n;
  V5::Descr d = V5::CollEvent(nullptr, "AllTheThings");
  d.coll.algo = nullptr;
  d.coll.proto = "TURBO";
  d.coll.datatype = nullptr;
  n.Start(d);
  EXPECT_EQ(n.last_op().func, MC_FUNC_UNKNOWN);
  EXPECT_EQ(n.last_op().algo, MC_ALGO_UNKNOWN);
  EXPECT_EQ(n.last_op().proto, MC_PROTO_UNKNOWN);
  EXPECT_EQ(n.last_op().datatype, MC_TYPE_UNKNOWN);
}

// ---- waits, by hand ----------------------------------------------------------------

template <class D>
class EveryVersion : public ::testing::Test {};
using Versions = ::testing::Types<Driver<4>, Driver<5>, Driver<6>>;
TYPED_TEST_SUITE(EveryVersion, Versions);

// Three overlapping steps. By the formulas of board.h:
//            t8   t20  t9   stop
//   step 0   10   50   60   100
//   step 1   20   70   75   130
//   step 2   30   90   95   120 (acknowledged before step 1 would be odd; 140)
TYPED_TEST(EveryVersion, SendWaits) {
  TypeParam n;
  void* coll = n.Coll();
  At(5);
  void* op = n.ProxyOp(coll, 3, 1, true, 3);
  At(8);
  n.InProgress(op);
  At(10);
  void* s0 = n.Step(op, 0);
  n.State(s0, kSendGpuWait);
  At(20);
  void* s1 = n.Step(op, 1);
  n.State(s1, kSendGpuWait);
  At(30);
  void* s2 = n.Step(op, 2);
  n.State(s2, kSendGpuWait);
  At(50);
  n.State(s0, kSendPeerWait);
  At(60);
  n.State(s0, kSendWait, 1000);
  At(70);
  n.State(s1, kSendPeerWait, 1000);
  At(75);
  n.State(s1, kSendWait, 1000);
  At(90);
  n.State(s2, kSendPeerWait, 1000);
  At(95);
  n.State(s2, kSendWait, 500);
  At(100);
  n.Stop(s0);
  At(130);
  n.Stop(s1);
  At(140);
  n.Stop(s2);

  // GPU: (50-10) + (70-max(20,60)) + (90-max(30,75)) = 40 + 10 + 15
  // PEER: 10 + 5 + 5; NET: (100-60) + (130-max(75,100)) + (140-max(95,130)) = 40 + 30 + 10
  const mc_board_op& o = n.last_op();
  EXPECT_EQ(o.wait_ns[MC_WAIT_SEND_GPU], 65u);
  EXPECT_EQ(o.wait_ns[MC_WAIT_SEND_PEER], 20u);
  EXPECT_EQ(o.wait_ns[MC_WAIT_SEND_NET], 80u);
  EXPECT_EQ(o.wait_ns[MC_WAIT_RECV_REMOTE], 0u);
  EXPECT_EQ(o.bytes_sent, 2500u);
  EXPECT_EQ(o.bytes_received, 0u);
  EXPECT_EQ(o.send_steps, 3u);
  EXPECT_EQ(o.send_posted_sum_ns, T(60) + T(75) + T(95));
  EXPECT_EQ(o.send_done_sum_ns, T(100) + T(130) + T(140));
  EXPECT_EQ(o.recv_steps, 0u);
  EXPECT_EQ(o.steps_total, 3u);
  EXPECT_EQ(o.steps_done, 3u);
  EXPECT_EQ(o.proxy_started, 1u);
  EXPECT_EQ(o.proxy_progress, 1u);
  EXPECT_EQ(o.proxy_done, 0u);
  EXPECT_EQ(o.proxy_first_ns, T(5));
  EXPECT_EQ(o.proxy_progress_ns, T(8));

  const mc_board_flow& f = n.flow(3, 1, true);
  EXPECT_EQ(f.wait_ns[0], 65u);
  EXPECT_EQ(f.wait_ns[1], 20u);
  EXPECT_EQ(f.wait_ns[2], 80u);
  EXPECT_EQ(f.bytes, 2500u);
  EXPECT_EQ(f.steps_done, 3u);
  EXPECT_EQ(f.total, 3u);
  EXPECT_EQ(f.posted, 3u);
  EXPECT_EQ(f.ready, 3u);
  EXPECT_EQ(f.transmitted, 3u);
  EXPECT_EQ(f.done, 3u);
  EXPECT_EQ(f.posted_ns, T(30));
  EXPECT_EQ(f.ready_ns, T(90));
  EXPECT_EQ(f.transmitted_ns, T(95));
  EXPECT_EQ(f.done_ns, T(140));
  EXPECT_EQ(f.moved_ns, T(140));
  EXPECT_EQ(f.chunk_bytes, 1u << 20);
  EXPECT_EQ(f.open_ops, 1u);
  EXPECT_EQ(f.op_id, o.id);

  At(150);
  n.Stop(op);
  EXPECT_EQ(o.proxy_done, 1u);
  EXPECT_EQ(o.proxy_last_ns, T(150));
  EXPECT_EQ(f.open_ops, 0u);
  EXPECT_EQ(f.state, MC_FLOW_IDLE);
  EXPECT_EQ(f.state_ns, T(150));
  EXPECT_EQ(f.op_id, 0u);
  EXPECT_EQ(f.ops_done, 1u);
  EXPECT_EQ(f.last_op_id, o.id);
  EXPECT_EQ(f.last_first_ns, T(60));
  EXPECT_EQ(f.last_final_ns, T(95));
  EXPECT_EQ(n.TotalLost(), 0u);
  n.board().ExpectSane();
}

//            t10  t11  t12  stop
//   step 0   10   100  103  150
//   step 1   20   110  120  180
TYPED_TEST(EveryVersion, RecvWaits) {
  TypeParam n;
  void* coll = n.Coll();
  void* op = n.ProxyOp(coll, 0, 1, false, 2);
  At(8);
  n.InProgress(op);
  At(9);
  void* s0 = n.Step(op, 0);
  At(10);
  n.State(s0, kRecvWait);
  At(20);
  void* s1 = n.Step(op, 1);
  n.State(s1, kRecvWait);
  At(100);
  n.State(s0, kRecvFlushWait, 4096);
  At(103);
  n.State(s0, kRecvGpuWait, 4096);
  At(110);
  n.State(s1, kRecvFlushWait, 4096);
  At(120);
  n.State(s1, kRecvGpuWait, 4096);
  At(150);
  n.Stop(s0);
  At(180);
  n.Stop(s1);
  At(200);
  n.Stop(op);
  // REMOTE: (100-10) + (110-max(20,100)) = 100; FLUSH: 3 + 10; GPU: (150-103) + (180-max(120,150))
  const mc_board_op& o = n.last_op();
  EXPECT_EQ(o.wait_ns[MC_WAIT_RECV_REMOTE], 100u);
  EXPECT_EQ(o.wait_ns[MC_WAIT_RECV_FLUSH], 13u);
  EXPECT_EQ(o.wait_ns[MC_WAIT_RECV_GPU], 77u);
  EXPECT_EQ(o.wait_ns[MC_WAIT_SEND_GPU], 0u);
  EXPECT_EQ(o.bytes_received, 8192u);
  EXPECT_EQ(o.bytes_sent, 0u);
  EXPECT_EQ(o.recv_steps, 2u);
  EXPECT_EQ(o.recv_posted_sum_ns, T(10) + T(20));
  EXPECT_EQ(o.recv_data_sum_ns, T(100) + T(110));
  EXPECT_EQ(o.send_steps, 0u);
  EXPECT_EQ(o.steps_done, 2u);
  const mc_board_flow& f = n.flow(0, 1, false);
  EXPECT_EQ(f.wait_ns[0], 100u);
  EXPECT_EQ(f.wait_ns[1], 13u);
  EXPECT_EQ(f.wait_ns[2], 77u);
  EXPECT_EQ(f.last_first_ns, T(100));
  EXPECT_EQ(f.last_final_ns, T(110));
  EXPECT_EQ(f.bytes, 8192u);
  EXPECT_EQ(n.TotalLost(), 0u);
}

TEST(Waits, SendWithoutPeerWaitCountsAsReadyWhenTransmitted) {
  V5 n;
  void* op = n.ProxyOp(n.Coll(), 0, 1, true, 1);
  n.InProgress(op);
  At(10);
  void* s = n.Step(op, 0);
  n.State(s, kSendGpuWait);
  At(40);
  n.State(s, kSendWait, 7);
  At(45);
  n.Stop(s);
  EXPECT_EQ(n.last_op().wait_ns[MC_WAIT_SEND_GPU], 30u);
  EXPECT_EQ(n.last_op().wait_ns[MC_WAIT_SEND_PEER], 0u);
  EXPECT_EQ(n.last_op().wait_ns[MC_WAIT_SEND_NET], 5u);
}

TEST(Waits, StepStoppedWithoutItsStatesIsDoneButInNoSum) {
  V5 n;
  void* coll = n.Coll();
  void* send = n.ProxyOp(coll, 0, 1, true, 1);
  void* recv = n.ProxyOp(coll, 0, 1, false, 1);
  n.InProgress(send);
  n.InProgress(recv);
  void* s = n.Step(send, 0);
  n.State(s, kSendGpuWait);
  void* r = n.Step(recv, 0);
  n.State(r, kRecvWait);
  At(50);
  n.Stop(s);
  n.Stop(r);
  const mc_board_op& o = n.last_op();
  EXPECT_EQ(o.steps_done, 2u);
  EXPECT_EQ(o.send_steps, 0u);
  EXPECT_EQ(o.recv_steps, 0u);
  EXPECT_EQ(o.send_posted_sum_ns + o.send_done_sum_ns, 0u);
  EXPECT_EQ(o.recv_posted_sum_ns + o.recv_data_sum_ns, 0u);
  for (uint64_t w : o.wait_ns) EXPECT_EQ(w, 0u);
  n.board().ExpectSane();
}

TEST(Waits, OperationsInARowOnOneFlowDoNotCountAnInstantTwice) {
  V5 n;
  void* coll = n.Coll();
  void* a = n.ProxyOp(coll, 0, 1, true, 1);
  void* b = n.ProxyOp(coll, 0, 1, true, 1);
  n.InProgress(a);
  n.InProgress(b);  // two sends to one peer in one group run side by side
  At(10);
  void* s = n.Step(a, 0);
  n.State(s, kSendGpuWait);
  void* u = n.Step(b, 0);
  n.State(u, kSendGpuWait);
  At(20);
  n.State(s, kSendWait, 1);
  At(30);
  n.State(u, kSendWait, 1);
  At(40);
  n.Stop(s);
  At(50);
  n.Stop(u);
  EXPECT_EQ(n.last_op().wait_ns[MC_WAIT_SEND_GPU], 20u);  // 10..20, 20..30
  EXPECT_EQ(n.last_op().wait_ns[MC_WAIT_SEND_NET], 30u);  // 20..40, 40..50
}

TEST(Waits, StepsBeyondTheRingAreTrackedOneAfterTheOther) {
  V5 n;
  void* op = n.ProxyOp(n.Coll(), 0, 1, true, 100);
  n.InProgress(op);
  for (int k = 0; k < 100; ++k) n.WholeStep(op, k, true, 100 + 30 * k, 10, 5);
  const mc_board_op& o = n.last_op();
  EXPECT_EQ(o.steps_done, 100u);
  EXPECT_EQ(o.wait_ns[MC_WAIT_SEND_GPU], 1000u);
  EXPECT_EQ(o.wait_ns[MC_WAIT_SEND_PEER], 1000u);
  EXPECT_EQ(o.wait_ns[MC_WAIT_SEND_NET], 1000u);
  EXPECT_EQ(n.flow(0, 1, true).done, 100u);
  EXPECT_EQ(n.TotalLost(), 0u);
}

// ---- head of the line -----------------------------------------------------------------

TEST(HeadOfLine, SendStates) {
  V5 n;
  At(5);
  void* op = n.ProxyOp(n.Coll(), 0, 1, true, 4);
  const mc_board_flow& f = n.flow(0, 1, true);
  EXPECT_EQ(f.state, MC_FLOW_QUEUED);
  EXPECT_EQ(f.state_ns, T(5));
  At(8);
  n.InProgress(op);
  EXPECT_EQ(f.state, MC_FLOW_PROGRESS);
  EXPECT_EQ(f.state_ns, T(8));
  At(10);
  void* s0 = n.Step(op, 0);
  n.State(s0, kSendGpuWait);
  At(11);
  void* s1 = n.Step(op, 1);
  n.State(s1, kSendGpuWait);
  EXPECT_EQ(f.state, MC_FLOW_SEND_GPU);
  EXPECT_EQ(f.state_ns, T(10));
  EXPECT_EQ(f.posted, 2u);
  At(20);
  n.State(s0, kSendPeerWait);
  EXPECT_EQ(f.state, MC_FLOW_SEND_PEER);
  EXPECT_EQ(f.state_ns, T(20));
  At(25);
  n.State(s0, kSendPeerWait);
  EXPECT_EQ(f.state_ns, T(20));
  At(30);
  n.State(s0, kSendWait, 1);
  EXPECT_EQ(f.state, MC_FLOW_SEND_NET);
  EXPECT_EQ(f.state_ns, T(30));
  At(40);
  n.State(s1, kSendPeerWait);  // not the head: the flow still waits for step 0
  EXPECT_EQ(f.state, MC_FLOW_SEND_NET);
  EXPECT_EQ(f.state_ns, T(30));
  EXPECT_EQ(f.ready, 2u);
  At(50);
  n.Stop(s0);  // step 1 entered its state before it became the head
  EXPECT_EQ(f.state, MC_FLOW_SEND_PEER);
  EXPECT_EQ(f.state_ns, T(50));
  At(55);
  n.State(s1, kSendWait, 1);
  EXPECT_EQ(f.state, MC_FLOW_SEND_NET);
  EXPECT_EQ(f.state_ns, T(55));
  At(60);
  n.Stop(s1);
  EXPECT_EQ(f.state, MC_FLOW_PROGRESS);
  EXPECT_EQ(f.state_ns, T(60));
}

TEST(HeadOfLine, RecvStates) {
  V5 n;
  void* op = n.ProxyOp(n.Coll(), 0, 1, false, 4);
  EXPECT_EQ(n.board().header().flows_used, 0u);  // not known to be NET yet
  At(8);
  n.InProgress(op);
  const mc_board_flow& f = n.flow(0, 1, false);
  At(9);
  void* s0 = n.Step(op, 0);
  EXPECT_EQ(f.state, MC_FLOW_PROGRESS);  // not yet offered
  EXPECT_EQ(f.posted, 0u);
  At(10);
  n.State(s0, kRecvWait);
  EXPECT_EQ(f.state, MC_FLOW_RECV_REMOTE);
  EXPECT_EQ(f.state_ns, T(10));
  EXPECT_EQ(f.posted, 1u);
  At(20);
  n.State(s0, kRecvFlushWait, 1);
  EXPECT_EQ(f.state, MC_FLOW_RECV_FLUSH);
  At(30);
  n.State(s0, kRecvGpuWait, 1);
  EXPECT_EQ(f.state, MC_FLOW_RECV_GPU);
  EXPECT_EQ(f.state_ns, T(30));
  At(40);
  n.Stop(s0);
  EXPECT_EQ(f.state, MC_FLOW_PROGRESS);
}

TEST(HeadOfLine, NextOperationTakesOver) {
  V5 n;
  void* first = n.ProxyOp(n.Coll(), 0, 1, true, 2);
  At(5);
  void* second = n.ProxyOp(n.Coll(), 0, 1, true, 7);
  n.InProgress(first);
  const mc_board_flow& f = n.flow(0, 1, true);
  EXPECT_EQ(f.open_ops, 2u);
  EXPECT_EQ(f.op_id, 1u);
  EXPECT_EQ(f.total, 2u);
  At(50);
  n.Stop(first);
  EXPECT_EQ(f.open_ops, 1u);
  EXPECT_EQ(f.op_id, 2u);
  EXPECT_EQ(f.total, 7u);
  EXPECT_EQ(f.state, MC_FLOW_QUEUED);
  EXPECT_EQ(f.state_ns, T(50));
  At(60);
  n.InProgress(second);
  EXPECT_EQ(f.state, MC_FLOW_PROGRESS);
}

// ---- kernels ----------------------------------------------------------------------------

TEST(Kernel, FirstStartAndLastStopInTheGpusClock) {
  V5 n;
  void* coll = n.Coll();
  At(100);
  void* k1 = n.Kernel(coll, 1, 5200);
  At(110);
  void* k0 = n.Kernel(coll, 0, 5100);
  At(200);
  n.KernelStop(k1, 6000);
  At(205);
  n.Stop(k1);
  At(210);
  n.KernelStop(k0, 5900);
  n.Stop(k0);
  const mc_board_op& o = n.last_op();
  EXPECT_EQ(o.kernel_started, 2u);
  EXPECT_EQ(o.kernel_stopped, 2u);
  EXPECT_EQ(o.kernel_gpu_start, 5100u);
  EXPECT_EQ(o.kernel_gpu_stop, 6000u);
  EXPECT_EQ(o.kernel_start_seen_ns, T(100));
  EXPECT_EQ(o.kernel_stop_seen_ns, T(210));
  EXPECT_EQ(n.TotalLost(), 0u);
}

// ---- levels --------------------------------------------------------------------------------

constexpr int kOpsMask = kColl | kP2p;
constexpr int kStepsMask = kOpsMask | kProxyOp | kProxyStep;
constexpr int kKernelsMask = kStepsMask | kKernelCh;

std::string g_logged;
void KeepLog(LogLevel level, unsigned long, const char*, int, const char* format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof(text), format, args);
  va_end(args);
  g_logged += std::to_string(level) + " " + text + "\n";
}

TEST(Level, FromTheEnvironment) {
  {
    V5 n;
    EXPECT_EQ(n.mask, kStepsMask);
  }
  for (const auto& [text, mask, level] :
       {std::tuple{"ops", kOpsMask, MC_LEVEL_OPS}, std::tuple{"steps", kStepsMask, MC_LEVEL_STEPS},
        std::tuple{"kernels", kKernelsMask, MC_LEVEL_KERNELS}}) {
    Env env("MYCROFT_LEVEL", text);
    V5 n;
    EXPECT_EQ(n.mask, mask) << text;
    EXPECT_EQ(n.board().header().level, static_cast<uint32_t>(level));
    EXPECT_EQ(n.board().header().event_mask, static_cast<uint32_t>(mask));
  }
}

TEST(Level, OffMeansMaskZeroAndNoBoard) {
  Env env("MYCROFT_LEVEL", "off");
  V5 n;
  EXPECT_EQ(n.mask, 0);
  EXPECT_FALSE(n.has_board());
  EXPECT_NE(n.context, nullptr);
  void* coll = n.Coll();  // a host may call all the same
  n.Stop(n.Step(n.ProxyOp(coll, 0, 1, true), 0));
  n.Finalize(n.context);
}

TEST(Level, NonsenseIsOneWarningAndTheDefault) {
  Env env("MYCROFT_LEVEL", "verbose");
  V5 n(false);
  g_logged.clear();
  n.Init(1, "a", 0, 2, KeepLog);
  n.Init(2, "b", 0, 2, KeepLog);
  EXPECT_EQ(n.mask, kStepsMask);
  EXPECT_EQ(g_logged,
            "2 Mycroft: MYCROFT_LEVEL is not one of off, ops, steps, kernels; using steps\n");
}

TEST(Level, ChangedByTheAgentThroughTheBoard) {
  V5 n;
  EXPECT_EQ(n.mask, kStepsMask);
  n.board().header().requested_level = MC_LEVEL_KERNELS;
  EXPECT_EQ(n.mask, kStepsMask);  // nothing polls; the next operation looks
  n.Coll();
  EXPECT_EQ(n.mask, kKernelsMask);
  EXPECT_EQ(n.board().header().level, static_cast<uint32_t>(MC_LEVEL_KERNELS));
  n.board().header().requested_level = MC_LEVEL_OPS;
  n.ProxyOp(nullptr, 0, 1, true);
  EXPECT_EQ(n.mask, kOpsMask);
  // A new communicator keeps to it, and no request leaves it alone.
  n.Init(9, "new", 0, 2);
  EXPECT_EQ(n.mask, kOpsMask);
  n.board().header().requested_level = 0;
  n.Coll();
  EXPECT_EQ(n.mask, kOpsMask);
  n.board().header().requested_level = 77;
  n.Coll();
  EXPECT_EQ(n.mask, kOpsMask);
}

TEST(Level, StepsAfterALowerLevelAreStillTracked) {
  V5 n;
  void* op = n.ProxyOp(n.Coll(), 0, 1, true, 2);
  n.board().header().requested_level = MC_LEVEL_OPS;
  void* later = n.Coll();
  n.WholeStep(op, 0, true, 100, 10, 1);
  EXPECT_EQ(n.board().op(1).steps_done, 1u);
  EXPECT_EQ(later != nullptr, true);
}

// ---- the hazards of NCCL --------------------------------------------------------------------
// Numbered as in the facts this plugin is built on; what NCCL does is said at each.

// Call sites do not clear the handle first: it must be written, also with NULL.
TEST(Hazard, Hazard01AlwaysWritesHandle) {
  Driver<6> n;
  for (int bit = 0; bit < 20; ++bit) {
    Driver<6>::Descr d = {};
    d.type = uint64_t{1} << bit;
    n.Start(d);  // checks that it was written
    n.StartIn(nullptr, d);
    n.StartIn(reinterpret_cast<void*>(0x1234), d);
  }
  Driver<6>::Descr d = {};
  d.type = 0;
  EXPECT_EQ(n.Start(d), nullptr);
  d.type = 3;
  EXPECT_EQ(n.Start(d), nullptr);
  for (int bit : {kProxyCtrl, kNetPlugin}) {
    d.type = static_cast<uint64_t>(bit);
    EXPECT_EQ(n.Start(d), nullptr);
  }
  void* handle = reinterpret_cast<void*>(0xDEAD);
  EXPECT_EQ(n.table()->start_event(n.context, &handle, nullptr), kSuccess);
  EXPECT_EQ(handle, nullptr);
  EXPECT_EQ(n.table()->start_event(n.context, nullptr, &d), kSuccess);
  EXPECT_GE(n.board().lost(MC_LOSS_UNKNOWN_EVENT), 2u);
  n.board().ExpectSane();
}

// NULL for a ProxyOp silences its steps: never, whatever is full or unknown.
TEST(Hazard, Hazard02ProxyOpNeverGetsNull) {
  V5 n;
  EXPECT_NE(n.ProxyOp(nullptr, 0, 1, true), nullptr);
  EXPECT_NE(n.StartIn(nullptr, V5::ProxyEvent(nullptr, 0, 1, false)), nullptr);
  EXPECT_NE(n.Step(nullptr, 0), nullptr);
  void* coll = n.Coll();
  int opened = 0;
  while (n.board().lost(MC_LOSS_PROXY_OP_POOL_FULL) == 0 && opened < 40000) {
    ASSERT_NE(n.ProxyOp(coll, opened % 64, 1, true, 2), nullptr);
    ++opened;
  }
  EXPECT_EQ(opened, 32768 - 1 + 1);  // one record is held by the first line of this test
  // Without a record the operation's own counters go on.
  mc_board_op& o = n.last_op();
  const uint64_t started = o.proxy_started;
  void* loose = n.ProxyOp(coll, 0, 1, true, 2);
  EXPECT_EQ(o.proxy_started, started + 1);
  n.InProgress(loose);
  EXPECT_EQ(o.proxy_progress, 1u);
  n.WholeStep(loose, 0, true, 10, 10, 123);
  EXPECT_EQ(o.bytes_sent, 123u);
  EXPECT_EQ(o.steps_done, 1u);
  n.Stop(loose);
  EXPECT_EQ(o.proxy_done, 1u);
  n.board().ExpectSane();
}

// A receive's step is started again on every poll; the old handle is dropped.
TEST(Hazard, Hazard03DuplicateStepStarts) {
  V5 n;
  void* op = n.ProxyOp(n.Coll(), 0, 1, false, 2);
  n.InProgress(op);
  void* s = nullptr;
  for (int i = 0; i < 100; ++i) {
    At(10 + i);
    s = n.Step(op, 0);
  }
  At(200);
  n.State(s, kRecvWait);
  At(300);
  n.State(s, kRecvFlushWait, 10);
  At(310);
  n.State(s, kRecvGpuWait, 10);
  At(330);
  n.Stop(s);
  EXPECT_EQ(n.board().lost(MC_LOSS_DUPLICATE_STEP), 99u);
  EXPECT_EQ(n.last_op().steps_done, 1u);
  EXPECT_EQ(n.last_op().wait_ns[MC_WAIT_RECV_REMOTE], 100u);
  EXPECT_EQ(n.flow(0, 1, false).posted, 1u);
  EXPECT_EQ(n.board().lost(MC_LOSS_STALE_HANDLE), 0u);
}

// SendPeerWait comes on every poll until the peer is ready.
TEST(Hazard, Hazard04PeerWaitRepeats) {
  V5 n;
  void* op = n.ProxyOp(n.Coll(), 0, 1, true, 1);
  n.InProgress(op);
  void* s = n.Step(op, 0);
  At(10);
  n.State(s, kSendGpuWait);
  for (int i = 0; i <= 50; ++i) {
    At(20 + i);
    n.State(s, kSendPeerWait, 99);
  }
  At(100);
  n.State(s, kSendWait, 5);
  n.Stop(s);
  EXPECT_EQ(n.last_op().wait_ns[MC_WAIT_SEND_GPU], 10u);
  EXPECT_EQ(n.last_op().wait_ns[MC_WAIT_SEND_PEER], 80u);
  EXPECT_EQ(n.flow(0, 1, true).peer_wait_polls, 50u);
  EXPECT_EQ(n.last_op().bytes_sent, 5u);
}

// Proxy operations of other transports are started and never moved or stopped.
TEST(Hazard, Hazard05OtherTransportsNeverStop) {
  V5 n;
  void* coll = n.Coll();
  void* shm = n.ProxyOp(coll, 0, 1, false);
  EXPECT_NE(shm, nullptr);
  EXPECT_EQ(n.last_op().proxy_started, 0u);
  EXPECT_EQ(n.board().header().flows_used, 0u);
  // Tens of thousands of them do not use up what NET operations need.
  for (int i = 0; i < 50000; ++i) n.ProxyOp(coll, i % 8, 1, false);
  EXPECT_EQ(n.board().lost(MC_LOSS_PROXY_OP_POOL_FULL), 0u);
  void* net = n.ProxyOp(coll, 40, 1, false, 1);
  n.InProgress(net);
  n.WholeStep(net, 0, false, 100, 10, 8);
  n.Stop(net);
  EXPECT_EQ(n.last_op().proxy_started, 1u);
  EXPECT_EQ(n.last_op().proxy_done, 1u);
  EXPECT_EQ(n.last_op().bytes_received, 8u);
  // Now the flow is known: its next receive counts at once.
  n.ProxyOp(coll, 40, 1, false, 1);
  EXPECT_EQ(n.last_op().proxy_started, 2u);
  // One that never moves does not hide a younger one that does.
  void* younger = n.ProxyOp(coll, 40, 1, false, 3);
  At(500);
  n.InProgress(younger);
  void* s = n.Step(younger, 0);
  n.State(s, kRecvWait);
  const mc_board_flow& f = n.flow(40, 1, false);
  EXPECT_EQ(f.open_ops, 2u);
  EXPECT_EQ(f.total, 3u);
  EXPECT_EQ(f.state, MC_FLOW_RECV_REMOTE);
  n.board().ExpectSane();
}

// Old releases stop the wrong step when several complete in one poll.
TEST(Hazard, Hazard06WrongStepStopped) {
  V5 n;
  void* op = n.ProxyOp(n.Coll(), 0, 1, false, 3);
  n.InProgress(op);
  void* s[3];
  for (int i = 0; i < 3; ++i) {
    s[i] = n.Step(op, i);
    n.State(s[i], kRecvWait);
    n.State(s[i], kRecvFlushWait, 1);
    n.State(s[i], kRecvGpuWait, 1);
  }
  n.Stop(s[1]);
  n.Stop(s[1]);  // meant s[0]
  n.Stop(s[2]);
  const mc_board_flow& f = n.flow(0, 1, false);
  EXPECT_EQ(f.done, 2u);
  EXPECT_EQ(f.state, MC_FLOW_RECV_GPU);  // step 0 is the head and never stops
  n.Stop(op);
  EXPECT_EQ(f.state, MC_FLOW_IDLE);
  n.board().ExpectSane();
}

// The handle of an API call is stopped again by every later call once the mask is 0.
TEST(Hazard, Hazard07StaleApiStops) {
  V5 n;
  void* group = n.Start(V5::Event(kGroupApi));
  void* api = n.Start(V5::Event(kCollApi, group));
  void* coll = n.Start(V5::CollEvent(api));
  At(20);
  n.Stop(coll);
  n.Stop(api);
  n.Stop(group);
  At(99);
  for (int i = 0; i < 1000; ++i) {
    n.Stop(api);
    n.Stop(group);
    n.Stop(coll);
  }
  EXPECT_EQ(n.board().op(1).stop_ns, T(20));
  EXPECT_EQ(n.board().comm(0).api_leave_ns, T(20));
  EXPECT_EQ(n.board().comm(0).in_api, 0u);
}

// Every replay of a graph starts operations below the API call of the capture.
TEST(Hazard, Hazard08GraphReplays) {
  V5 n;
  V5::Descr g = V5::Event(kGroupApi);
  g.group_api.graph_captured = true;
  void* group = n.Start(g);
  V5::Descr d = V5::Event(kCollApi, group);
  d.coll_api.graph_captured = true;
  void* api = n.Start(d);
  n.Stop(api);
  n.Stop(group);
  std::set<uint64_t> groups;
  for (int replay = 0; replay < 3; ++replay) {
    At(1000 * (replay + 1));
    void* launch = n.Start(V5::Event(kGroup));
    V5::Descr c = V5::CollEvent(api);
    c.coll.parent_group = launch;
    void* coll = n.Start(c);
    n.Stop(coll);
    n.Stop(launch);
    EXPECT_EQ(n.last_op().flags, MC_OP_GRAPH);
    EXPECT_EQ(n.last_op().ordinal, static_cast<uint64_t>(replay));
    EXPECT_EQ(n.last_op().api_ns, 0u);  // the call was made at capture
    groups.insert(n.last_op().group_id);
    // An operation of its own, with proxy operations of its own.
    void* op = n.ProxyOp(coll, 0, 1, true, 1);
    n.InProgress(op);
    n.WholeStep(op, 0, true, 1000 * (replay + 1) + 10, 10, 1);
    n.Stop(op);
    EXPECT_EQ(n.last_op().proxy_done, 1u);
  }
  EXPECT_EQ(groups.size(), 3u);
  // The API call is long forgotten: still a replay, still an operation.
  for (int i = 0; i < 20000; ++i) n.Start(V5::Event(kCollApi));
  n.Start(V5::CollEvent(api));
  EXPECT_EQ(n.last_op().flags, MC_OP_GRAPH);
}

// PXN: context and parent are values of another process.
TEST(Hazard, Hazard09ProxyForAnotherProcess) {
  V5 n;
  void* coll = n.Coll();
  const int other = getpid() + 1;
  // The worst case: the foreign values equal valid ones of ours.
  void* op = n.Start(V5::ProxyEvent(coll, 2, 5, true, 2, other));
  ASSERT_NE(op, nullptr);
  EXPECT_EQ(n.last_op().proxy_started, 0u);
  void* op2 =
      n.StartIn(reinterpret_cast<void*>(0x7f0012345678),
                V5::ProxyEvent(reinterpret_cast<void*>(0x7f00deadbeef), 2, 5, false, 2, other));
  EXPECT_EQ(n.board().lost(MC_LOSS_FOREIGN_PARENT), 2u);
  EXPECT_EQ(n.board().lost(MC_LOSS_STALE_HANDLE), 0u);  // not even looked at
  n.InProgress(op);
  V5::Descr step = V5::Event(kProxyStep, op);
  void* s = n.StartIn(reinterpret_cast<void*>(0x7f0012345678), step);
  n.State(s, kSendGpuWait);
  n.State(s, kSendWait, 77);
  const mc_board_flow* f = n.board().flow(0xFFFF, 2, 5, MC_SEND);
  ASSERT_NE(f, nullptr);
  EXPECT_EQ(f->owner_pid, static_cast<uint32_t>(other));
  EXPECT_EQ(f->op_id, 0u);
  EXPECT_EQ(f->state, MC_FLOW_SEND_NET);
  EXPECT_EQ(f->bytes, 77u);
  n.Stop(s);
  n.Stop(op);
  n.Stop(op2);
  EXPECT_EQ(n.last_op().bytes_sent, 0u);
  n.Finalize(n.context);
  n.board().ExpectSane();
}

// A p2p operation announces channels that get no work.
TEST(Hazard, Hazard10FewerKernelsThanChannels) {
  V5 n;
  V5::Descr d = V5::P2pEvent(nullptr, "Send", 1);
  d.p2p.channels = 32;
  void* p2p = n.Start(d);
  n.Stop(p2p);
  n.KernelStop(n.Kernel(p2p, 4, 100), 200);
  EXPECT_EQ(n.last_op().channels, 32u);
  EXPECT_EQ(n.last_op().kernel_started, 1u);
  EXPECT_EQ(n.last_op().kernel_stopped, 1u);
  EXPECT_EQ(n.last_op().kernel_gpu_stop, 200u);
}

// A failing init leaves NCCL in different states by release: never fail. Here no
// file descriptor is left for the board.
TEST(Hazard, Hazard11InitNeverFails) {
  pid_t child = fork();
  if (child == 0) {
    V5 n(false);
    rlimit none = {0, 0};
    setrlimit(RLIMIT_NOFILE, &none);
    g_logged.clear();
    int mask = -1;
    void* context = nullptr;
    bool ok = n.table()->init(&context, 1, &mask, "x", 1, 2, 0, KeepLog) == kSuccess;
    ok = ok && mask == 0 && context != nullptr;
    ok = ok && g_logged.find("no memory for the progress board") != std::string::npos;
    void* handle = reinterpret_cast<void*>(1);
    V5::Descr d = V5::CollEvent(nullptr);
    ok = ok && n.table()->start_event(context, &handle, &d) == kSuccess && handle == nullptr;
    ok = ok && n.table()->finalize(context) == kSuccess;
    _exit(ok && !::testing::Test::HasFailure() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// Net plugin events are stopped twice.
TEST(Hazard, Hazard12NetPluginStopsTwice) {
  V5 n;
  void* op = n.ProxyOp(n.Coll(), 0, 1, true, 1);
  void* s = n.Step(op, 0);
  V5::Descr d = V5::Event(kNetPlugin, s);
  d.net_plugin.id = 1 << 16 | 1;
  d.net_plugin.data = reinterpret_cast<void*>(0x1);
  void* qp = n.Start(d);
  n.State(qp, kNetPluginUpdate);
  n.Stop(qp);
  n.Stop(qp);
  n.State(s, kSendWait, 1);
  n.Stop(s);
  n.Stop(s);  // and whoever else does
  EXPECT_EQ(n.last_op().steps_done, 1u);
  EXPECT_EQ(n.TotalLost(), 0u);
}

// The ring of GPU times is overwritten when the host lags: a late time, or again.
TEST(Hazard, Hazard13KernelTimesOverwritten) {
  V5 n;
  void* coll = n.Coll();
  void* k = n.Kernel(coll, 0, 900);
  n.Kernel(coll, 0, 950);  // the same channel again
  n.KernelStop(k, 500);    // "before" its start
  n.KernelStop(k, 2000);
  n.Stop(k);
  const mc_board_op& o = n.last_op();
  EXPECT_EQ(o.kernel_started, 1u);
  EXPECT_EQ(o.kernel_stopped, 1u);
  EXPECT_EQ(o.kernel_gpu_start, 900u);
  EXPECT_EQ(o.kernel_gpu_stop, 500u);  // as it was told; the reader judges
  // A stop without its state: the time is not known, the stop is.
  void* k1 = n.Kernel(coll, 1, 990);
  n.Stop(k1);
  EXPECT_EQ(o.kernel_stopped, 2u);
  EXPECT_EQ(o.kernel_gpu_stop, 500u);
  n.Kernel(coll, 200, 1000);  // NCCL has 64 channels
  n.board().ExpectSane();
}

// On abort, what was started is never stopped.
TEST(Hazard, Hazard14NeverStoppedOnAbort) {
  V5 n;
  for (int round = 0; round < 200; ++round) {
    void* c = n.Init(100 + static_cast<uint64_t>(round), "c", 0, 2);
    void* coll = n.StartIn(c, V5::CollEvent(nullptr));
    std::vector<void*> ops;
    for (int i = 0; i < 200; ++i) {
      ops.push_back(n.StartIn(c, V5::ProxyEvent(coll, i % 64, 1, i % 2 == 0, 4)));
      n.InProgress(ops.back());
      n.State(n.Step(ops.back(), 0), i % 2 == 0 ? kSendGpuWait : kRecvWait);
    }
    n.Kernel(coll, 0, 1);
    n.Finalize(c);
    // Calls that come too late find nothing.
    const uint64_t stale = n.board().lost(MC_LOSS_STALE_HANDLE);
    n.Stop(ops[0]);
    EXPECT_EQ(n.board().lost(MC_LOSS_STALE_HANDLE), stale + 1);
  }
  // Everything was given back: 40000 operations went through pools of 32768 and 4096.
  EXPECT_EQ(n.board().lost(MC_LOSS_PROXY_OP_POOL_FULL), 0u);
  EXPECT_EQ(n.board().lost(MC_LOSS_FLOW_TABLE_FULL), 0u);
  EXPECT_LE(n.board().header().flows_used, 256u);
  n.board().ExpectSane();
}

// A group of several communicators starts in the context of the first.
TEST(Hazard, Hazard15GroupOverSeveralCommunicators) {
  V5 n;
  void* second = n.Init(0x88, "tp", 1, 4);
  At(10);
  void* group = n.Start(V5::Event(kGroupApi));
  EXPECT_EQ(n.board().comm(0).in_api, 1u);
  EXPECT_EQ(n.board().comm(1).in_api, 0u);
  At(20);
  void* api = n.StartIn(second, V5::Event(kCollApi, group));
  EXPECT_EQ(n.board().comm(1).in_api, 1u);
  EXPECT_EQ(n.board().comm(1).api_enter_ns, T(20));
  n.StartIn(second, V5::CollEvent(api));
  EXPECT_EQ(n.last_op().comm, 1u);
  At(30);
  n.Stop(group);
  EXPECT_EQ(n.board().comm(0).in_api, 0u);
  EXPECT_EQ(n.board().comm(1).in_api, 0u);
  EXPECT_EQ(n.board().comm(1).api_leave_ns, T(30));
}

// ---- full tables -----------------------------------------------------------------------------

TEST(Full, Communicators) {
  V5 n(false);
  std::vector<void*> contexts;
  for (uint32_t i = 0; i < MC_BOARD_MAX_COMMS; ++i) contexts.push_back(n.Init(i, "c", 0, 2));
  EXPECT_EQ(n.board().lost(MC_LOSS_COMM_TABLE_FULL), 0u);
  void* over = n.Init(999, "over", 0, 2);
  ASSERT_NE(over, nullptr);
  EXPECT_EQ(n.board().lost(MC_LOSS_COMM_TABLE_FULL), 1u);
  EXPECT_EQ(n.mask, kStepsMask);
  void* coll = n.StartIn(over, V5::CollEvent(nullptr));
  ASSERT_NE(coll, nullptr);
  EXPECT_EQ(n.board().header().next_op_id, 1u);
  void* op = n.StartIn(over, V5::ProxyEvent(coll, 0, 1, true));
  ASSERT_NE(op, nullptr);
  n.WholeStep(op, 0, true, 1, 1, 1);
  n.Stop(op);
  n.Stop(coll);
  EXPECT_EQ(n.board().lost(MC_LOSS_FLOW_TABLE_FULL), 1u);
  EXPECT_EQ(n.board().lost(MC_LOSS_STALE_HANDLE), 0u);
  n.Finalize(over);
  // A line is used again once its communicator is gone, the one that went first.
  At(1);
  n.Finalize(contexts[7]);
  At(2);
  n.Finalize(contexts[3]);
  const uint32_t generation = n.board().comm(7).generation;
  n.Init(555, "again", 0, 2);
  EXPECT_EQ(n.board().comm(7).comm_id, 555u);
  EXPECT_EQ(n.board().comm(7).generation, generation + 1);
  EXPECT_EQ(n.board().comm(3).state, static_cast<uint32_t>(MC_COMM_FINALIZED));
  // The old context of the line is dead.
  n.StartIn(contexts[7], V5::CollEvent(nullptr));
  EXPECT_EQ(n.board().lost(MC_LOSS_STALE_HANDLE), 1u);
  n.board().ExpectSane();
}

TEST(Full, Threads) {
  V5 n;
  void* coll = n.Coll();  // this thread has a line
  // Ended threads give their lines to new ones.
  for (int i = 0; i < 300; ++i) std::thread([&] { n.ProxyOp(coll, 0, 1, true); }).join();
  EXPECT_EQ(n.board().header().threads_used, MC_BOARD_MAX_THREADS);
  EXPECT_EQ(n.board().lost(MC_LOSS_THREAD_TABLE_FULL), 0u);
  // Threads that all live do not.
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 300; ++i) {
    threads.emplace_back([&] {
      void* op = n.ProxyOp(coll, 0, 1, true, 1);
      n.Stop(op);
      ++ready;
      while (!go) usleep(1000);
    });
    while (ready <= i) std::this_thread::yield();
  }
  EXPECT_GE(n.board().lost(MC_LOSS_THREAD_TABLE_FULL), 40u);
  go = true;
  for (std::thread& t : threads) t.join();
  n.board().ExpectSane();
}

TEST(Full, OperationsThatAreDoneAreOverwrittenInSilence) {
  V5 n;
  for (uint32_t i = 0; i < 3 * MC_BOARD_MAX_OPS; ++i) n.Coll();
  EXPECT_EQ(n.TotalLost(), 0u);
  EXPECT_EQ(n.last_op().ordinal, 3u * MC_BOARD_MAX_OPS - 1);
}

TEST(Full, OperationInFlightKeepsItsLine) {
  V5 n;
  void* stuck = n.Coll();
  void* op = n.ProxyOp(stuck, 0, 1, true, 2);
  n.InProgress(op);
  void* s = n.Step(op, 0);
  n.State(s, kSendGpuWait);
  for (uint32_t i = 0; i < 2 * MC_BOARD_MAX_OPS; ++i) n.Coll();
  EXPECT_EQ(n.board().op(1).id, 1u);
  EXPECT_EQ(n.flow(0, 1, true).op_id, 1u);
  At(500);
  n.State(s, kSendWait, 9);
  n.Stop(s);
  n.Stop(op);
  EXPECT_EQ(n.board().op(1).bytes_sent, 9u);
  EXPECT_EQ(n.board().op(1).proxy_done, 1u);
  EXPECT_EQ(n.TotalLost(), 0u);
  // Done: now the line is free.
  for (uint32_t i = 0; i < MC_BOARD_MAX_OPS; ++i) n.Coll();
  EXPECT_GT(n.board().op(1).id, 1u);
}

TEST(Full, OverwrittenWhileBeingEnqueuedIsCounted) {
  V5 n;
  void* coll = n.Start(V5::CollEvent(nullptr));  // never stopped
  for (uint32_t i = 0; i < MC_BOARD_MAX_OPS; ++i) n.Coll();
  EXPECT_EQ(n.board().lost(MC_LOSS_OP_EVICTED), 1u);
  n.Stop(coll);
  EXPECT_EQ(n.board().lost(MC_LOSS_STALE_HANDLE), 1u);
  void* op = n.ProxyOp(coll, 0, 1, true, 1);
  EXPECT_EQ(n.board().lost(MC_LOSS_NO_PARENT), 1u);
  n.InProgress(op);
  n.WholeStep(op, 0, true, 1, 1, 4);  // the flow goes on without its operation
  EXPECT_EQ(n.flow(0, 1, true).bytes, 4u);
  EXPECT_EQ(n.flow(0, 1, true).op_id, 0u);
  EXPECT_EQ(n.Kernel(coll, 0, 1), nullptr);
  EXPECT_EQ(n.board().lost(MC_LOSS_NO_PARENT), 2u);
}

TEST(Full, EveryLineInFlight) {
  V5 n;
  std::vector<void*> ops;
  for (uint32_t i = 0; i < MC_BOARD_MAX_OPS; ++i) {
    ops.push_back(n.ProxyOp(n.Coll(), 0, 1, true, 1));
  }
  EXPECT_EQ(n.TotalLost(), 0u);
  void* coll = n.Coll();
  EXPECT_NE(coll, nullptr);
  EXPECT_EQ(n.board().lost(MC_LOSS_OP_EVICTED), 1u);
  EXPECT_NE(n.ProxyOp(coll, 0, 1, true, 1), nullptr);
  n.Stop(coll);
  for (void* op : ops) n.Stop(op);
  n.Coll();
  EXPECT_EQ(n.board().lost(MC_LOSS_OP_EVICTED), 1u);
  EXPECT_EQ(n.board().lost(MC_LOSS_NO_PARENT), 0u);
  n.board().ExpectSane();
}

TEST(Full, Flows) {
  V5 n;
  void* coll = n.Coll();
  for (uint32_t i = 0; i < MC_BOARD_MAX_FLOWS + 10; ++i) {
    void* op = n.ProxyOp(coll, static_cast<int>(i % 64), static_cast<int>(i / 64), true, 1);
    n.InProgress(op);
    n.WholeStep(op, 0, true, 10, 1, 1);
    n.Stop(op);
  }
  EXPECT_EQ(n.board().header().flows_used, MC_BOARD_MAX_FLOWS);
  EXPECT_EQ(n.board().lost(MC_LOSS_FLOW_TABLE_FULL), 10u);
  EXPECT_EQ(n.last_op().bytes_sent, MC_BOARD_MAX_FLOWS + 10u);  // operations lose nothing
  n.board().ExpectSane();
}

TEST(Full, Trackers) {
  V5 n;
  void* coll = n.Coll();
  std::vector<void*> ops;
  for (int i = 0; i < 5000; ++i) {
    ops.push_back(n.ProxyOp(coll, i % 64, i / 64, true, 1));
    n.InProgress(ops.back());
  }
  EXPECT_EQ(n.board().lost(MC_LOSS_PROXY_OP_POOL_FULL), 5000u - 4096u);
  for (void* op : ops) {
    n.WholeStep(op, 0, true, 10, 1, 2);
    n.Stop(op);
  }
  EXPECT_EQ(n.last_op().bytes_sent, 10000u);
  EXPECT_EQ(n.last_op().steps_done, 5000u);
  EXPECT_EQ(n.last_op().proxy_done, 5000u);
  n.board().ExpectSane();
}

// ---- life -----------------------------------------------------------------------------------

TEST(Life, SplitAndDestroyInAnyOrder) {
  V5 n;
  void* split = n.Init(0x77 ^ 0x1, "split", 0, 1);
  void* op1 = n.ProxyOp(n.Coll(), 0, 1, true, 2);
  void* coll2 = n.StartIn(split, V5::CollEvent(nullptr));
  void* op2 = n.StartIn(split, V5::ProxyEvent(coll2, 0, 1, true, 2));
  n.InProgress(op1);
  n.InProgress(op2);
  EXPECT_NE(n.board().flow(0, 0, 1, MC_SEND), n.board().flow(1, 0, 1, MC_SEND));
  n.Finalize(n.context);  // the parent first
  n.WholeStep(op2, 0, true, 10, 5, 3);
  EXPECT_EQ(n.flow(0, 1, true, 1).bytes, 3u);
  EXPECT_EQ(n.board().comm(0).state, static_cast<uint32_t>(MC_COMM_FINALIZED));
  EXPECT_EQ(n.board().comm(1).state, static_cast<uint32_t>(MC_COMM_ACTIVE));
  n.Stop(op2);
  n.Finalize(split);
  n.Finalize(split);
  n.Finalize(nullptr);
  n.Finalize(reinterpret_cast<void*>(0x4141));
  EXPECT_EQ(n.board().lost(MC_LOSS_STALE_HANDLE), 2u);
  n.board().ExpectSane();
}

TEST(Life, DlcloseAndInitAgainKeepTheBoard) {
  V5 n;
  const std::set<std::string> boards = BoardFds();
  n.Coll();
  n.Finalize(n.context);
  n.library().Close();  // NCCL does so after the last finalize; we stay (-z nodelete)
  n.context = n.Init(0x99, "second", 1, 2);
  n.Coll();
  EXPECT_EQ(BoardFds(), boards);
  EXPECT_EQ(n.board().header().comms_used, 2u);
  EXPECT_EQ(n.last_op().comm, 1u);
  EXPECT_EQ(n.last_op().ordinal, 0u);
}

TEST(Life, ChildAfterForkIsSilentUntilInit) {
  V5 n;
  void* coll = n.Coll();
  void* op = n.ProxyOp(coll, 0, 1, true, 2);
  const uint64_t next = n.board().header().next_op_id;
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  pid_t child = fork();
  if (child == 0) {
    // The inherited handles and context of the parent.
    void* h = reinterpret_cast<void*>(1);
    V5::Descr d = V5::CollEvent(nullptr);
    bool ok = n.table()->start_event(n.context, &h, &d) == kSuccess && h == nullptr;
    n.Stop(op);
    n.InProgress(op);
    n.Finalize(n.context);
    const size_t boards = BoardFds().size();
    void* context = n.Init(0x123, "child", 0, 2);
    ok = ok && BoardFds().size() == boards + 1;
    ok = ok && n.board().header().pid == static_cast<uint32_t>(getpid());
    ok = ok && n.board().comm(0).comm_id == 0x123;
    n.context = context;
    n.Coll();
    ok = ok && n.last_op().id == 1;
    n.Stop(op);  // a handle of the parent's life
    ok = ok && n.board().lost(MC_LOSS_STALE_HANDLE) == 1;
    char c = ok && !::testing::Test::HasFailure() ? 'y' : 'n';
    if (write(fds[1], &c, 1) != 1) _exit(1);
    _exit(0);
  }
  char c = 0;
  ASSERT_EQ(read(fds[0], &c, 1), 1);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(c, 'y');
  EXPECT_EQ(n.board().header().next_op_id, next);
  EXPECT_EQ(n.board().header().pid, static_cast<uint32_t>(getpid()));
  EXPECT_EQ(n.board().comm(0).state, static_cast<uint32_t>(MC_COMM_ACTIVE));
  EXPECT_EQ(n.flow(0, 1, true).state, MC_FLOW_QUEUED);
  // The parent goes on.
  n.InProgress(op);
  EXPECT_EQ(n.flow(0, 1, true).state, MC_FLOW_PROGRESS);
  close(fds[0]);
  close(fds[1]);
}

TEST(Life, ForkLeavesAForeignDescriptorAlone) {
  const std::set<std::string> before = BoardFds();
  V5 n;
  int board_fd = -1;
  for (const std::string& path : BoardFds()) {
    if (!before.contains(path) && atoi(path.c_str() + 14) != n.board().fd()) {
      board_fd = atoi(path.c_str() + 14);
    }
  }
  ASSERT_GE(board_fd, 0);
  // A host that closes everything and gets our number for a file of its own.
  ASSERT_EQ(dup2(1, board_fd), board_fd);
  pid_t child = fork();
  if (child == 0) _exit(fcntl(board_fd, F_GETFD) >= 0 ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  n.Coll();  // the mapping still works
  EXPECT_EQ(n.last_op().id, 1u);
}

TEST(Life, RealClockIsMonotonicAndCloseToTheSystems) {
  V5 n;
  n.RealClock();
  timespec ts;
  for (int i = 0; i < 2000; ++i) {
    clock_gettime(CLOCK_MONOTONIC, &ts);
    const uint64_t before = static_cast<uint64_t>(ts.tv_sec) * 1000000000u + ts.tv_nsec;
    n.Start(V5::CollEvent(nullptr));
    clock_gettime(CLOCK_MONOTONIC, &ts);
    const uint64_t after = static_cast<uint64_t>(ts.tv_sec) * 1000000000u + ts.tv_nsec;
    ASSERT_GE(n.last_op().start_ns + 1000, before);
    ASSERT_LE(n.last_op().start_ns, after + 1000);
    if (i % 100 == 0) usleep(3000);
  }
}

// ---- threads ----------------------------------------------------------------------------------

// A launching thread, a progress thread and a reader as the agent: what the reader
// accepts by the sequence words is never torn.
TEST(Threads, LaunchProgressAndReader) {
  V5 n;
  n.RealClock();
  constexpr int kOps = 20000;
  std::atomic<int> launched{0};
  std::vector<std::atomic<void*>> colls(kOps);
  std::atomic<bool> done{false};
  std::thread launch([&] {
    for (int i = 0; i < kOps; ++i) {
      while (i - launched.load() > 100) std::this_thread::yield();
      void* coll = n.Start(V5::CollEvent(nullptr));
      n.Stop(coll);
      colls[i].store(coll, std::memory_order_release);
    }
  });
  std::thread progress([&] {
    for (int i = 0; i < kOps; ++i) {
      void* coll;
      while ((coll = colls[i].load(std::memory_order_acquire)) == nullptr) {
        std::this_thread::yield();
      }
      void* op = n.ProxyOp(coll, 0, 1, true, 1);
      n.InProgress(op);
      void* s = n.Step(op, 0);
      n.State(s, kSendGpuWait);
      n.State(s, kSendPeerWait);
      n.State(s, kSendWait, 10);
      n.Stop(s);
      n.Stop(op);
      launched.store(i + 1);
    }
    done = true;
  });
  uint64_t accepted = 0;
  while (!done) {
    mc_board_flow* line = n.board().flow(0, 0, 1, MC_SEND);
    if (line == nullptr) continue;
    const uint32_t before = __atomic_load_n(&line->seq, __ATOMIC_ACQUIRE);
    if (before % 2 != 0) continue;
    uint64_t words[sizeof(mc_board_flow) / 8];
    for (size_t i = 0; i < sizeof(words) / 8; ++i) {
      words[i] = __atomic_load_n(reinterpret_cast<uint64_t*>(line) + i, __ATOMIC_ACQUIRE);
    }
    if (__atomic_load_n(&line->seq, __ATOMIC_RELAXED) != before) continue;
    mc_board_flow f;
    memcpy(&f, words, sizeof(f));
    ++accepted;
    ASSERT_LE(f.done, f.transmitted);
    ASSERT_LE(f.transmitted, f.ready);
    ASSERT_LE(f.ready, f.posted);
    ASSERT_LE(f.posted, f.total);
    ASSERT_EQ(f.bytes, 10 * (f.steps_done + f.transmitted - f.done));
    ASSERT_EQ(f.open_ops == 0, f.state == MC_FLOW_IDLE);
  }
  launch.join();
  progress.join();
  EXPECT_GT(accepted, 0u);
  EXPECT_EQ(n.flow(0, 1, true).steps_done, static_cast<uint64_t>(kOps));
  EXPECT_EQ(n.flow(0, 1, true).ops_done, static_cast<uint64_t>(kOps));
  EXPECT_EQ(n.TotalLost(), 0u);
  n.board().ExpectSane();
}

TEST(Threads, CommunicatorsComeAndGoWhileOthersRun) {
  V5 n;
  n.RealClock();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&n, t] {
      for (int round = 0; round < 50; ++round) {
        void* c = nullptr;
        int mask = 0;
        n.table()->init(&c, static_cast<uint64_t>(t), &mask, "c", 1, 2, 0, nullptr);
        for (int i = 0; i < 20; ++i) {
          void* coll = n.StartIn(c, V5::CollEvent(nullptr));
          n.Stop(coll);
          void* op = n.StartIn(c, V5::ProxyEvent(coll, i, 1, true, 1));
          n.InProgress(op);
          void* s = n.Step(op, 0);
          n.State(s, kSendWait, 1);
          n.Stop(s);
          n.Stop(op);
        }
        n.table()->finalize(c);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(n.TotalLost(), 0u);
  EXPECT_EQ(n.board().header().next_op_id, 1u + 4 * 50 * 20);
  n.board().ExpectSane();
}

}  // namespace
}  // namespace mycroft::nccl
