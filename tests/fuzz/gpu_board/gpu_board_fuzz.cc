// SPDX-License-Identifier: Apache-2.0
//
// A GPU board in the hands of a hostile process. The input is a row of commands:
//   0..5  offset (2 bytes), n (1 byte), n bytes: over the board
//   6     the board is read, from the event id that the rest of the byte says
//   7     it is opened anew
// No input may crash or hang the reader, and what it decodes keeps the promises of
// gpu_snapshot.h.
#include <cstdlib>
#include <optional>

#include "tests/fuzz/board/bytes.h"
#include "userspace/decode/gpu_board_decode.h"
#include "userspace/source/testing/test_gpu_board.h"

namespace mycroft {
namespace {

void Require(bool ok) {
  if (!ok) abort();
}

bool Printable(const std::string& text) {
  for (char c : text) {
    if (c < 0x20 || c > 0x7e) return false;
  }
  return true;
}

// Two streams in the middle of something, a thread that waits, kernels that were timed.
void FillIn(TestGpuBoard& board) {
  board.device(0).known = 1;
  board.context(0).life = MC_GPU_ALIVE;
  for (uint32_t i = 0; i < 2; ++i) {
    mc_gpu_stream& s = board.stream(i);
    s.life = MC_GPU_ALIVE;
    s.last_ticket = 40;
    s.finished_ticket = 35 - i * 20;
    for (uint64_t t = 9; t <= 40; ++t) {
      mc_gpu_launch& slot = s.queue[t % MC_GPU_QUEUE];
      slot.ticket = t;
      slot.work = static_cast<uint8_t>(t % MC_GPU_WORK_COUNT);
      slot.name = static_cast<uint16_t>(t % 9);
    }
    board.name(1 + i).count = 3;
  }
  board.thread(0).tid = 1;
  board.thread(0).call = MC_GPU_HOST_CONTEXT_SYNC;
  for (uint64_t id = 1; id <= 20; ++id) board.event(id).id = id;
}

void Check(const GpuSnapshot& s) {
  Require(s.state < MC_GPU_STATE_COUNT && s.nccl_launches <= s.launches);
  Require(Printable(s.process) && Printable(s.cupti_path) && Printable(s.other_subscriber));
  Require(Printable(DescribeGpuState(s)));
  Require(!s.names.empty());
  for (size_t i = 0; i < s.names.size(); ++i) {
    Require(s.names[i].index == i && Printable(s.names[i].name));
    Require(s.names[i].min_ns <= s.names[i].max_ns);
  }
  for (const GpuStreamSample& stream : s.streams) {
    Require(stream.finished <= stream.launched && stream.nccl_kernels <= stream.kernels);
    Require(stream.behind.size() <= MC_GPU_QUEUE);
    Require(stream.finished < stream.launched || stream.pending == GpuPending::kNone);
    if (stream.oldest.has_value()) {
      Require(stream.oldest->ticket > stream.finished && stream.oldest->name < s.names.size());
      for (const GpuLaunch& launch : stream.behind) {
        Require(launch.ticket > stream.oldest->ticket && launch.ticket <= stream.launched);
      }
    }
  }
  for (const GpuEventSample& event : s.events) {
    Require(event.end_ns >= event.start_ns && event.name < s.names.size());
  }
}

}  // namespace
}  // namespace mycroft

extern "C" int MycroftGpuBoardFuzz(const uint8_t* data, size_t size) {
  using namespace mycroft;  // NOLINT
  TestGpuBoard board;
  FillIn(board);
  std::optional<GpuBoardMap> map;
  const auto open = [&] {
    auto opened = GpuBoardMap::Open(board.path());
    if (opened.ok()) {
      map.emplace(*std::move(opened));
    } else {
      Require(!opened.status().message().empty());
    }
  };
  open();
  Bytes in(data, size);
  int reads = 0;
  while (!in.empty()) {
    const uint8_t command = in.U8();
    switch (command % 8) {
      case 6:
        if (++reads <= 16) Check(ReadGpuBoard(*map, command / 8u, 1'000'000));
        break;
      case 7:
        if (++reads <= 16) open();
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
  Check(ReadGpuBoard(*map, 1, 1'000'000));
  return 0;
}

#ifdef MYCROFT_FUZZER
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return MycroftGpuBoardFuzz(data, size);
}
#endif
