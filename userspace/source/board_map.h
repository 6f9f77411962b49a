// SPDX-License-Identifier: Apache-2.0
//
// A progress board of another process, mapped read-only (sealed_map.h). The table
// directory is checked once, on a copy. Lines are handed out as copies only.
//
// Owns the mapping; movable, not copyable. One thread at a time.
#ifndef MYCROFT_USERSPACE_SOURCE_BOARD_MAP_H_
#define MYCROFT_USERSPACE_SOURCE_BOARD_MAP_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "bpf/abi/board.h"
#include "userspace/source/sealed_map.h"

namespace mycroft {

class BoardMap {
 public:
  // `path` names the memfd, usually /proc/PID/fd/N. Errors say which check failed:
  // NotFound/PermissionDenied (cannot open), InvalidArgument (not a board: type,
  // seals, size, magic, tables), FailedPrecondition (another version).
  [[nodiscard]] static absl::StatusOr<BoardMap> Open(const std::string& path);

  BoardMap(BoardMap&&) = default;
  BoardMap& operator=(BoardMap&&) = default;

  // A copy of the header as it is now. The tables in it are those checked at Open.
  mc_board_header Header() const;

  // Copies one line (or the part of it behind one sequence word). False: the
  // index is out of range, or the line was being written at every try.
  [[nodiscard]] bool ReadComm(uint32_t index, mc_board_comm* out) const;
  [[nodiscard]] bool ReadThread(uint32_t index, mc_board_thread* out) const;
  [[nodiscard]] bool ReadFlow(uint32_t index, mc_board_flow* out) const;
  // All three parts of the operation in this slot; the id in it may be another
  // than the one asked for: compare.
  [[nodiscard]] bool ReadOp(uint64_t id, mc_board_op* out) const;

  // The sequence words only: tells whether a line changed without copying it.
  uint32_t FlowSeq(uint32_t index) const;
  // The three words of an operation line, and its id, unprotected.
  struct OpSeq {
    uint32_t launch = 0, proxy = 0, kernel = 0;
    uint64_t id = 0;
    friend bool operator==(const OpSeq&, const OpSeq&) = default;
  };
  OpSeq ReadOpSeq(uint64_t id) const;

  uint32_t comm_capacity() const { return comms_.capacity; }
  uint32_t thread_capacity() const { return threads_.capacity; }
  uint32_t op_capacity() const { return ops_.capacity; }
  uint32_t flow_capacity() const { return flows_.capacity; }

  // Asks the plugin for a level. False: the board could not be opened for writing.
  [[nodiscard]] bool RequestLevel(mc_level level);

 private:
  BoardMap() = default;

  SealedMap map_;
  mc_board_table comms_{}, threads_{}, ops_{}, flows_{};
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_SOURCE_BOARD_MAP_H_
