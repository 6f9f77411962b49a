// SPDX-License-Identifier: Apache-2.0
//
// Where snapshots come from: live boards, a recording, a simulation. One small
// interface, satisfied in full by each, so that everything to the right of it
// cannot tell them apart.
#ifndef MYCROFT_USERSPACE_DECODE_SNAPSHOT_SOURCE_H_
#define MYCROFT_USERSPACE_DECODE_SNAPSHOT_SOURCE_H_

#include <optional>

#include "absl/status/statusor.h"
#include "userspace/decode/snapshot.h"

namespace mycroft {

class SnapshotSource {
 public:
  virtual ~SnapshotSource() = default;
  // The next snapshot, in order of time per host. Live: blocks until the next
  // tick. nullopt: the end (of the recording), or interrupted (live).
  // Not thread-safe.
  [[nodiscard]] virtual absl::StatusOr<std::optional<Snapshot>> Next() = 0;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_DECODE_SNAPSHOT_SOURCE_H_
