// SPDX-License-Identifier: Apache-2.0
//
// A recording: one SQLite file (WAL) that holds the snapshots of one or more
// hosts and the incidents found while it was made. What was recorded can be
// replayed: the reader gives back the very snapshots that were appended.
//
// Writer: one per file, not thread-safe. Commits at least once a second, so a
// killed agent loses at most the last second. Reader: any number, also while
// the file is being written.
#ifndef MYCROFT_USERSPACE_STORE_RECORDING_H_
#define MYCROFT_USERSPACE_STORE_RECORDING_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "userspace/attribute/incident.h"
#include "userspace/decode/snapshot.h"
#include "userspace/decode/snapshot_source.h"

namespace mycroft {

inline constexpr int kRecordingSchemaVersion = 1;

struct RecordingOptions {
  uint64_t max_age_ns = 24ull * 3600 * 1'000'000'000;  // older batches are dropped; 0 = keep
  uint64_t max_bytes = 1ull << 30;                     // oldest batches are dropped; 0 = keep
  uint64_t commit_interval_ns = 1'000'000'000;         // by Snapshot::t_ns
  bool append = false;  // to an existing recording; else a file that exists is an error
};

class RecordingWriter {
 public:
  // Errors: AlreadyExists, PermissionDenied, FailedPrecondition (another agent
  // writes it; not a recording; newer schema). The text says what to do.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<RecordingWriter>> Create(
      const std::string& path, const RecordingOptions& options = {});
  virtual ~RecordingWriter() = default;  // commits what is pending

  // ResourceExhausted when the disk is full: what was committed stays, the
  // writer may be used again once there is room; lost snapshots are counted.
  [[nodiscard]] virtual absl::Status Append(Snapshot snapshot) = 0;
  // Inserts or replaces by Incident::id.
  [[nodiscard]] virtual absl::Status PutIncident(const Incident& incident) = 0;
  // How well the clock of a host is known, in words; by host.
  [[nodiscard]] virtual absl::Status PutClock(const std::string& host, const std::string& text) = 0;
  [[nodiscard]] virtual absl::Status Flush() = 0;
  virtual uint64_t bytes_written() const = 0;   // compressed payload so far
  virtual uint64_t snapshots_lost() const = 0;  // could not be stored
};

struct RecordingInfo {
  int schema_version = 0;
  std::string created_by;  // "mycroft 0.1.0"
  std::vector<std::string> hosts;
  uint64_t first_ns = 0, last_ns = 0;  // of the first host's clock
  uint64_t first_wall_ns = 0, last_wall_ns = 0;
  uint64_t snapshots = 0;
  uint64_t snapshots_lost = 0;
  uint64_t payload_bytes = 0;
  std::vector<std::string> clocks;  // of merged hosts: how well each is known
  bool truncated = false;  // a damaged tail was left out; `problem` says where
  std::string problem;
};

class RecordingReader : public SnapshotSource {
 public:
  // Errors: NotFound, PermissionDenied, InvalidArgument (not a recording, or a
  // newer schema: says which), DataLoss (nothing readable in it).
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<RecordingReader>> Open(
      const std::string& path);
  // Snapshots in order of time from the first one on. A damaged batch is
  // skipped and shows in info().truncated.
  absl::StatusOr<std::optional<Snapshot>> Next() override = 0;
  virtual void Rewind() = 0;
  virtual const RecordingInfo& info() const = 0;
  // Incidents as the live agent saw them.
  [[nodiscard]] virtual absl::StatusOr<std::vector<Incident>> ReadIncidents() = 0;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_STORE_RECORDING_H_
