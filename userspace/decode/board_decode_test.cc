// SPDX-License-Identifier: Apache-2.0
#include "userspace/decode/board_decode.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>

namespace mycroft {
namespace {

TEST(DecodeComm, EveryField) {
  mc_board_comm line{};
  line.seq = 8;
  line.generation = 5;
  line.comm_id = 0xfeedfacecafebeef;
  line.rank = 3;
  line.nranks = 16;
  line.nnodes = 2;
  line.state = MC_COMM_FINALIZED;
  line.init_ns = 100;
  line.finalize_ns = 200;
  std::strcpy(line.name, "world");
  line.coll_count = 7;
  line.p2p_count = 8;
  line.in_api = 1;
  line.api_enter_ns = 150;
  line.api_leave_ns = 140;
  CommSample expected;
  expected.index = 4;
  expected.generation = 5;
  expected.comm_id = 0xfeedfacecafebeef;
  expected.rank = 3;
  expected.nranks = 16;
  expected.nnodes = 2;
  expected.state = MC_COMM_FINALIZED;
  expected.init_ns = 100;
  expected.finalize_ns = 200;
  expected.name = "world";
  expected.coll_count = 7;
  expected.p2p_count = 8;
  expected.in_api = true;
  expected.api_enter_ns = 150;
  expected.api_leave_ns = 140;
  EXPECT_EQ(DecodeComm(4, line), expected);
  line.state = MC_COMM_ACTIVE;
  EXPECT_EQ(DecodeComm(4, line).finalize_ns, 0u);
}

TEST(DecodeComm, NameWithoutAnEnd) {
  mc_board_comm line{};
  line.nranks = 1;
  std::memset(line.name, 'n', sizeof(line.name));
  EXPECT_EQ(DecodeComm(0, line).name, std::string(63, 'n'));
}

TEST(DecodeComm, RankThatCannotBeMakesTheLineFree) {
  mc_board_comm line{};
  line.state = MC_COMM_ACTIVE;
  for (auto [rank, nranks] : {std::pair{0, 0},
                              {2, 2},
                              {-1, 2},
                              {5, -5},
                              {INT32_MAX, INT32_MAX},
                              {INT32_MIN, INT32_MIN},
                              {0, INT32_MIN}}) {
    line.rank = rank;
    line.nranks = nranks;
    const CommSample sample = DecodeComm(0, line);
    EXPECT_EQ(sample.state, MC_COMM_FREE) << rank << " of " << nranks;
    EXPECT_EQ(sample.rank, -1);
    EXPECT_GE(sample.nranks, 0);
    EXPECT_LE(sample.nranks, 1 << 24);
  }
  line.rank = 1;
  line.nranks = 2;
  line.nnodes = -7;
  line.state = 77;
  EXPECT_EQ(DecodeComm(0, line).state, MC_COMM_FREE);
  EXPECT_EQ(DecodeComm(0, line).nnodes, 0);
}

TEST(DecodeOp, EveryField) {
  mc_board_op line{};
  line.comm = 2;
  line.id = 9;
  line.api_ns = 10;
  line.start_ns = 11;
  line.stop_ns = 12;
  line.ordinal = 13;
  line.nccl_seq = 14;
  line.count = 15;
  line.stream = 16;
  line.group_id = 17;
  line.root_or_peer = -1;
  line.comm_generation = 3;
  line.kind = MC_OP_COLL;
  line.func = MC_FUNC_SENDRECV;
  line.datatype = MC_TYPE_FLOAT8E5M2;
  line.algo = MC_ALGO_PAT;
  line.proto = MC_PROTO_SIMPLE;
  line.channels = 255;
  line.flags = MC_OP_GRAPH;
  line.proxy_started = 4;
  line.proxy_progress = 3;
  line.proxy_done = 2;
  line.proxy_first_ns = 20;
  line.proxy_progress_ns = 21;
  line.proxy_last_ns = 22;
  for (int i = 0; i < MC_WAIT_COUNT; ++i) line.wait_ns[i] = 30 + i;
  line.bytes_sent = 40;
  line.bytes_received = 41;
  line.steps_total = 42;
  line.steps_done = 41;
  line.send_steps = 43;
  line.recv_steps = 44;
  line.send_posted_sum_ns = UINT64_MAX;
  line.send_done_sum_ns = 46;
  line.recv_posted_sum_ns = 47;
  line.recv_data_sum_ns = 48;
  for (int i = 0; i < MC_MAX_WAIT_COUNT; ++i) line.max_wait_ns[i] = 50 + i;
  line.kernel_started = 2;
  line.kernel_stopped = 1;
  line.kernel_gpu_start = 60;
  line.kernel_gpu_stop = 61;
  line.kernel_start_seen_ns = 62;
  line.kernel_stop_seen_ns = 63;

  OpSample e;
  e.comm = 2;
  e.id = 9;
  e.api_ns = 10;
  e.start_ns = 11;
  e.stop_ns = 12;
  e.ordinal = 13;
  e.nccl_seq = 14;
  e.count = 15;
  e.stream = 16;
  e.group_id = 17;
  e.root_or_peer = -1;
  e.comm_generation = 3;
  e.kind = MC_OP_COLL;
  e.func = MC_FUNC_SENDRECV;
  e.datatype = MC_TYPE_FLOAT8E5M2;
  e.algo = MC_ALGO_PAT;
  e.proto = MC_PROTO_SIMPLE;
  e.channels = 255;
  e.flags = MC_OP_GRAPH;
  e.proxy_started = 4;
  e.proxy_progress = 3;
  e.proxy_done = 2;
  e.proxy_first_ns = 20;
  e.proxy_progress_ns = 21;
  e.proxy_last_ns = 22;
  e.wait_ns = {30, 31, 32, 33, 34, 35};
  e.bytes_sent = 40;
  e.bytes_received = 41;
  e.steps_total = 42;
  e.steps_done = 41;
  e.send_steps = 43;
  e.recv_steps = 44;
  e.send_posted_sum_ns = UINT64_MAX;
  e.send_done_sum_ns = 46;
  e.recv_posted_sum_ns = 47;
  e.recv_data_sum_ns = 48;
  e.max_wait_ns = {50, 51, 52};
  e.kernel_started = 2;
  e.kernel_stopped = 1;
  e.kernel_gpu_start = 60;
  e.kernel_gpu_stop = 61;
  e.kernel_start_seen_ns = 62;
  e.kernel_stop_seen_ns = 63;
  EXPECT_EQ(DecodeOp(line), e);
}

TEST(DecodeOp, UnknownValuesAndContradictions) {
  mc_board_op line{};
  line.kind = MC_OP_RECV + 1;
  line.func = MC_FUNC_SENDRECV + 1;
  line.datatype = 255;
  line.algo = MC_ALGO_PAT + 1;
  line.proto = 200;
  line.proxy_started = 2;
  line.proxy_progress = 7;
  line.proxy_done = 65535;
  line.steps_total = 10;
  line.steps_done = UINT64_MAX;
  line.kernel_started = 1;
  line.kernel_stopped = 9;
  const OpSample op = DecodeOp(line);
  EXPECT_EQ(op.kind, MC_OP_NONE);
  EXPECT_EQ(op.func, MC_FUNC_UNKNOWN);
  EXPECT_EQ(op.datatype, MC_TYPE_UNKNOWN);
  EXPECT_EQ(op.algo, MC_ALGO_UNKNOWN);
  EXPECT_EQ(op.proto, MC_PROTO_UNKNOWN);
  EXPECT_EQ(op.proxy_progress, 2);
  EXPECT_EQ(op.proxy_done, 2);
  EXPECT_EQ(op.steps_done, 10u);
  EXPECT_EQ(op.kernel_stopped, 1);
}

TEST(DecodeFlow, EveryField) {
  mc_board_flow line{};
  line.comm = 1;
  line.channel = 31;
  line.direction = MC_RECV;
  line.peer = 5;
  line.comm_generation = 2;
  line.owner_pid = 99;
  line.state = MC_FLOW_RECV_GPU;
  line.open_ops = 2;
  line.op_id = 8;
  line.total = 50;
  line.posted = 40;
  line.ready = 30;
  line.transmitted = 20;
  line.done = 10;
  line.chunk_bytes = 524288;
  line.state_ns = 1;
  line.moved_ns = 2;
  line.posted_ns = 3;
  line.ready_ns = 4;
  line.transmitted_ns = 5;
  line.done_ns = 6;
  line.ops_done = 7;
  line.steps_done = 8;
  line.bytes = 9;
  line.wait_ns[0] = 10;
  line.wait_ns[1] = 11;
  line.wait_ns[2] = 12;
  line.last_op_id = 13;
  line.last_first_ns = 14;
  line.last_final_ns = 15;
  line.peer_wait_polls = 16;
  FlowSample e;
  e.index = 6;
  e.comm = 1;
  e.channel = 31;
  e.direction = MC_RECV;
  e.peer = 5;
  e.comm_generation = 2;
  e.owner_pid = 99;
  e.state = MC_FLOW_RECV_GPU;
  e.open_ops = 2;
  e.op_id = 8;
  e.total = 50;
  e.posted = 40;
  e.ready = 30;
  e.transmitted = 20;
  e.done = 10;
  e.chunk_bytes = 524288;
  e.state_ns = 1;
  e.moved_ns = 2;
  e.posted_ns = 3;
  e.ready_ns = 4;
  e.transmitted_ns = 5;
  e.done_ns = 6;
  e.ops_done = 7;
  e.steps_done = 8;
  e.bytes = 9;
  e.wait_ns = {10, 11, 12};
  e.last_op_id = 13;
  e.last_first_ns = 14;
  e.last_final_ns = 15;
  e.peer_wait_polls = 16;
  EXPECT_EQ(DecodeFlow(6, line), e);
}

TEST(DecodeFlow, CountersFollowEachOther) {
  mc_board_flow line{};
  line.total = 8;
  line.posted = 100;
  line.ready = 6;
  line.transmitted = UINT32_MAX;
  line.done = 7;
  line.state = MC_FLOW_RECV_GPU + 1;
  line.direction = 2;
  const FlowSample flow = DecodeFlow(0, line);
  EXPECT_EQ(flow.posted, 8u);
  EXPECT_EQ(flow.ready, 6u);
  EXPECT_EQ(flow.transmitted, 6u);
  EXPECT_EQ(flow.done, 6u);
  EXPECT_EQ(flow.state, MC_FLOW_IDLE);
  EXPECT_EQ(flow.direction, MC_SEND);
}

// Whatever the bytes are, the samples keep their promises.
TEST(Decode, AnyBytes) {
  std::mt19937_64 random(7);
  const auto fill = [&](void* to, size_t bytes) {
    const int kind = static_cast<int>(random() % 3);
    auto* at = static_cast<uint8_t*>(to);
    for (size_t i = 0; i < bytes; ++i) at[i] = kind == 0 ? 0xff : static_cast<uint8_t>(random());
  };
  for (int i = 0; i < 20'000; ++i) {
    mc_board_comm comm;
    mc_board_op op;
    mc_board_flow flow;
    fill(&comm, sizeof(comm));
    fill(&op, sizeof(op));
    fill(&flow, sizeof(flow));
    const CommSample c = DecodeComm(0, comm);
    ASSERT_LE(c.state, MC_COMM_FINALIZED);
    ASSERT_TRUE(c.state == MC_COMM_FREE || (c.rank >= 0 && c.rank < c.nranks));
    ASSERT_LE(c.name.size(), 63u);
    for (char ch : c.name) ASSERT_TRUE(ch >= 0x20 && ch <= 0x7e);
    const OpSample o = DecodeOp(op);
    ASSERT_LE(o.kind, MC_OP_RECV);
    ASSERT_LE(o.func, MC_FUNC_SENDRECV);
    ASSERT_LE(o.datatype, MC_TYPE_FLOAT8E5M2);
    ASSERT_LE(o.algo, MC_ALGO_PAT);
    ASSERT_LE(o.proto, MC_PROTO_SIMPLE);
    ASSERT_LE(o.proxy_done, o.proxy_started);
    ASSERT_LE(o.proxy_progress, o.proxy_started);
    ASSERT_LE(o.kernel_stopped, o.kernel_started);
    ASSERT_LE(o.steps_done, o.steps_total);
    const FlowSample f = DecodeFlow(0, flow);
    ASSERT_LE(f.state, MC_FLOW_RECV_GPU);
    ASSERT_LE(f.direction, MC_RECV);
    ASSERT_LE(f.done, f.transmitted);
    ASSERT_LE(f.transmitted, f.ready);
    ASSERT_LE(f.ready, f.posted);
    ASSERT_LE(f.posted, f.total);
  }
}

}  // namespace
}  // namespace mycroft
