// SPDX-License-Identifier: Apache-2.0
//
// What is common to the boards of other processes: a sealed memfd, mapped read-only.
// The writer is not trusted: type, seals and size are checked before it is mapped (a
// sealed file cannot shrink, so reading the mapping cannot fault); what is read is
// copied, and a copy that was torn by the writer is noticed.
//
// Owns the mapping; movable, not copyable. One thread at a time.
#ifndef MYCROFT_USERSPACE_SOURCE_SEALED_MAP_H_
#define MYCROFT_USERSPACE_SOURCE_SEALED_MAP_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bpf/abi/board.h"

namespace mycroft {

class SealedMap {
 public:
  // `path` names the memfd, usually /proc/PID/fd/N. Errors say which check failed:
  // NotFound/PermissionDenied (cannot open), InvalidArgument (type, seals, size).
  [[nodiscard]] static absl::StatusOr<SealedMap> Open(const std::string& path, size_t min_bytes,
                                                      size_t max_bytes);

  SealedMap() = default;
  SealedMap(SealedMap&& other) noexcept;
  SealedMap& operator=(SealedMap&& other) noexcept;
  SealedMap(const SealedMap&) = delete;
  SealedMap& operator=(const SealedMap&) = delete;
  ~SealedMap();

  const std::string& path() const { return path_; }
  size_t bytes() const { return bytes_; }

  // InvalidArgument: "not a usable board: PATH: WHY".
  absl::Status Bad(const std::string& why) const;

  // A table of the directory that lies within the file, with lines of at least
  // `known_stride` bytes (longer: a newer writer's) and at most `max_capacity` of them.
  bool TableFits(const mc_board_table& table, size_t known_stride, uint32_t max_capacity) const;

  // Null: the index is out of range. REQUIRES: TableFits.
  const std::byte* Line(const mc_board_table& table, uint64_t index) const;

  // The first `bytes` of the file, unprotected. REQUIRES: bytes <= min_bytes of Open.
  void CopyHead(void* out, size_t bytes) const;

  // Copies [offset, offset + bytes) of a line to the same place of `out`, where that part
  // starts with its sequence word. False: it was being written at every try.
  static bool ReadPart(const std::byte* line, size_t offset, size_t bytes, void* out);
  static uint32_t LoadSeq(const std::byte* at);

  // The first `bytes` of the same file mapped for writing, for the control words; null:
  // it cannot be opened, or is another file by now. Unmap with UnmapHead.
  void* MapHeadForWriting(size_t bytes, uint64_t magic) const;
  static void UnmapHead(void* head, size_t bytes);

 private:
  std::string path_;
  const std::byte* base_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_SEALED_MAP_H_
