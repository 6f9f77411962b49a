// SPDX-License-Identifier: Apache-2.0
//
// For tests, fuzzers and benchmarks only: a board as a training process owns it, in
// a sealed memfd of this process, written by hand through bpf/abi/board.h. It knows
// nothing of the plugin, so that reader and writer are tested against the layout and
// not against each other.
//
// Owns the memfd and a writable mapping; neither copyable nor movable. Lines are
// written by the rules of the layout (sequence word odd while writing); one thread
// per line. A fork inherits both descriptor and mapping.
#ifndef MYCROFT_USERSPACE_SOURCE_TESTING_TEST_BOARD_H_
#define MYCROFT_USERSPACE_SOURCE_TESTING_TEST_BOARD_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "bpf/abi/board.h"

namespace mycroft {

struct TestBoardOptions {
  uint32_t comms = 8;
  uint32_t threads = 8;
  uint32_t ops = 64;
  uint32_t flows = 64;
  std::string name = MC_BOARD_MEMFD_NAME;
  int seals = -1;             // -1: F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL
  uint64_t extra_bytes = 0;   // in the file, behind the tables
  uint32_t extra_stride = 0;  // a newer writer's longer lines
  // Changes the header before the file is sealed.
  std::function<void(mc_board_header&)> edit;
};

class TestBoard {
 public:
  explicit TestBoard(const TestBoardOptions& options = {});
  ~TestBoard();
  TestBoard(const TestBoard&) = delete;
  TestBoard& operator=(const TestBoard&) = delete;

  int fd() const { return fd_; }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }
  std::byte* bytes() const { return base_; }
  size_t size() const { return size_; }
  mc_board_header& header() const { return *reinterpret_cast<mc_board_header*>(base_); }

  // Whole lines; the sequence words in `line` are ignored. REQUIRES: index in bounds.
  void WriteComm(uint32_t index, const mc_board_comm& line);
  void WriteThread(uint32_t index, const mc_board_thread& line);
  void WriteFlow(uint32_t index, const mc_board_flow& line);
  // Into slot id & (capacity - 1), and raises next_op_id. The parts are written one
  // after the other, as their threads would.
  void WriteOp(const mc_board_op& line);

  // Where the lines are, to break them.
  std::byte* CommLine(uint32_t index) const { return Line(comms_, index); }
  std::byte* OpLine(uint64_t id) const { return Line(ops_, id & (ops_.capacity - 1)); }
  std::byte* FlowLine(uint32_t index) const { return Line(flows_, index); }

 private:
  std::byte* Line(const mc_board_table& table, uint64_t index) const {
    return base_ + table.offset + index * table.stride;
  }

  int fd_ = -1;
  std::byte* base_ = nullptr;
  size_t size_ = 0;
  mc_board_table comms_{}, threads_{}, ops_{}, flows_{};
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_TESTING_TEST_BOARD_H_
