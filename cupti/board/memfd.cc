// SPDX-License-Identifier: Apache-2.0
#include "cupti/board/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace mycroft::board {
namespace {

int OpenMemfd(const char* name) {
  // Kernels from 6.3 on can require that a memfd is declared not executable;
  // older ones do not know the flag.
  int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  return fd;
}

}  // namespace

bool CreateMemfd(const char* name, uint64_t bytes, Memfd* out) {
  int fd = OpenMemfd(name);
  if (fd < 0) return false;
  struct stat st;
  void* base = MAP_FAILED;
  if (ftruncate(fd, static_cast<off_t>(bytes)) == 0 && fstat(fd, &st) == 0) {
    base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (base == MAP_FAILED) {
    close(fd);
    return false;
  }
  out->base = static_cast<uint8_t*>(base);
  out->bytes = bytes;
  out->inode = st.st_ino;
  out->fd = fd;
  return true;
}

bool SealMemfd(Memfd* memfd) {
  if (fcntl(memfd->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) return true;
  munmap(memfd->base, memfd->bytes);
  close(memfd->fd);
  *memfd = Memfd{};
  return false;
}

void AbandonMemfd(Memfd* memfd) {
  if (memfd->base != nullptr) munmap(memfd->base, memfd->bytes);
  struct stat st;
  if (memfd->fd >= 0 && fstat(memfd->fd, &st) == 0 && st.st_ino == memfd->inode &&
      st.st_size == static_cast<off_t>(memfd->bytes)) {
    close(memfd->fd);
  }
  *memfd = Memfd{};
}

void CopyText(char* to, size_t size, const char* from) {
  if (from == nullptr) return;
  memcpy(to, from, strnlen(from, size - 1));
}

}  // namespace mycroft::board
