// SPDX-License-Identifier: Apache-2.0
//
// Creates the progress board of this process (layout: bpf/abi/board.h): one
// memfd, sized, mapped and sealed against any change of size, found by the agent
// in /proc/PID/fd. The descriptor stays open for the life of the process, since
// it is the only way to the board.
//
// Made once, in the first init of the plugin, and never destroyed: a host may be
// inside a callback at any time. Thread safety: none needed at creation; lines
// are written by the rules of line.h.
#ifndef MYCROFT_CUPTI_BOARD_BOARD_H_
#define MYCROFT_CUPTI_BOARD_BOARD_H_

#include <cstdint>

#include "bpf/abi/board.h"
#include "cupti/board/memfd.h"

namespace mycroft::board {

// Views into the mapping; valid until Abandon().
struct Board {
  Memfd memfd;
  mc_board_header* header = nullptr;
  mc_board_comm* comms = nullptr;      // MC_BOARD_MAX_COMMS
  mc_board_thread* threads = nullptr;  // MC_BOARD_MAX_THREADS
  mc_board_op* ops = nullptr;          // MC_BOARD_MAX_OPS
  mc_board_flow* flows = nullptr;      // MC_BOARD_MAX_FLOWS
};

struct BoardFacts {
  uint32_t pid = 0;
  uint32_t profiler_api = 0;
  uint64_t created_ns = 0;
};

// False when the kernel refuses a memfd or the mapping; then nothing is left behind.
// The magic is written last, the seals before it: a reader that finds both finds
// a whole header.
[[nodiscard]] bool Create(const BoardFacts& facts, Board* board);

// For a child after fork: unmaps the parent's board and closes the inherited
// descriptor if it still is the board. Async-signal-safe.
void Abandon(Board* board);

}  // namespace mycroft::board

#endif  // MYCROFT_CUPTI_BOARD_BOARD_H_
