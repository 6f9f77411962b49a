// SPDX-License-Identifier: Apache-2.0
#include "cupti/board/board.h"

#include <errno.h>

#include "cupti/board/line.h"

namespace mycroft::board {
namespace {

constexpr uint64_t kCommsAt = kPage;
constexpr uint64_t kThreadsAt = Align64(kCommsAt + MC_BOARD_MAX_COMMS * sizeof(mc_board_comm));
constexpr uint64_t kOpsAt = Align64(kThreadsAt + MC_BOARD_MAX_THREADS * sizeof(mc_board_thread));
constexpr uint64_t kFlowsAt = Align64(kOpsAt + MC_BOARD_MAX_OPS * sizeof(mc_board_op));
constexpr uint64_t kEnd = kFlowsAt + MC_BOARD_MAX_FLOWS * sizeof(mc_board_flow);
constexpr uint64_t kBytes = AlignPage(kEnd);
static_assert(sizeof(mc_board_header) <= kPage);
static_assert(kBytes <= MC_BOARD_MAX_BYTES);
static_assert((MC_BOARD_MAX_OPS & (MC_BOARD_MAX_OPS - 1)) == 0);

}  // namespace

bool Create(const BoardFacts& facts, Board* board) {
  Memfd memfd;
  if (!CreateMemfd(MC_BOARD_MEMFD_NAME, kBytes, &memfd)) return false;
  uint8_t* at = memfd.base;
  auto* h = reinterpret_cast<mc_board_header*>(at);
  h->version = MC_BOARD_VERSION;
  h->header_bytes = sizeof(mc_board_header);
  h->total_bytes = kBytes;
  h->pid = facts.pid;
  h->profiler_api = facts.profiler_api;
  h->created_ns = facts.created_ns;
  h->comms = {kCommsAt, sizeof(mc_board_comm), MC_BOARD_MAX_COMMS};
  h->threads = {kThreadsAt, sizeof(mc_board_thread), MC_BOARD_MAX_THREADS};
  h->ops = {kOpsAt, sizeof(mc_board_op), MC_BOARD_MAX_OPS};
  h->flows = {kFlowsAt, sizeof(mc_board_flow), MC_BOARD_MAX_FLOWS};
  CopyText(h->process_name, sizeof(h->process_name), program_invocation_short_name);
  CopyText(h->plugin_version, sizeof(h->plugin_version), MYCROFT_VERSION);
  h->next_op_id = 1;
  h->last_callback_ns = facts.created_ns;
  if (!SealMemfd(&memfd)) return false;
  board->memfd = memfd;
  board->header = h;
  board->comms = reinterpret_cast<mc_board_comm*>(at + kCommsAt);
  board->threads = reinterpret_cast<mc_board_thread*>(at + kThreadsAt);
  board->ops = reinterpret_cast<mc_board_op*>(at + kOpsAt);
  board->flows = reinterpret_cast<mc_board_flow*>(at + kFlowsAt);
  Set(&h->magic, uint64_t{MC_BOARD_MAGIC});
  return true;
}

void Abandon(Board* board) {
  AbandonMemfd(&board->memfd);
  *board = Board{};
}

}  // namespace mycroft::board
