// SPDX-License-Identifier: Apache-2.0
//
// For tests and fuzzers only: a GPU board as a training process owns it, in a sealed
// memfd of this process, written by hand through bpf/abi/gpu_board.h. It knows nothing
// of the library, so that reader and writer are tested against the layout and not
// against each other.
//
// Owns the memfd and a writable mapping; neither copyable nor movable. One thread.
#ifndef MYCROFT_USERSPACE_SOURCE_TESTING_TEST_GPU_BOARD_H_
#define MYCROFT_USERSPACE_SOURCE_TESTING_TEST_GPU_BOARD_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "bpf/abi/gpu_board.h"

namespace mycroft {

struct TestGpuBoardOptions {
  uint32_t devices = 2, contexts = 4, streams = 8, names = 8, threads = 8, events = 16;
  int seals = -1;             // -1: F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL
  uint64_t extra_bytes = 0;   // in the file, behind the tables
  uint32_t extra_stride = 0;  // a newer writer's longer lines
  // Changes the header before the file is sealed.
  std::function<void(mc_gpu_header&)> edit;
};

class TestGpuBoard {
 public:
  explicit TestGpuBoard(const TestGpuBoardOptions& options = {});
  ~TestGpuBoard();
  TestGpuBoard(const TestGpuBoard&) = delete;
  TestGpuBoard& operator=(const TestGpuBoard&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }
  std::byte* bytes() const { return base_; }
  size_t size() const { return size_; }
  mc_gpu_header& header() const { return *reinterpret_cast<mc_gpu_header*>(base_); }
  // REQUIRES: index in bounds. Raises the high-water mark.
  mc_gpu_device& device(uint32_t i);
  mc_gpu_context& context(uint32_t i);
  mc_gpu_stream& stream(uint32_t i);
  mc_gpu_name& name(uint32_t i);
  mc_gpu_thread& thread(uint32_t i);
  mc_gpu_event& event(uint64_t id);  // slot of that id; raises next_event_id

 private:
  std::byte* Line(const mc_board_table& table, uint64_t index) const {
    return base_ + table.offset + index * table.stride;
  }

  int fd_ = -1;
  std::byte* base_ = nullptr;
  size_t size_ = 0;
  mc_board_table devices_{}, contexts_{}, streams_{}, names_{}, threads_{}, events_{};
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_TESTING_TEST_GPU_BOARD_H_
