// SPDX-License-Identifier: Apache-2.0
//
// The programs of all ranks, run against each other with plain queues instead of
// FIFOs and sockets: the sums must be exact and every transfer must be taken.
#include "tools/lab/job/ring.h"

#include <gtest/gtest.h>

#include <deque>
#include <vector>

namespace mycroft::lab {
namespace {

using Queue = std::deque<std::vector<float>>;

// Runs one slice op; false when it must wait for a transfer.
bool RunSlice(const SliceOp& op, const std::vector<float>& source, std::vector<float>* destination,
              Queue* in, Queue* out) {
  std::vector<float> value(op.count);
  if (op.recv) {
    if (in->empty()) return false;
    EXPECT_EQ(in->front().size(), op.count);
    value = in->front();
    in->pop_front();
  }
  for (size_t i = 0; i < op.count; ++i) {
    if (!op.recv) value[i] = source[op.src + i];
    if (op.reduce) value[i] += source[op.src + i];
    if (op.store) destination->at(op.dst + i) = value[i];
  }
  if (op.send) out->push_back(value);
  return true;
}

float Value(int rank, size_t i) {
  return static_cast<float>((i * 7 + static_cast<size_t>(rank) * 3) % 31);
}

void RunCollective(Func func, size_t count, int n, int channels, int root = 0) {
  SCOPED_TRACE(std::string(FuncName(func)) + " count " + std::to_string(count) + " ranks " +
               std::to_string(n) + " channels " + std::to_string(channels));
  const size_t send_count = func == Func::kReduceScatter ? count * n : count;
  const size_t recv_count = func == Func::kAllGather ? count * n : count;
  std::vector<std::vector<float>> source(n, std::vector<float>(send_count));
  std::vector<std::vector<float>> result(n, std::vector<float>(recv_count, -1));
  for (int r = 0; r < n; ++r) {
    for (size_t i = 0; i < send_count; ++i) source[r][i] = Value(r, i);
  }
  for (int c = 0; c < channels; ++c) {
    std::vector<ChannelProgram> programs;
    for (int r = 0; r < n; ++r) programs.push_back(MakeRing(func, count, n, r, root, channels, c));
    std::vector<Queue> edge(n);  // edge[r]: from r to r + 1
    std::vector<size_t> at(n, 0);
    bool moved = true;
    while (moved) {
      moved = false;
      for (int r = 0; r < n; ++r) {
        if (at[r] == programs[r].slices.size()) continue;
        if (RunSlice(programs[r].slices[at[r]], source[r], &result[r], &edge[(r + n - 1) % n],
                     &edge[r])) {
          ++at[r];
          moved = true;
        }
      }
    }
    for (int r = 0; r < n; ++r) {
      EXPECT_EQ(at[r], programs[r].slices.size()) << "rank " << r << " waits for ever";
      EXPECT_TRUE(edge[r].empty()) << "a transfer of rank " << r << " was not taken";
      EXPECT_EQ(programs[r].send_transfers, programs[(r + 1) % n].recv_transfers);
      for (const SliceOp& op : programs[r].slices) {
        EXPECT_LE(op.count * sizeof(float), programs[r].slice_steps * kStepBytes);
      }
    }
  }
  for (int r = 0; r < n; ++r) {
    for (size_t i = 0; i < recv_count; ++i) {
      float expected = 0;
      switch (func) {
        case Func::kAllReduce:
          for (int s = 0; s < n; ++s) expected += Value(s, i);
          break;
        case Func::kReduceScatter:
          for (int s = 0; s < n; ++s) expected += Value(s, count * static_cast<size_t>(r) + i);
          break;
        case Func::kAllGather:
          expected = Value(static_cast<int>(i / count), i % count);
          break;
        case Func::kBroadcast:
          expected = Value(root, i);
          break;
        case Func::kReduce:
        case Func::kSend:
        case Func::kRecv:
          break;
      }
      ASSERT_EQ(result[r][i], expected) << "rank " << r << " element " << i;
    }
  }
}

TEST(RingTest, SumsAreExact) {
  // Sizes around the edges of chunks (131072 elements), slices and channels.
  for (Func func : {Func::kAllReduce, Func::kReduceScatter, Func::kAllGather, Func::kBroadcast}) {
    for (int n : {2, 3, 4, 7}) {
      for (size_t count : {1, 2, 17, 1000, 16384, 131072, 131073, 300000}) {
        RunCollective(func, count, n, count > 100000 ? 1 : 2);
      }
    }
    RunCollective(func, 1 << 20, 4, 2);
  }
  RunCollective(Func::kBroadcast, 100000, 4, 2, 2);
}

// Counts that real NCCL reported for the same sizes: ProxyOp nSteps and chunkSize.
TEST(RingTest, TransfersAreThoseOfNccl) {
  auto expect = [](const ChannelProgram& program, int send, int recv, int chunk) {
    EXPECT_EQ(program.send_transfers, send);
    EXPECT_EQ(program.recv_transfers, recv);
    EXPECT_EQ(program.chunk_bytes * program.slice_steps, chunk);
  };
  expect(MakeRing(Func::kAllReduce, 16384, 2, 0, 0, 2, 0), 4, 4, 1048576);
  expect(MakeRing(Func::kAllReduce, 1048576, 2, 0, 0, 2, 1), 8, 8, 1048576);
  expect(MakeRing(Func::kAllReduce, 16384, 4, 1, 0, 2, 0), 12, 12, 1048576);
  expect(MakeRing(Func::kBroadcast, 1048576, 3, 1, 0, 2, 0), 16, 16, 131072);
  expect(MakeRing(Func::kBroadcast, 1048576, 3, 0, 0, 2, 0), 16, 0, 131072);
  expect(MakeRing(Func::kBroadcast, 1048576, 3, 2, 0, 2, 0), 0, 16, 131072);
  expect(MakeP2p(Func::kSend, 524288, 2, 0), 8, 0, 131072);
  expect(MakeP2p(Func::kRecv, 1024, 1, 0), 0, 1, 32768);
  EXPECT_EQ(P2pChannels(1024, 2), 1);
  EXPECT_EQ(P2pChannels(524288, 2), 2);
}

TEST(RingTest, PointToPointCoversTheMessage) {
  for (size_t count : {1, 1000, 32768, 524288, 524289}) {
    for (int channels : {1, 2, 3}) {
      std::vector<int> seen(count, 0);
      for (int c = 0; c < channels; ++c) {
        const ChannelProgram send = MakeP2p(Func::kSend, count, channels, c);
        const ChannelProgram recv = MakeP2p(Func::kRecv, count, channels, c);
        ASSERT_EQ(send.slices.size(), recv.slices.size());
        for (size_t i = 0; i < send.slices.size(); ++i) {
          EXPECT_EQ(send.slices[i].src, recv.slices[i].dst);
          EXPECT_EQ(send.slices[i].count, recv.slices[i].count);
          for (size_t e = 0; e < recv.slices[i].count; ++e) ++seen.at(recv.slices[i].dst + e);
        }
      }
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(seen[i], 1) << i << " of " << count;
    }
  }
}

}  // namespace
}  // namespace mycroft::lab
