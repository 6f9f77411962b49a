// SPDX-License-Identifier: Apache-2.0
//
// Creates the GPU board of this process (layout: bpf/abi/gpu_board.h). Made once, when
// the CUDA driver loads libmycroft-cupti.so, and never destroyed: a callback may be
// under way at any time. Thread safety: none needed at creation; lines are written by
// the rules of line.h.
#ifndef MYCROFT_CUPTI_BOARD_GPU_BOARD_H_
#define MYCROFT_CUPTI_BOARD_GPU_BOARD_H_

#include <cstdint>

#include "bpf/abi/gpu_board.h"
#include "cupti/board/memfd.h"

namespace mycroft::board {

// Views into the mapping; valid until AbandonMemfd.
struct GpuBoard {
  Memfd memfd;
  mc_gpu_header* header = nullptr;
  mc_gpu_device* devices = nullptr;    // MC_GPU_MAX_DEVICES
  mc_gpu_context* contexts = nullptr;  // MC_GPU_MAX_CONTEXTS
  mc_gpu_stream* streams = nullptr;    // MC_GPU_MAX_STREAMS
  mc_gpu_name* names = nullptr;        // MC_GPU_MAX_NAMES
  mc_gpu_thread* threads = nullptr;    // MC_GPU_MAX_THREADS
  mc_gpu_event* events = nullptr;      // MC_GPU_MAX_EVENTS
};

// False when the kernel refuses a memfd; then nothing is left behind. The magic is
// written last, the seals before it: a reader that finds both finds a whole header.
[[nodiscard]] bool CreateGpuBoard(uint32_t pid, uint64_t now_ns, GpuBoard* board);

}  // namespace mycroft::board

#endif  // MYCROFT_CUPTI_BOARD_GPU_BOARD_H_
