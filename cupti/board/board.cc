// SPDX-License-Identifier: Apache-2.0
#include "cupti/board/board.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cupti/board/line.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace mycroft::board {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t Align64(uint64_t n) { return (n + 63) & ~uint64_t{63}; }

constexpr uint64_t kCommsAt = kPage;
constexpr uint64_t kThreadsAt = Align64(kCommsAt + MC_BOARD_MAX_COMMS * sizeof(mc_board_comm));
constexpr uint64_t kOpsAt = Align64(kThreadsAt + MC_BOARD_MAX_THREADS * sizeof(mc_board_thread));
constexpr uint64_t kFlowsAt = Align64(kOpsAt + MC_BOARD_MAX_OPS * sizeof(mc_board_op));
constexpr uint64_t kEnd = kFlowsAt + MC_BOARD_MAX_FLOWS * sizeof(mc_board_flow);
constexpr uint64_t kBytes = (kEnd + kPage - 1) & ~(kPage - 1);
static_assert(sizeof(mc_board_header) <= kPage);
static_assert(kBytes <= MC_BOARD_MAX_BYTES);
static_assert((MC_BOARD_MAX_OPS & (MC_BOARD_MAX_OPS - 1)) == 0);

int OpenMemfd() {
  // Kernels from 6.3 on can require that a memfd is declared not executable;
  // older ones do not know the flag.
  int fd = memfd_create(MC_BOARD_MEMFD_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) {
    fd = memfd_create(MC_BOARD_MEMFD_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  }
  return fd;
}

void CopyName(char* to, size_t size, const char* from) {
  size_t n = strnlen(from, size - 1);
  memcpy(to, from, n);
}

}  // namespace

bool Create(const BoardFacts& facts, Board* board) {
  int fd = OpenMemfd();
  if (fd < 0) return false;
  struct stat st;
  void* base = MAP_FAILED;
  if (ftruncate(fd, static_cast<off_t>(kBytes)) == 0 && fstat(fd, &st) == 0) {
    base = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (base == MAP_FAILED) {
    close(fd);
    return false;
  }
  auto* at = static_cast<uint8_t*>(base);
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
  CopyName(h->process_name, sizeof(h->process_name), program_invocation_short_name);
  CopyName(h->plugin_version, sizeof(h->plugin_version), MYCROFT_VERSION);
  h->next_op_id = 1;
  h->last_callback_ns = facts.created_ns;
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    munmap(base, kBytes);
    close(fd);
    return false;
  }
  board->header = h;
  board->comms = reinterpret_cast<mc_board_comm*>(at + kCommsAt);
  board->threads = reinterpret_cast<mc_board_thread*>(at + kThreadsAt);
  board->ops = reinterpret_cast<mc_board_op*>(at + kOpsAt);
  board->flows = reinterpret_cast<mc_board_flow*>(at + kFlowsAt);
  board->fd = fd;
  board->inode = st.st_ino;
  board->bytes = kBytes;
  Set(&h->magic, uint64_t{MC_BOARD_MAGIC});
  return true;
}

void Abandon(Board* board) {
  if (board->header != nullptr) munmap(board->header, board->bytes);
  // The host may have closed our descriptor and got the number again for a file of its own.
  struct stat st;
  if (board->fd >= 0 && fstat(board->fd, &st) == 0 && st.st_ino == board->inode &&
      st.st_size == static_cast<off_t>(board->bytes)) {
    close(board->fd);
  }
  *board = Board{};
}

}  // namespace mycroft::board
