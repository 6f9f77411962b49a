// SPDX-License-Identifier: Apache-2.0
#include "cupti/board/gpu_board.h"

#include <errno.h>

#include "cupti/board/line.h"

namespace mycroft::board {
namespace {

constexpr uint64_t kDevicesAt = kPage;
constexpr uint64_t kContextsAt = kDevicesAt + MC_GPU_MAX_DEVICES * sizeof(mc_gpu_device);
constexpr uint64_t kStreamsAt = kContextsAt + MC_GPU_MAX_CONTEXTS * sizeof(mc_gpu_context);
constexpr uint64_t kNamesAt = kStreamsAt + MC_GPU_MAX_STREAMS * sizeof(mc_gpu_stream);
constexpr uint64_t kThreadsAt = kNamesAt + MC_GPU_MAX_NAMES * sizeof(mc_gpu_name);
constexpr uint64_t kEventsAt = kThreadsAt + MC_GPU_MAX_THREADS * sizeof(mc_gpu_thread);
constexpr uint64_t kBytes = AlignPage(kEventsAt + MC_GPU_MAX_EVENTS * sizeof(mc_gpu_event));
static_assert(sizeof(mc_gpu_header) <= kPage);
static_assert(kBytes <= MC_GPU_BOARD_MAX_BYTES);
static_assert((MC_GPU_MAX_EVENTS & (MC_GPU_MAX_EVENTS - 1)) == 0);
static_assert((MC_GPU_QUEUE & (MC_GPU_QUEUE - 1)) == 0);
static_assert(kContextsAt % 64 == 0 && kStreamsAt % 64 == 0 && kNamesAt % 64 == 0 &&
              kThreadsAt % 64 == 0 && kEventsAt % 64 == 0);

}  // namespace

bool CreateGpuBoard(uint32_t pid, uint64_t now_ns, GpuBoard* board) {
  Memfd memfd;
  if (!CreateMemfd(MC_GPU_BOARD_MEMFD_NAME, kBytes, &memfd)) return false;
  auto* h = reinterpret_cast<mc_gpu_header*>(memfd.base);
  h->version = MC_GPU_BOARD_VERSION;
  h->header_bytes = sizeof(mc_gpu_header);
  h->total_bytes = kBytes;
  h->pid = pid;
  h->created_ns = now_ns;
  h->devices = {kDevicesAt, sizeof(mc_gpu_device), MC_GPU_MAX_DEVICES};
  h->contexts = {kContextsAt, sizeof(mc_gpu_context), MC_GPU_MAX_CONTEXTS};
  h->streams = {kStreamsAt, sizeof(mc_gpu_stream), MC_GPU_MAX_STREAMS};
  h->names = {kNamesAt, sizeof(mc_gpu_name), MC_GPU_MAX_NAMES};
  h->threads = {kThreadsAt, sizeof(mc_gpu_thread), MC_GPU_MAX_THREADS};
  h->events = {kEventsAt, sizeof(mc_gpu_event), MC_GPU_MAX_EVENTS};
  CopyText(h->process_name, sizeof(h->process_name), program_invocation_short_name);
  CopyText(h->library_version, sizeof(h->library_version), MYCROFT_VERSION);
  h->names_used = 1;  // line 0
  h->next_event_id = 1;
  if (!SealMemfd(&memfd)) return false;
  board->memfd = memfd;
  board->header = h;
  board->devices = reinterpret_cast<mc_gpu_device*>(memfd.base + kDevicesAt);
  board->contexts = reinterpret_cast<mc_gpu_context*>(memfd.base + kContextsAt);
  board->streams = reinterpret_cast<mc_gpu_stream*>(memfd.base + kStreamsAt);
  board->names = reinterpret_cast<mc_gpu_name*>(memfd.base + kNamesAt);
  board->threads = reinterpret_cast<mc_gpu_thread*>(memfd.base + kThreadsAt);
  board->events = reinterpret_cast<mc_gpu_event*>(memfd.base + kEventsAt);
  Set(&h->magic, uint64_t{MC_GPU_BOARD_MAGIC});
  return true;
}

}  // namespace mycroft::board
