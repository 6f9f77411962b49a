// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/board_map.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"

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

uint32_t LoadSeq(const std::byte* at) {
  return __atomic_load_n(reinterpret_cast<const uint32_t*>(at), __ATOMIC_ACQUIRE);
}

// The part [offset, offset + bytes) starts with its sequence word.
bool ReadPart(const std::byte* line, size_t offset, size_t bytes, void* out) {
  for (int i = 0; i < kTries; ++i) {
    uint32_t before = LoadSeq(line + offset);
    if (before % 2 == 1) continue;
    CopyWords(line + offset, static_cast<std::byte*>(out) + offset, bytes);
    if (LoadSeq(line + offset) == before) return true;
  }
  return false;
}

bool TableFits(const mc_board_table& table, size_t known_stride, uint32_t max_capacity,
               size_t board_bytes) {
  if (table.capacity == 0 || table.capacity > max_capacity) return false;
  if (table.stride < known_stride || table.stride > 4096 || table.stride % 64 != 0) return false;
  if (table.offset % 64 != 0 || table.offset > board_bytes) return false;
  return uint64_t{table.stride} * table.capacity <= board_bytes - table.offset;
}

absl::Status Errno(const std::string& what) {
  std::string text = what + ": " + std::strerror(errno);
  if (errno == EACCES || errno == EPERM) return absl::PermissionDeniedError(text);
  return absl::NotFoundError(text);
}

}  // namespace

absl::StatusOr<BoardMap> BoardMap::Open(const std::string& path) {
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return Errno("cannot open board " + path);
  struct Closer {
    int fd;
    ~Closer() { close(fd); }
  } closer{fd};

  struct stat st {};
  if (fstat(fd, &st) != 0) return Errno("cannot stat board " + path);
  auto bad = [&](const std::string& why) {
    return absl::InvalidArgumentError("not a usable board: " + path + ": " + why);
  };
  if (!S_ISREG(st.st_mode)) return bad("not a memory file");
  int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0) return bad("it cannot be sealed");
  if ((seals & F_SEAL_SHRINK) == 0 || (seals & F_SEAL_GROW) == 0) {
    return bad("its size is not sealed");
  }
  if (st.st_size < static_cast<off_t>(sizeof(mc_board_header)) || st.st_size > MC_BOARD_MAX_BYTES) {
    return bad("its size is " + std::to_string(st.st_size) + " bytes, expected " +
               std::to_string(sizeof(mc_board_header)) + " to " +
               std::to_string(MC_BOARD_MAX_BYTES));
  }
  void* base = mmap(nullptr, st.st_size, PROT_READ, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return Errno("cannot map board " + path);

  BoardMap map;
  map.path_ = path;
  map.base_ = static_cast<const std::byte*>(base);
  map.bytes_ = st.st_size;

  mc_board_header header{};
  CopyWords(map.base_, &header, sizeof(header));
  if (header.magic != MC_BOARD_MAGIC) return bad("wrong magic number");
  if (header.version != MC_BOARD_VERSION) {
    return absl::FailedPreconditionError(
        "board " + path + " has version " + std::to_string(header.version) +
        ", this program reads version " + std::to_string(MC_BOARD_VERSION) +
        ": use the plugin and the agent of one release");
  }
  if (header.total_bytes != map.bytes_) return bad("the size in its header is wrong");
  if (!TableFits(header.comms, sizeof(mc_board_comm), 65535, map.bytes_) ||
      !TableFits(header.threads, sizeof(mc_board_thread), 65535, map.bytes_) ||
      !TableFits(header.ops, sizeof(mc_board_op), 1u << 20, map.bytes_) ||
      !std::has_single_bit(header.ops.capacity) ||
      !TableFits(header.flows, sizeof(mc_board_flow), 1u << 20, map.bytes_)) {
    return bad("its table directory is out of bounds");
  }
  map.comms_ = header.comms;
  map.threads_ = header.threads;
  map.ops_ = header.ops;
  map.flows_ = header.flows;
  return map;
}

BoardMap::BoardMap(BoardMap&& other) noexcept { *this = std::move(other); }

BoardMap& BoardMap::operator=(BoardMap&& other) noexcept {
  if (this != &other) {
    if (base_ != nullptr) munmap(const_cast<std::byte*>(base_), bytes_);
    path_ = std::move(other.path_);
    base_ = std::exchange(other.base_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    comms_ = other.comms_;
    threads_ = other.threads_;
    ops_ = other.ops_;
    flows_ = other.flows_;
  }
  return *this;
}

BoardMap::~BoardMap() {
  if (base_ != nullptr) munmap(const_cast<std::byte*>(base_), bytes_);
}

const std::byte* BoardMap::Line(const mc_board_table& table, uint64_t index) const {
  if (index >= table.capacity) return nullptr;
  return base_ + table.offset + index * table.stride;
}

mc_board_header BoardMap::Header() const {
  mc_board_header header{};
  CopyWords(base_, &header, sizeof(header));
  header.comms = comms_;
  header.threads = threads_;
  header.ops = ops_;
  header.flows = flows_;
  return header;
}

bool BoardMap::ReadComm(uint32_t index, mc_board_comm* out) const {
  const std::byte* line = Line(comms_, index);
  return line != nullptr && ReadPart(line, 0, sizeof(*out), out);
}

bool BoardMap::ReadThread(uint32_t index, mc_board_thread* out) const {
  const std::byte* line = Line(threads_, index);
  return line != nullptr && ReadPart(line, 0, sizeof(*out), out);
}

bool BoardMap::ReadFlow(uint32_t index, mc_board_flow* out) const {
  const std::byte* line = Line(flows_, index);
  return line != nullptr && ReadPart(line, 0, sizeof(*out), out);
}

bool BoardMap::ReadOp(uint64_t id, mc_board_op* out) const {
  const std::byte* line = Line(ops_, id & (ops_.capacity - 1));
  if (line == nullptr) return false;
  constexpr size_t kProxy = offsetof(mc_board_op, proxy_seq);
  constexpr size_t kKernel = offsetof(mc_board_op, kernel_seq);
  for (int i = 0; i < kTries; ++i) {
    if (!ReadPart(line, 0, kProxy, out)) return false;
    if (!ReadPart(line, kProxy, kKernel - kProxy, out)) return false;
    if (!ReadPart(line, kKernel, sizeof(*out) - kKernel, out)) return false;
    // The slot may have been given to another operation between the parts.
    mc_board_op again{};
    if (!ReadPart(line, 0, kProxy, &again)) return false;
    if (again.id == out->id) return true;
  }
  return false;
}

uint32_t BoardMap::FlowSeq(uint32_t index) const {
  const std::byte* line = Line(flows_, index);
  return line == nullptr ? 0 : LoadSeq(line);
}

BoardMap::OpSeq BoardMap::ReadOpSeq(uint64_t id) const {
  const std::byte* line = Line(ops_, id & (ops_.capacity - 1));
  OpSeq seq;
  if (line == nullptr) return seq;
  seq.launch = LoadSeq(line);
  seq.proxy = LoadSeq(line + offsetof(mc_board_op, proxy_seq));
  seq.kernel = LoadSeq(line + offsetof(mc_board_op, kernel_seq));
  seq.id = __atomic_load_n(reinterpret_cast<const uint64_t*>(line + offsetof(mc_board_op, id)),
                           __ATOMIC_RELAXED);
  return seq;
}

bool BoardMap::RequestLevel(mc_level level) {
  int fd = open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return false;
  // The same file as the one mapped? The path is a link in /proc that may have moved on.
  void* page = mmap(nullptr, sizeof(mc_board_header), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  struct stat st {};
  bool same_size = fstat(fd, &st) == 0 && st.st_size == static_cast<off_t>(bytes_);
  int seals = fcntl(fd, F_GET_SEALS);
  close(fd);
  if (page == MAP_FAILED) return false;
  auto* header = static_cast<mc_board_header*>(page);
  bool ok = same_size && seals >= 0 && (seals & F_SEAL_SHRINK) != 0 &&
            __atomic_load_n(&header->magic, __ATOMIC_RELAXED) == MC_BOARD_MAGIC;
  if (ok) __atomic_store_n(&header->requested_level, uint32_t{level}, __ATOMIC_RELEASE);
  munmap(page, sizeof(mc_board_header));
  return ok;
}

}  // namespace mycroft
