// SPDX-License-Identifier: Apache-2.0
//
// Lines of a board, copied out of another process, to typed samples. Nothing in
// a line is trusted: enumerations out of range become unknown, counters that
// contradict each other are clamped, text is made printable. Pure functions.
#ifndef MYCROFT_USERSPACE_DECODE_BOARD_DECODE_H_
#define MYCROFT_USERSPACE_DECODE_BOARD_DECODE_H_

#include <string>

#include "bpf/abi/board.h"
#include "userspace/decode/snapshot.h"

namespace mycroft {

CommSample DecodeComm(uint32_t index, const mc_board_comm& line);
OpSample DecodeOp(const mc_board_op& line);
FlowSample DecodeFlow(uint32_t index, const mc_board_flow& line);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_DECODE_BOARD_DECODE_H_
