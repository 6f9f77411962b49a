// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/board_map.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "userspace/source/testing/test_board.h"

namespace mycroft {
namespace {

using ::testing::HasSubstr;

mc_board_comm Comm(uint64_t id) {
  mc_board_comm line{};
  line.generation = 3;
  line.comm_id = id;
  line.rank = 1;
  line.nranks = 2;
  line.state = MC_COMM_ACTIVE;
  return line;
}

mc_board_flow Flow(int32_t peer) {
  mc_board_flow line{};
  line.channel = 7;
  line.direction = MC_RECV;
  line.peer = peer;
  line.state = MC_FLOW_RECV_FLUSH;
  line.total = 10;
  line.done = 4;
  return line;
}

mc_board_op Op(uint64_t id) {
  mc_board_op line{};
  line.id = id;
  line.kind = MC_OP_COLL;
  line.proxy_started = 2;
  line.proxy_done = 1;
  line.kernel_started = 5;
  line.kernel_gpu_stop = 99;
  return line;
}

// Opens a board that must be refused.
void ExpectRefused(const TestBoardOptions& options, absl::StatusCode code,
                   const std::string& text) {
  TestBoard board(options);
  const auto map = BoardMap::Open(board.path());
  ASSERT_FALSE(map.ok()) << "not refused: " << text;
  EXPECT_EQ(map.status().code(), code) << map.status();
  EXPECT_THAT(std::string(map.status().message()), HasSubstr(text));
  EXPECT_THAT(std::string(map.status().message()), HasSubstr(board.path()));
}

void ExpectBadTable(const std::function<void(mc_board_header&)>& edit) {
  TestBoardOptions options;
  options.edit = edit;
  ExpectRefused(options, absl::StatusCode::kInvalidArgument, "table directory is out of bounds");
}

TEST(BoardMap, ReadsWhatWasWritten) {
  TestBoard board;
  board.header().level = MC_LEVEL_KERNELS;
  board.header().lost[MC_LOSS_STALE_HANDLE] = 12;
  board.WriteComm(2, Comm(0xabc));
  mc_board_thread thread{};
  thread.tid = 77;
  thread.roles = MC_THREAD_PROGRESS;
  board.WriteThread(1, thread);
  board.WriteFlow(5, Flow(3));
  board.WriteOp(Op(70));  // slot 6 of 64

  auto map = BoardMap::Open(board.path());
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(map->comm_capacity(), 8u);
  EXPECT_EQ(map->thread_capacity(), 8u);
  EXPECT_EQ(map->op_capacity(), 64u);
  EXPECT_EQ(map->flow_capacity(), 64u);
  const mc_board_header header = map->Header();
  EXPECT_EQ(header.pid, static_cast<uint32_t>(getpid()));
  EXPECT_EQ(header.level, static_cast<uint32_t>(MC_LEVEL_KERNELS));
  EXPECT_EQ(header.lost[MC_LOSS_STALE_HANDLE], 12u);
  EXPECT_EQ(header.comms_used, 3u);
  EXPECT_EQ(header.threads_used, 2u);
  EXPECT_EQ(header.flows_used, 6u);
  EXPECT_EQ(header.next_op_id, 71u);

  mc_board_comm comm{};
  ASSERT_TRUE(map->ReadComm(2, &comm));
  EXPECT_EQ(comm.comm_id, 0xabcu);
  EXPECT_EQ(comm.generation, 3u);
  EXPECT_EQ(comm.seq, 2u);
  mc_board_thread read_thread{};
  ASSERT_TRUE(map->ReadThread(1, &read_thread));
  EXPECT_EQ(read_thread.tid, 77u);
  mc_board_flow flow{};
  ASSERT_TRUE(map->ReadFlow(5, &flow));
  EXPECT_EQ(flow.peer, 3);
  EXPECT_EQ(flow.channel, 7);
  EXPECT_EQ(flow.done, 4u);
  EXPECT_EQ(map->FlowSeq(5), 2u);
  mc_board_op op{};
  ASSERT_TRUE(map->ReadOp(70, &op));
  EXPECT_EQ(op.id, 70u);
  EXPECT_EQ(op.proxy_done, 1u);
  EXPECT_EQ(op.kernel_gpu_stop, 99u);
  EXPECT_EQ(map->ReadOpSeq(70), (BoardMap::OpSeq{2, 2, 2, 70}));
  // Another id of the same slot: what is there, with its own id.
  ASSERT_TRUE(map->ReadOp(6, &op));
  EXPECT_EQ(op.id, 70u);
}

TEST(BoardMap, IndexOutOfRangeIsNotRead) {
  TestBoard board;
  auto map = BoardMap::Open(board.path());
  ASSERT_TRUE(map.ok()) << map.status();
  mc_board_comm comm{};
  mc_board_thread thread{};
  mc_board_flow flow{};
  for (uint32_t index : {8u, 64u, UINT32_MAX}) {
    EXPECT_FALSE(map->ReadComm(index, &comm));
    EXPECT_FALSE(map->ReadThread(index, &thread));
  }
  for (uint32_t index : {64u, 65u, UINT32_MAX}) {
    EXPECT_FALSE(map->ReadFlow(index, &flow));
    EXPECT_EQ(map->FlowSeq(index), 0u);
  }
  mc_board_op op{};
  EXPECT_TRUE(map->ReadOp(UINT64_MAX, &op));  // every id has a slot
  EXPECT_EQ(op.id, 0u);
}

TEST(BoardMap, LongerLinesOfANewerWriterAreReadAsFarAsKnown) {
  TestBoardOptions options;
  options.extra_stride = 64;
  options.extra_bytes = 4096;
  TestBoard board(options);
  board.WriteFlow(63, Flow(9));
  board.WriteOp(Op(63));
  auto map = BoardMap::Open(board.path());
  ASSERT_TRUE(map.ok()) << map.status();
  mc_board_flow flow{};
  ASSERT_TRUE(map->ReadFlow(63, &flow));
  EXPECT_EQ(flow.peer, 9);
  mc_board_op op{};
  ASSERT_TRUE(map->ReadOp(63, &op));
  EXPECT_EQ(op.kernel_started, 5u);
}

TEST(BoardMap, RefusesWhatIsNotABoard) {
  const auto missing = BoardMap::Open("/proc/self/fd/999999");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("cannot open board"));

  const auto folder = BoardMap::Open("/proc/self");
  EXPECT_EQ(folder.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(folder.status().message()), HasSubstr("not a memory file"));

  const auto device = BoardMap::Open("/dev/zero");
  EXPECT_EQ(device.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("not a memory file"));

  char name[] = "/tmp/mycroft-board-map-test-XXXXXX";
  const int file = mkstemp(name);
  ASSERT_GE(file, 0);
  ASSERT_EQ(ftruncate(file, 65536), 0);
  const auto plain = BoardMap::Open(name);
  EXPECT_EQ(plain.status().code(), absl::StatusCode::kInvalidArgument);
  // A file system without seals says so; tmpfs has them, but a plain file carries none.
  EXPECT_THAT(std::string(plain.status().message()), HasSubstr("sealed"));
  close(file);
  unlink(name);
}

TEST(BoardMap, DoesNotBlockOnAPipe) {
  char folder[] = "/tmp/mycroft-board-map-test-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string pipe = std::string(folder) + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const auto map = BoardMap::Open(pipe);
  EXPECT_EQ(map.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(map.status().message()), HasSubstr("not a memory file"));
  std::filesystem::remove_all(folder);
}

TEST(BoardMap, RefusesAMemoryFileThatCanStillChangeItsSize) {
  TestBoardOptions options;
  for (int seals : {0, F_SEAL_GROW, F_SEAL_SHRINK, F_SEAL_GROW | F_SEAL_SEAL}) {
    options.seals = seals;
    ExpectRefused(options, absl::StatusCode::kInvalidArgument, "its size is not sealed");
  }
}

TEST(BoardMap, RefusesWrongSizes) {
  for (const auto& [bytes, text] :
       std::vector<std::pair<off_t, std::string>>{{0, "its size is 0 bytes"},
                                                  {575, "its size is 575 bytes, expected 576"},
                                                  {(8 << 20) + 1, "its size is 8388609 bytes"},
                                                  {off_t{1} << 40, "bytes, expected"}}) {
    const int fd = memfd_create(MC_BOARD_MEMFD_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(ftruncate(fd, bytes), 0);
    ASSERT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    const auto map = BoardMap::Open("/proc/self/fd/" + std::to_string(fd));
    EXPECT_EQ(map.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(map.status().message()), HasSubstr(text));
    close(fd);
  }
  TestBoardOptions options;
  options.edit = [](mc_board_header& h) { h.total_bytes += 64; };
  ExpectRefused(options, absl::StatusCode::kInvalidArgument, "the size in its header is wrong");
  options.edit = nullptr;
  options.extra_bytes = 0;
  TestBoard good(options);
  EXPECT_TRUE(BoardMap::Open(good.path()).ok());
}

TEST(BoardMap, RefusesWrongMagicAndVersion) {
  TestBoardOptions options;
  options.edit = [](mc_board_header& h) { h.magic ^= 1; };
  ExpectRefused(options, absl::StatusCode::kInvalidArgument, "wrong magic number");
  // A board whose writer has not come to the end of its set-up.
  options.edit = [](mc_board_header& h) { h.magic = 0; };
  ExpectRefused(options, absl::StatusCode::kInvalidArgument, "wrong magic number");
  options.edit = [](mc_board_header& h) { h.version = 2; };
  ExpectRefused(options, absl::StatusCode::kFailedPrecondition,
                "has version 2, this program reads version 1: use the plugin and the agent of one "
                "release");
}

TEST(BoardMap, RefusesTablesThatDoNotFit) {
  // Each table with each fault.
  mc_board_table mc_board_header::*const tables[] = {
      &mc_board_header::comms, &mc_board_header::threads, &mc_board_header::ops,
      &mc_board_header::flows};
  for (auto table : tables) {
    SCOPED_TRACE(static_cast<int>(std::find(std::begin(tables), std::end(tables), table) - tables));
    ExpectBadTable([&](mc_board_header& h) { (h.*table).capacity = 0; });
    ExpectBadTable([&](mc_board_header& h) { (h.*table).capacity = UINT32_MAX; });
    ExpectBadTable([&](mc_board_header& h) { (h.*table).stride = 0; });
    ExpectBadTable([&](mc_board_header& h) { (h.*table).stride -= 64; });
    ExpectBadTable([&](mc_board_header& h) { (h.*table).stride += 8; });
    ExpectBadTable([&](mc_board_header& h) { (h.*table).stride = UINT32_MAX & ~63u; });
    ExpectBadTable([&](mc_board_header& h) { (h.*table).offset += 8; });
    ExpectBadTable([&](mc_board_header& h) { (h.*table).offset = h.total_bytes + 64; });
    ExpectBadTable([&](mc_board_header& h) { (h.*table).offset = (h.total_bytes - 64) & ~63ull; });
    ExpectBadTable([&](mc_board_header& h) { (h.*table).offset = UINT64_MAX & ~63ull; });
    // offset + stride * capacity wraps around to a small number.
    ExpectBadTable([&](mc_board_header& h) {
      (h.*table).offset = 0 - uint64_t{(h.*table).stride} * (h.*table).capacity;
    });
  }
  ExpectBadTable([](mc_board_header& h) { h.ops.capacity = 63; });
  ExpectBadTable([](mc_board_header& h) { h.ops.capacity = 48; });
  // The last table ends exactly with the file: good. One line more: not.
  ExpectBadTable([](mc_board_header& h) { ++h.flows.capacity; });
}

TEST(BoardMap, TablesStayAsTheyWereChecked) {
  TestBoard board;
  board.WriteFlow(1, Flow(4));
  auto map = BoardMap::Open(board.path());
  ASSERT_TRUE(map.ok()) << map.status();
  board.header().flows = {UINT64_MAX & ~63ull, 4096, UINT32_MAX};
  board.header().ops.capacity = 3;
  mc_board_flow flow{};
  ASSERT_TRUE(map->ReadFlow(1, &flow));
  EXPECT_EQ(flow.peer, 4);
  EXPECT_FALSE(map->ReadFlow(64, &flow));
  EXPECT_EQ(map->Header().flows.capacity, 64u);
  EXPECT_EQ(map->Header().ops.capacity, 64u);
}

TEST(BoardMap, MoveHandsOverTheMapping) {
  TestBoard a, b;
  a.WriteComm(0, Comm(1));
  b.WriteComm(0, Comm(2));
  auto first = BoardMap::Open(a.path());
  auto second = BoardMap::Open(b.path());
  ASSERT_TRUE(first.ok() && second.ok());
  BoardMap map = *std::move(first);
  mc_board_comm comm{};
  ASSERT_TRUE(map.ReadComm(0, &comm));
  EXPECT_EQ(comm.comm_id, 1u);
  map = *std::move(second);
  ASSERT_TRUE(map.ReadComm(0, &comm));
  EXPECT_EQ(comm.comm_id, 2u);
}

TEST(BoardMap, LineThatIsBeingWrittenForEverIsGivenUp) {
  TestBoard board;
  board.WriteComm(0, Comm(1));
  board.WriteFlow(0, Flow(1));
  board.WriteOp(Op(1));
  auto map = BoardMap::Open(board.path());
  ASSERT_TRUE(map.ok()) << map.status();
  mc_board_comm comm{};
  mc_board_flow flow{};
  mc_board_op op{};
  auto word = [](std::byte* at) -> uint32_t& { return *reinterpret_cast<uint32_t*>(at); };
  word(board.CommLine(0)) |= 1;
  EXPECT_FALSE(map->ReadComm(0, &comm));
  word(board.FlowLine(0)) |= 1;
  EXPECT_FALSE(map->ReadFlow(0, &flow));
  for (size_t part :
       {size_t{0}, offsetof(mc_board_op, proxy_seq), offsetof(mc_board_op, kernel_seq)}) {
    SCOPED_TRACE(part);
    EXPECT_TRUE(map->ReadOp(1, &op));
    word(board.OpLine(1) + part) |= 1;
    EXPECT_FALSE(map->ReadOp(1, &op));
    ++word(board.OpLine(1) + part);
  }
  EXPECT_TRUE(map->ReadOp(1, &op));
}

// Every copy that is handed out is one that was written as a whole.
TEST(BoardMap, LinesRewrittenWhileReadAreConsistent) {
  TestBoard board;
  std::atomic<bool> stop{false};
  const auto fill = [&](uint32_t n) {
    mc_board_flow flow{};
    flow.total = flow.posted = flow.ready = flow.transmitted = flow.done = n;
    flow.moved_ns = flow.state_ns = flow.done_ns = flow.bytes = flow.peer_wait_polls = n;
    board.WriteFlow(0, flow);
    mc_board_op op{};
    op.id = 1 + 64 * uint64_t{n};  // always slot 1
    op.count = op.start_ns = op.id;
    op.steps_total = op.steps_done = op.recv_data_sum_ns = op.max_wait_ns[2] = op.id;
    op.kernel_gpu_start = op.kernel_gpu_stop = op.kernel_stop_seen_ns = op.id;
    board.WriteOp(op);
  };
  fill(0);
  auto map = BoardMap::Open(board.path());
  ASSERT_TRUE(map.ok()) << map.status();
  std::thread writer([&] {
    for (uint32_t n = 1; !stop.load(); ++n) fill(n);
  });
  int flows = 0, ops = 0, different = 0;
  uint64_t last = UINT64_MAX;
  for (int i = 0; i < 20'000 || (different < 100 && i < 2'000'000); ++i) {
    mc_board_flow flow{};
    if (map->ReadFlow(0, &flow)) {
      ++flows;
      different += flow.bytes != last;
      last = flow.bytes;
      const uint32_t n = flow.total;
      ASSERT_EQ(flow.posted, n);
      ASSERT_EQ(flow.done, n);
      ASSERT_EQ(flow.moved_ns, n);
      ASSERT_EQ(flow.done_ns, n);
      ASSERT_EQ(flow.peer_wait_polls, n);
    }
    mc_board_op op{};
    if (map->ReadOp(1, &op)) {
      ++ops;
      // Within one part all is of one write.
      ASSERT_EQ(op.count, op.id);
      ASSERT_EQ(op.start_ns, op.id);
      ASSERT_EQ(op.steps_total, op.steps_done);
      ASSERT_EQ(op.steps_total, op.max_wait_ns[2]);
      ASSERT_EQ(op.steps_total, op.recv_data_sum_ns);
      ASSERT_EQ(op.kernel_gpu_start, op.kernel_stop_seen_ns);
    }
  }
  stop.store(true);
  writer.join();
  EXPECT_GT(flows, 0);
  EXPECT_GT(different, 1);
  // Whether an operation was caught between two writes is luck; at rest it must be.
  mc_board_op op{};
  EXPECT_TRUE(map->ReadOp(1, &op));
  SUCCEED() << flows << " flows and " << ops << " operations read";
}

TEST(BoardMap, RequestsALevel) {
  TestBoard board;
  auto map = BoardMap::Open(board.path());
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_TRUE(map->RequestLevel(MC_LEVEL_KERNELS));
  EXPECT_EQ(board.header().requested_level, static_cast<uint32_t>(MC_LEVEL_KERNELS));
  // The mapping that is read from cannot be written through.
  EXPECT_EQ(board.header().level, static_cast<uint32_t>(MC_LEVEL_STEPS));
}

TEST(BoardMap, RequestsNoLevelOfAnotherFileOnTheSameDescriptor) {
  auto board = std::make_unique<TestBoard>();
  const int fd = board->fd();
  auto map = BoardMap::Open(board->path());
  ASSERT_TRUE(map.ok()) << map.status();
  // The process closes its board and opens something else under the same number.
  const int other = memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_GE(other, 0);
  ASSERT_EQ(ftruncate(other, 4096), 0);
  ASSERT_EQ(dup2(other, fd), fd);
  EXPECT_FALSE(map->RequestLevel(MC_LEVEL_KERNELS));
  char bytes[4096] = {};
  ASSERT_EQ(pread(other, bytes, sizeof(bytes), 0), 4096);
  EXPECT_TRUE(std::all_of(std::begin(bytes), std::end(bytes), [](char c) { return c == 0; }));
  close(other);
}

}  // namespace
}  // namespace mycroft
