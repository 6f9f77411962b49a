// SPDX-License-Identifier: Apache-2.0
//
// Snapshots to bytes and back, without loss: decode(encode(x)) == x.
//
// A batch holds a few snapshots (about one second). Every field is predicted from
// what both sides already know (the previous sample of the same flow, the last
// operation of the same kind, ...) and only the difference is coded, see
// range_coder.h. What both sides know, the state, grows from batch to batch; a
// keyframe batch starts it anew and needs nothing before it.
//
//   batch k   keyframe   state empty -> S1
//   batch k+1            state S1 -> S2       needs batch k
//   batch k+2            state S2 -> S3       needs k and k+1
//   batch k+3 keyframe   state empty -> ...
//
// Layout of a payload (all that docs/format.md says of it):
//   byte 0    version, kCodecVersion
//   byte 1    1: keyframe
//   byte 2-3  position after the keyframe, little-endian (0 for the keyframe)
//   then      range-coded snapshots, each preceded by a bit "one more follows"
//
// Not thread-safe; one object per stream.
#ifndef MYCROFT_USERSPACE_STORE_SNAPSHOT_CODEC_H_
#define MYCROFT_USERSPACE_STORE_SNAPSHOT_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "userspace/decode/snapshot.h"

namespace mycroft {

inline constexpr uint8_t kCodecVersion = 4;
// Version 3 is the same without the health and the work of GPUs, version 2 without any hardware and
// without the turns of threads on a CPU, too; their
// batches are still read.
inline constexpr uint8_t kOldestCodecVersion = 2;

// Rough number of bytes that a snapshot takes in memory.
uint64_t MemoryBytes(const Snapshot& snapshot);

// Whether Encode() takes it: texts of at most 64 KiB, values of enums that exist,
// at most 256 MiB in memory, hardware within the bounds of hardware_fields.h.
// InvalidArgument says what is wrong.
absl::Status CheckStorable(const Snapshot& snapshot);

class SnapshotEncoder {
 public:
  SnapshotEncoder();
  ~SnapshotEncoder();

  // The batch as a payload. Starts with a keyframe and makes one whenever asked
  // to, or when 65,535 batches depend on one. InvalidArgument when a snapshot is
  // not storable: nothing is encoded, and the next payload is a keyframe.
  [[nodiscard]] absl::StatusOr<std::string> Encode(const std::vector<Snapshot>& batch,
                                                   bool keyframe);
  // Whether the last payload was a keyframe.
  bool last_was_keyframe() const { return last_was_keyframe_; }

 private:
  struct State;
  std::unique_ptr<State> state_;
  uint32_t position_ = 0;
  bool need_keyframe_ = true;
  bool last_was_keyframe_ = false;
};

class SnapshotDecoder {
 public:
  SnapshotDecoder();
  ~SnapshotDecoder();

  // Payloads must come in order. DataLoss when the bytes are not a batch, or not
  // the one that follows; after that, only a keyframe is accepted. Memory is
  // bounded by a multiple of the payload's size, whatever the bytes say.
  [[nodiscard]] absl::StatusOr<std::vector<Snapshot>> Decode(const void* data, size_t size);
  // Forgets the state: only a keyframe is accepted next.
  void Reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
  uint32_t next_position_ = 0;
  bool ready_ = false;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_STORE_SNAPSHOT_CODEC_H_
