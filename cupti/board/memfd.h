// SPDX-License-Identifier: Apache-2.0
//
// What both boards are made of: a memfd, sized, mapped and sealed against any change
// of size. The descriptor stays open for the life of the process, since it is the only
// way to the board.
//
// Thread safety: none needed; a board is made once, in init.
#ifndef MYCROFT_CUPTI_BOARD_MEMFD_H_
#define MYCROFT_CUPTI_BOARD_MEMFD_H_

#include <cstddef>
#include <cstdint>

namespace mycroft::board {

constexpr uint64_t kPage = 4096;
constexpr uint64_t Align64(uint64_t n) { return (n + 63) & ~uint64_t{63}; }
constexpr uint64_t AlignPage(uint64_t n) { return (n + kPage - 1) & ~(kPage - 1); }

struct Memfd {
  uint8_t* base = nullptr;  // `bytes` of zeros, writable, shared
  uint64_t bytes = 0;
  uint64_t inode = 0;  // to know it again
  int fd = -1;
};

// False when the kernel refuses; then nothing is left behind.
[[nodiscard]] bool CreateMemfd(const char* name, uint64_t bytes, Memfd* out);
// Seals the size. False: as above, and it is closed.
[[nodiscard]] bool SealMemfd(Memfd* memfd);

// For a child after fork: unmaps the parent's board and closes the inherited descriptor
// if it still is the board (the host may have closed it and got the number again for a
// file of its own). Async-signal-safe.
void AbandonMemfd(Memfd* memfd);

// At most size - 1 characters; the rest of `to` stays as it is.
void CopyText(char* to, size_t size, const char* from);

}  // namespace mycroft::board

#endif  // MYCROFT_CUPTI_BOARD_MEMFD_H_
