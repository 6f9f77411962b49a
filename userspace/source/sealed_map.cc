// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/sealed_map.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

namespace mycroft {
namespace {

constexpr int kTries = 16;

// Copies whole 8-byte words with atomic loads: the writer may write at any time.
// Each is an acquire, so that the sequence word is loaded again after all of them (a
// fence would do, but the thread sanitizer does not know fences).
void CopyWords(const std::byte* from, void* to, size_t bytes) {
  const auto* words = reinterpret_cast<const uint64_t*>(from);
  auto* out = static_cast<std::byte*>(to);
  for (size_t i = 0; i < bytes / 8; ++i) {
    uint64_t word = __atomic_load_n(&words[i], __ATOMIC_ACQUIRE);
    std::memcpy(out + i * 8, &word, 8);
  }
}

absl::Status Errno(const std::string& what) {
  std::string text = what + ": " + std::strerror(errno);
  if (errno == EACCES || errno == EPERM) return absl::PermissionDeniedError(text);
  return absl::NotFoundError(text);
}

}  // namespace

absl::StatusOr<SealedMap> SealedMap::Open(const std::string& path, size_t min_bytes,
                                          size_t max_bytes) {
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return Errno("cannot open board " + path);
  struct Closer {
    int fd;
    ~Closer() { close(fd); }
  } closer{fd};

  SealedMap map;
  map.path_ = path;
  struct stat st {};
  if (fstat(fd, &st) != 0) return Errno("cannot stat board " + path);
  if (!S_ISREG(st.st_mode)) return map.Bad("not a memory file");
  int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0) return map.Bad("it cannot be sealed");
  if ((seals & F_SEAL_SHRINK) == 0 || (seals & F_SEAL_GROW) == 0) {
    return map.Bad("its size is not sealed");
  }
  if (st.st_size < static_cast<off_t>(min_bytes) || st.st_size > static_cast<off_t>(max_bytes)) {
    return map.Bad("its size is " + std::to_string(st.st_size) + " bytes, expected " +
                   std::to_string(min_bytes) + " to " + std::to_string(max_bytes));
  }
  void* base = mmap(nullptr, st.st_size, PROT_READ, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return Errno("cannot map board " + path);
  map.base_ = static_cast<const std::byte*>(base);
  map.bytes_ = st.st_size;
  return map;
}

SealedMap::SealedMap(SealedMap&& other) noexcept { *this = std::move(other); }

SealedMap& SealedMap::operator=(SealedMap&& other) noexcept {
  if (this != &other) {
    if (base_ != nullptr) munmap(const_cast<std::byte*>(base_), bytes_);
    path_ = std::move(other.path_);
    base_ = std::exchange(other.base_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

SealedMap::~SealedMap() {
  if (base_ != nullptr) munmap(const_cast<std::byte*>(base_), bytes_);
}

absl::Status SealedMap::Bad(const std::string& why) const {
  return absl::InvalidArgumentError("not a usable board: " + path_ + ": " + why);
}

bool SealedMap::TableFits(const mc_board_table& table, size_t known_stride,
                          uint32_t max_capacity) const {
  if (table.capacity == 0 || table.capacity > max_capacity) return false;
  if (table.stride < known_stride || table.stride > 4096 || table.stride % 64 != 0) return false;
  if (table.offset % 64 != 0 || table.offset > bytes_) return false;
  return uint64_t{table.stride} * table.capacity <= bytes_ - table.offset;
}

const std::byte* SealedMap::Line(const mc_board_table& table, uint64_t index) const {
  if (index >= table.capacity) return nullptr;
  return base_ + table.offset + index * table.stride;
}

void SealedMap::CopyHead(void* out, size_t bytes) const { CopyWords(base_, out, bytes); }

uint32_t SealedMap::LoadSeq(const std::byte* at) {
  return __atomic_load_n(reinterpret_cast<const uint32_t*>(at), __ATOMIC_ACQUIRE);
}

bool SealedMap::ReadPart(const std::byte* line, size_t offset, size_t bytes, void* out) {
  for (int i = 0; i < kTries; ++i) {
    uint32_t before = LoadSeq(line + offset);
    if (before % 2 == 1) continue;
    CopyWords(line + offset, static_cast<std::byte*>(out) + offset, bytes);
    if (LoadSeq(line + offset) == before) return true;
  }
  return false;
}

void* SealedMap::MapHeadForWriting(size_t bytes, uint64_t magic) const {
  int fd = open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return nullptr;
  // The same file as the one mapped? The path is a link in /proc that may have moved on.
  struct stat st {};
  const bool same_size = fstat(fd, &st) == 0 && st.st_size == static_cast<off_t>(bytes_);
  const int seals = fcntl(fd, F_GET_SEALS);
  void* page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (page == MAP_FAILED) return nullptr;
  if (same_size && seals >= 0 && (seals & F_SEAL_SHRINK) != 0 &&
      __atomic_load_n(static_cast<const uint64_t*>(page), __ATOMIC_RELAXED) == magic) {
    return page;
  }
  munmap(page, bytes);
  return nullptr;
}

void SealedMap::UnmapHead(void* head, size_t bytes) { munmap(head, bytes); }

}  // namespace mycroft
