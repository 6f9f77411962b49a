// SPDX-License-Identifier: Apache-2.0
#include "userspace/decode/gpu_board_decode.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "userspace/source/testing/test_gpu_board.h"

namespace mycroft {
namespace {

using ::testing::HasSubstr;

void ExpectRefused(const TestGpuBoardOptions& options, absl::StatusCode code,
                   const std::string& text) {
  TestGpuBoard board(options);
  const auto map = GpuBoardMap::Open(board.path());
  ASSERT_FALSE(map.ok()) << "not refused: " << text;
  EXPECT_EQ(map.status().code(), code) << map.status();
  EXPECT_THAT(std::string(map.status().message()), HasSubstr(text));
}

void ExpectBadTable(const std::function<void(mc_gpu_header&)>& edit) {
  TestGpuBoardOptions options;
  options.edit = edit;
  ExpectRefused(options, absl::StatusCode::kInvalidArgument, "table directory is out of bounds");
}

GpuBoardMap Open(const TestGpuBoard& board) {
  auto map = GpuBoardMap::Open(board.path());
  EXPECT_TRUE(map.ok()) << map.status();
  return *std::move(map);
}

// Stream 0 of context 0: `launched` kernels, of which `finished` are known to be.
void Fill(TestGpuBoard& board, uint64_t launched, uint64_t finished) {
  board.context(0).life = MC_GPU_ALIVE;
  board.context(0).uid = 1;
  board.context(0).device = 0;
  std::strcpy(board.name(1).name, "gemm");
  board.name(1).length = 4;
  mc_gpu_stream& s = board.stream(0);
  s.life = MC_GPU_ALIVE;
  s.stream_id = 7;
  s.last_ticket = launched;
  s.finished_ticket = finished;
  for (uint64_t t = 1; t <= launched; ++t) {
    mc_gpu_launch& slot = s.queue[t % MC_GPU_QUEUE];
    slot.ticket = t;
    slot.launch_ns = 100 * t;
    slot.name = 1;
    slot.work = MC_GPU_WORK_KERNEL;
  }
}

TEST(GpuBoardMap, HostileFilesAreRefused) {
  TestGpuBoardOptions o;
  o.seals = F_SEAL_GROW;
  ExpectRefused(o, absl::StatusCode::kInvalidArgument, "its size is not sealed");
  o = {};
  o.extra_bytes = MC_GPU_BOARD_MAX_BYTES;
  ExpectRefused(o, absl::StatusCode::kInvalidArgument, "its size is");
  o = {};
  o.edit = [](mc_gpu_header& h) { h.magic ^= 1; };
  ExpectRefused(o, absl::StatusCode::kInvalidArgument, "magic");
  o.edit = [](mc_gpu_header& h) { h.version = 99; };
  ExpectRefused(o, absl::StatusCode::kFailedPrecondition, "version 99");
  o.edit = [](mc_gpu_header& h) { h.total_bytes += 64; };
  ExpectRefused(o, absl::StatusCode::kInvalidArgument, "size in its header");
  ExpectBadTable([](mc_gpu_header& h) { h.streams.capacity = 0; });
  ExpectBadTable([](mc_gpu_header& h) { h.streams.capacity = UINT32_MAX; });
  ExpectBadTable([](mc_gpu_header& h) { h.streams.stride -= 64; });
  ExpectBadTable([](mc_gpu_header& h) { h.names.offset = UINT64_MAX - 63; });
  ExpectBadTable([](mc_gpu_header& h) { h.threads.offset += 1; });
  ExpectBadTable([](mc_gpu_header& h) { h.events.capacity = 12; });
  ExpectBadTable([](mc_gpu_header& h) { h.devices.offset = h.total_bytes; });
  ExpectBadTable([](mc_gpu_header& h) { h.contexts.stride = 8192; });
  EXPECT_EQ(GpuBoardMap::Open("/nonexistent").status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(GpuBoardMap::Open("/dev/null").ok());
}

TEST(GpuBoardMap, LongerLinesOfANewerWriter) {
  TestGpuBoardOptions o;
  o.extra_stride = 64;
  o.extra_bytes = 4096;
  TestGpuBoard board(o);
  Fill(board, 3, 1);
  const GpuSnapshot s = ReadGpuBoard(Open(board), 1, 1000);
  ASSERT_EQ(s.streams.size(), 1u);
  EXPECT_EQ(s.streams[0].launched, 3u);
}

TEST(GpuBoardMap, TornLinesAreGivenUpAndCounted) {
  TestGpuBoard board;
  Fill(board, 3, 1);
  board.stream(0).launch_seq = 1;  // being written for ever
  board.thread(0).seq = 1;
  GpuSnapshot s = ReadGpuBoard(Open(board), 1, 1000);
  EXPECT_TRUE(s.streams.empty());
  EXPECT_EQ(s.torn_reads, 2u);
  // One launch of the queue only: the rest is told.
  board.stream(0).launch_seq = 2;
  board.stream(0).queue[2].seq = 1;
  s = ReadGpuBoard(Open(board), 1, 1000);
  ASSERT_EQ(s.streams.size(), 1u);
  EXPECT_FALSE(s.streams[0].oldest.has_value()) << "it is the one being written";
  EXPECT_EQ(s.streams[0].behind.size(), 1u);
}

TEST(GpuBoardMap, RequestsALevel) {
  TestGpuBoard board;
  GpuBoardMap map = Open(board);
  EXPECT_TRUE(map.RequestLevel(MC_GPU_LEVEL_ACTIVITY, 12345));
  EXPECT_EQ(board.header().requested_level, static_cast<uint32_t>(MC_GPU_LEVEL_ACTIVITY));
  EXPECT_EQ(board.header().requested_until_ns, 12345u);
}

TEST(ReadGpuBoard, WhatIsPending) {
  TestGpuBoard board;
  Fill(board, 3, 1);
  GpuBoardMap map = Open(board);
  GpuStreamSample s = ReadGpuBoard(map, 1, 1000).streams[0];
  EXPECT_EQ(s.pending, GpuPending::kUnknown);
  ASSERT_TRUE(s.oldest.has_value());
  EXPECT_EQ(s.oldest->ticket, 2u);
  EXPECT_EQ(s.oldest->kernel, "gemm");
  EXPECT_EQ(s.oldest->launch_ns, 200u);
  EXPECT_EQ(s.behind.size(), 1u);
  EXPECT_EQ(s.device, 0u);

  // A query said "not ready".
  board.stream(0).busy_ticket = 3;
  board.stream(0).busy_ns = 900;
  s = ReadGpuBoard(map, 1, 1000).streams[0];
  EXPECT_EQ(s.pending, GpuPending::kUnfinished);
  EXPECT_EQ(s.proved_ns, 900u);

  // And by now it is finished.
  board.stream(0).finished_ticket = 3;
  s = ReadGpuBoard(map, 1, 1000).streams[0];
  EXPECT_EQ(s.pending, GpuPending::kNone);
  EXPECT_FALSE(s.oldest.has_value());
  ASSERT_TRUE(s.last.has_value());
  EXPECT_EQ(s.last->ticket, 3u);
}

TEST(ReadGpuBoard, WaitsProve) {
  TestGpuBoard board;
  Fill(board, 3, 1);
  GpuBoardMap map = Open(board);
  mc_gpu_thread& t = board.thread(0);
  t.tid = 77;
  t.call = MC_GPU_HOST_STREAM_SYNC;
  t.stream = 0;
  t.context = MC_GPU_NONE;
  t.enter_ns = 500;
  t.ticket = 2;
  GpuStreamSample s = ReadGpuBoard(map, 1, 1000).streams[0];
  EXPECT_EQ(s.pending, GpuPending::kUnfinished);
  EXPECT_EQ(s.waited_since_ns, 500u);
  EXPECT_EQ(s.proved_ns, 1000u);
  // What it waits for is finished: it is about to return.
  board.stream(0).finished_ticket = 2;
  s = ReadGpuBoard(map, 1, 1000).streams[0];
  EXPECT_EQ(s.pending, GpuPending::kUnknown);
  EXPECT_EQ(s.waited_since_ns, 0u);
  board.stream(0).finished_ticket = 1;
  // A launch that blocks proves nothing of the stream.
  t.call = MC_GPU_HOST_LAUNCH;
  EXPECT_EQ(ReadGpuBoard(map, 1, 1000).streams[0].pending, GpuPending::kUnknown);
  // A wait for the context with one candidate, and with two.
  t.call = MC_GPU_HOST_CONTEXT_SYNC;
  t.stream = MC_GPU_NONE;
  t.context = 0;
  EXPECT_EQ(ReadGpuBoard(map, 1, 1000).streams[0].pending, GpuPending::kUnfinished);
  board.stream(1) = board.stream(0);
  EXPECT_EQ(ReadGpuBoard(map, 1, 1000).streams[0].pending, GpuPending::kWaitedFor);
  EXPECT_EQ(ReadGpuBoard(map, 1, 1000).streams[1].waited_since_ns, 500u);
  // Nothing that is seen while CUPTI is released is of now.
  board.header().state = MC_GPU_RELEASED;
  EXPECT_EQ(ReadGpuBoard(map, 1, 1000).streams[0].pending, GpuPending::kUnknown);
}

TEST(ReadGpuBoard, WaitForAnotherStreamAsLongAsItHolds) {
  TestGpuBoard board;
  Fill(board, 3, 1);
  board.stream(1) = board.stream(0);
  mc_gpu_stream& s = board.stream(1);
  s.wait_stream = 0;
  s.wait_ticket = 2;
  s.wait_at = 2;
  GpuBoardMap map = Open(board);
  GpuStreamSample sample = ReadGpuBoard(map, 1, 1000).streams[1];
  EXPECT_EQ(sample.waits_for_stream, 0u);
  EXPECT_EQ(sample.wait_ticket, 2u);
  EXPECT_EQ(sample.wait_at, 2u);
  board.stream(0).finished_ticket = 2;
  sample = ReadGpuBoard(map, 1, 1000).streams[1];
  EXPECT_EQ(sample.waits_for_stream, std::nullopt);
  board.stream(0).finished_ticket = 1;
  s.finished_ticket = 3;  // it ran: the wait was over
  EXPECT_EQ(ReadGpuBoard(map, 1, 1000).streams[1].waits_for_stream, std::nullopt);
  s.finished_ticket = 1;
  s.wait_stream = 77;  // no such stream
  EXPECT_EQ(ReadGpuBoard(map, 1, 1000).streams[1].waits_for_stream, std::nullopt);
}

TEST(ReadGpuBoard, VoidsAreSkipped) {
  TestGpuBoard board;
  Fill(board, 3, 0);
  board.stream(0).queue[1].work = MC_GPU_WORK_VOID;
  GpuStreamSample s = ReadGpuBoard(Open(board), 1, 1000).streams[0];
  ASSERT_TRUE(s.oldest.has_value());
  EXPECT_EQ(s.oldest->ticket, 2u);
  board.stream(0).queue[2].work = board.stream(0).queue[3].work = MC_GPU_WORK_VOID;
  s = ReadGpuBoard(Open(board), 1, 1000).streams[0];
  EXPECT_EQ(s.pending, GpuPending::kNone);
}

TEST(ReadGpuBoard, LiesAreClamped) {
  TestGpuBoard board;
  Fill(board, 3, 1);
  mc_gpu_header& h = board.header();
  h.state = 77;
  h.level = 88;
  h.clock = 99;
  h.error_call = 1000;
  h.chained = 5;
  h.launches = 1;
  h.nccl_launches = 9;
  h.devices_used = h.contexts_used = h.streams_used = h.names_used = h.threads_used = UINT32_MAX;
  h.next_event_id = UINT64_MAX;
  std::memset(h.process_name, 0xff, sizeof(h.process_name));
  mc_gpu_stream& s = board.stream(0);
  s.finished_ticket = 100;
  s.nccl_kernels = 7;
  s.kind = 9;
  s.finished_by = 1000;
  s.queue[0].ticket = 32;  // newer than the last
  s.queue[5].ticket = 6;   // in a place that is not its own
  s.queue[1].work = 250;
  s.queue[2].name = 60000;
  board.context(0).device = 5000;
  mc_gpu_name& n = board.name(1);
  std::memset(n.name, 'x', sizeof(n.name));
  n.count = 1;
  n.min_ns = 10;
  n.max_ns = 5;
  n.ewma_ns = 100;
  board.event(3).start_ns = 100;
  board.event(3).end_ns = 50;
  h.next_event_id = UINT64_MAX;
  const GpuSnapshot all = ReadGpuBoard(Open(board), 1, 1000);
  EXPECT_EQ(all.state, MC_GPU_FAILED);
  EXPECT_EQ(all.level, MC_GPU_LEVEL_UNSET);
  EXPECT_EQ(all.clock, MC_GPU_CLOCK_NONE);
  EXPECT_EQ(all.error_call, MC_GPU_CALL_NONE);
  EXPECT_EQ(all.chained, 0u);
  EXPECT_EQ(all.nccl_launches, 1u);
  EXPECT_EQ(all.process, std::string(32, '?'));
  EXPECT_EQ(all.names.size(), 8u);
  EXPECT_EQ(all.names[1].name.size(), sizeof(n.name));
  EXPECT_EQ(all.names[1].min_ns, 5u);
  EXPECT_EQ(all.names[1].ewma_ns, 5u);
  ASSERT_EQ(all.streams.size(), 1u);
  EXPECT_EQ(all.streams[0].finished, 3u);
  EXPECT_EQ(all.streams[0].nccl_kernels, 0u);
  EXPECT_EQ(all.streams[0].finished_by, MC_GPU_HOST_NONE);
  EXPECT_EQ(all.streams[0].device, std::nullopt);
  ASSERT_TRUE(all.streams[0].last.has_value());
  EXPECT_EQ(all.streams[0].last->ticket, 3u);
  EXPECT_TRUE(all.events.empty());
  EXPECT_GE(all.events_missed, 16u);
}

TEST(ReadGpuBoard, EventsSinceTheLastTime) {
  TestGpuBoard board;
  for (uint64_t id = 1; id <= 20; ++id) {
    mc_gpu_event& e = board.event(id);
    e.id = id;
    e.start_ns = id * 10;
    e.end_ns = id * 10 + 5;
    e.work = MC_GPU_WORK_KERNEL;
  }
  GpuBoardMap map = Open(board);
  GpuSnapshot s = ReadGpuBoard(map, 1, 1000);
  ASSERT_EQ(s.events.size(), 16u);
  EXPECT_EQ(s.events_missed, 4u);
  EXPECT_EQ(s.events[0].id, 5u);
  EXPECT_EQ(s.next_event_id, 21u);
  EXPECT_TRUE(ReadGpuBoard(map, 21, 1000).events.empty());
  EXPECT_TRUE(ReadGpuBoard(map, 500, 1000).events.empty()) << "an id of another board";
  EXPECT_EQ(ReadGpuBoard(map, 20, 1000).events.size(), 1u);
}

TEST(DecodeGpuDevice, AsNvmlPrintsIt) {
  mc_gpu_device line{};
  line.known = 1;
  line.ordinal = 3;
  for (int i = 0; i < 16; ++i) line.uuid[i] = static_cast<uint8_t>(i * 17);
  std::strcpy(line.pci, "0000:3b:00.0");
  EXPECT_EQ(DecodeGpuDevice(line).uuid, "") << "not filled in yet";
  line.pci_known = 1;
  const GpuDeviceSample d = DecodeGpuDevice(line);
  EXPECT_EQ(d.uuid, "GPU-00112233-4455-6677-8899-aabbccddeeff");
  EXPECT_EQ(d.pci, "0000:3b:00.0");
  EXPECT_EQ(d.ordinal, 3u);
}

TEST(DescribeGpuState, EveryStateHasWords) {
  GpuSnapshot s;
  s.layout_known = true;
  for (uint32_t state = 0; state < MC_GPU_STATE_COUNT; ++state) {
    s.state = static_cast<mc_gpu_state>(state);
    EXPECT_EQ(DescribeGpuState(s).empty(), state == MC_GPU_WATCHING || state == MC_GPU_ARMED);
  }
}

TEST(ReadGpuBoard, AnyBytes) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    TestGpuBoard board;
    GpuBoardMap map = Open(board);
    for (size_t i = 4096; i < board.size(); ++i) board.bytes()[i] = std::byte(random() & 0xfe);
    board.header().streams_used = board.header().names_used = board.header().threads_used = 8;
    board.header().contexts_used = 4;
    board.header().next_event_id = random() % 40;
    const GpuSnapshot s = ReadGpuBoard(map, random() % 40, random());
    for (const GpuStreamSample& stream : s.streams) {
      EXPECT_LE(stream.finished, stream.launched);
      EXPECT_LE(stream.behind.size(), MC_GPU_QUEUE);
    }
  }
}

}  // namespace
}  // namespace mycroft
