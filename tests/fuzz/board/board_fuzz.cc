// SPDX-License-Identifier: Apache-2.0
//
// A board in the hands of a hostile process. The input is a row of commands:
//   0..5  offset (2 bytes), n (1 byte), n bytes: over the board
//   6     what the reader does next: time passes, a tick of the live source, whose
//         snapshot goes through the pipeline
//   7     the board is opened anew, and every line of it is read
// The rest of a command byte says more (see below). No input may crash or hang the
// reader, and what it decodes keeps the promises of board_decode.h.
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

#include "tests/fuzz/board/bytes.h"
#include "userspace/attribute/pipeline.h"
#include "userspace/decode/board_decode.h"
#include "userspace/decode/live_source.h"
#include "userspace/source/board_map.h"
#include "userspace/source/testing/test_board.h"

namespace mycroft {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr char kPid[] = "4242";

void Require(bool ok) {
  if (!ok) abort();
}

// A /proc with one process, whose descriptors are those of the fuzzer.
class ProcTree {
 public:
  ProcTree() {
    char name[] = "/tmp/mycroft-board-fuzz-XXXXXX";
    Require(mkdtemp(name) != nullptr);
    root_ = name;
    const std::string process = root_ + "/" + kPid;
    Require(mkdir(process.c_str(), 0700) == 0);
    std::ofstream(process + "/stat")
        << kPid << " (train) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 77 0 0\n";
    std::ofstream(process + "/status") << "Name:\ttrain\nNSpid:\t" << kPid << "\n";
    Require(symlink("/proc/self/fd", (process + "/fd").c_str()) == 0);
  }
  ~ProcTree() {
    const std::string process = root_ + "/" + kPid;
    for (const char* name : {"/stat", "/status", "/fd", ""}) remove((process + name).c_str());
    remove(root_.c_str());
  }
  const std::string& root() const { return root_; }

 private:
  std::string root_;
};

// What a job of two ranks looks like from rank 0, in the middle of an operation.
void FillIn(TestBoard& board, uint64_t now) {
  for (uint32_t i = 0; i < 2; ++i) {
    mc_board_comm comm{};
    comm.generation = 1;
    comm.comm_id = 0xc0 + i;
    comm.nranks = 2;
    comm.state = MC_COMM_ACTIVE;
    board.WriteComm(i, comm);
  }
  mc_board_thread thread{};
  thread.tid = 4242;
  thread.roles = MC_THREAD_LAUNCH;
  board.WriteThread(0, thread);
  for (uint64_t id = 1; id <= 12; ++id) {
    mc_board_op op{};
    op.id = id;
    op.comm_generation = 1;
    op.kind = MC_OP_COLL;
    op.func = MC_FUNC_ALLREDUCE;
    op.ordinal = id - 1;
    op.count = 1000;
    op.start_ns = now - (13 - id) * 20 * kMs;
    op.stop_ns = op.start_ns + 1000;
    op.proxy_started = 2;
    op.proxy_done = id < 12 ? 2 : 0;
    op.proxy_last_ns = op.start_ns + 10 * kMs;
    board.WriteOp(op);
  }
  for (uint32_t i = 0; i < 2; ++i) {
    mc_board_flow flow{};
    flow.comm_generation = 1;
    flow.direction = static_cast<uint8_t>(i);
    flow.peer = 1;
    flow.state = i == 0 ? MC_FLOW_SEND_GPU : MC_FLOW_RECV_REMOTE;
    flow.open_ops = 1;
    flow.op_id = 12;
    flow.total = 16;
    flow.posted = 8;
    flow.state_ns = flow.moved_ns = now;
    board.WriteFlow(i, flow);
  }
}

void ReadEverything(const std::string& path) {
  auto map = BoardMap::Open(path);
  if (!map.ok()) {
    Require(!map.status().message().empty());
    return;
  }
  const mc_board_header header = map->Header();
  Require(header.ops.capacity == map->op_capacity());
  for (uint32_t i = 0; i <= map->comm_capacity(); ++i) {
    mc_board_comm line;
    if (!map->ReadComm(i, &line)) continue;
    Require(i < map->comm_capacity());
    const CommSample sample = DecodeComm(i, line);
    Require(sample.state == MC_COMM_FREE || (sample.rank >= 0 && sample.rank < sample.nranks));
  }
  for (uint32_t i = 0; i <= map->thread_capacity(); ++i) {
    mc_board_thread line;
    Require(!map->ReadThread(i, &line) || i < map->thread_capacity());
  }
  for (uint64_t i = 0; i < map->op_capacity(); ++i) {
    mc_board_op line;
    map->ReadOpSeq(i);
    if (!map->ReadOp(i, &line)) continue;
    const OpSample sample = DecodeOp(line);
    Require(sample.proxy_done <= sample.proxy_started && sample.kind <= MC_OP_RECV);
  }
  for (uint32_t i = 0; i <= map->flow_capacity(); ++i) {
    mc_board_flow line;
    map->FlowSeq(i);
    if (!map->ReadFlow(i, &line)) continue;
    Require(i < map->flow_capacity());
    const FlowSample sample = DecodeFlow(i, line);
    Require(sample.done <= sample.total && sample.state <= MC_FLOW_RECV_GPU);
  }
}

}  // namespace
}  // namespace mycroft

extern "C" int MycroftBoardFuzz(const uint8_t* data, size_t size) {
  using namespace mycroft;  // NOLINT
  static const ProcTree proc;
  uint64_t now = 1'000'000 * kMs;
  TestBoardOptions small;
  small.comms = small.threads = 4;
  small.ops = small.flows = 16;
  small.edit = [](mc_board_header& h) { h.pid = 4242; };
  TestBoard board(small);
  FillIn(board, now);

  LiveOptions options;
  options.hardware = false;
  options.proc_root = proc.root();
  options.now_ns = [&now] { return now; };
  options.wall_ns = options.now_ns;
  options.scan_interval_ns = 1;
  auto source = LiveSource::Create(options);
  Require(source.ok());
  Pipeline pipeline;

  Bytes in(data, size);
  int reads = 0;
  while (!in.empty()) {
    const uint8_t command = in.U8();
    switch (command % 8) {
      case 6: {
        now += uint64_t{command / 8u + 1} * 50 * kMs;
        auto next = (*source)->Next();
        Require(next.ok() && next->has_value());
        Require((*next)->processes.size() <= 1);
        pipeline.Feed(**next);
        break;
      }
      case 7:
        if (++reads > 8) break;
        ReadEverything(board.path());
        break;
      default: {
        const size_t at = in.U16() % board.size();
        size_t bytes = in.U8();
        if (bytes > board.size() - at) bytes = board.size() - at;
        in.Copy(board.bytes() + at, bytes);
        break;
      }
    }
  }
  ReadEverything(board.path());
  pipeline.Finish();
  (void)pipeline.View();
  (void)pipeline.BlindSpots();
  return 0;
}

#ifdef MYCROFT_FUZZER
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return MycroftBoardFuzz(data, size);
}
#endif
