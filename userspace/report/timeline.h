// SPDX-License-Identifier: Apache-2.0
//
// What every export format draws: the ranks of a recording with their tracks and
// slices, and the incidents, cut to a window. Values only; built once, then written
// in one of the formats. Times are nanoseconds of the recording's clock.
#ifndef MYCROFT_USERSPACE_REPORT_TIMELINE_H_
#define MYCROFT_USERSPACE_REPORT_TIMELINE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "userspace/attribute/incident.h"
#include "userspace/decode/snapshot_source.h"
#include "userspace/report/export.h"

namespace mycroft {

struct TimelineSlice {
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;   // >= begin_ns
  std::string name;      // "AllReduce", "recv: waits for the GPU", "stuck: gpu of rank 1"
  std::string category;  // "op", "wait", "kernel", "gap", "incident"
  std::vector<std::pair<std::string, std::string>> args;  // shown on demand; keys differ
  bool open = false;                                      // still running at the end of the window
};

enum class TrackKind : uint8_t {
  kOperations,  // of one communicator; slices of one stream do not overlap
  kWaits,       // how the time of each operation is shared: host gap, GPU, flush, network, peer
  kChannel,     // head-of-line state of one flow (communicator, channel, direction, peer)
  kKernels,     // NCCL kernels, by the GPU's clock where it is known, else as the host saw them
  kIncidents,   // verdicts
};

struct TimelineTrack {
  TrackKind kind = TrackKind::kOperations;
  std::string name;                   // "world: operations", "world: channel 0 send to 2"
  std::vector<TimelineSlice> slices;  // by begin_ns; overlapping only for kIncidents
};

struct TimelineRank {
  int32_t job_rank = -1;
  std::string host;
  uint32_t pid = 0;
  std::string name;  // "rank 3 (host, pid 1234)"
  std::vector<TimelineTrack> tracks;
};

// One leaf of the flame view: time of a rank in a phase, collective, channel and state.
struct FlameSample {
  // rank, phase ("compute" | "communication"), collective, channel, state
  std::vector<std::string> stack;
  uint64_t ns = 0;
};

struct Timeline {
  uint64_t begin_ns = 0, end_ns = 0;  // of what is in it
  std::vector<TimelineRank> ranks;    // by job rank, then host and pid
  TimelineTrack incidents;            // all verdicts; these may overlap, see SplitLanes
  std::vector<FlameSample> flame;     // merged: one entry per stack
  uint64_t operations = 0;            // in the window
  std::string note;                   // what was left out, or empty
  std::vector<std::string> clocks;    // how well each one is known, a line each
};

// Reads the source to its end. Memory grows with the operations in the window.
[[nodiscard]] absl::StatusOr<Timeline> BuildTimeline(SnapshotSource& source,
                                                     const std::vector<Incident>& incidents,
                                                     const ExportOptions& options);

// The track as several in which no slice overlaps another.
std::vector<TimelineTrack> SplitLanes(const TimelineTrack& track);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_REPORT_TIMELINE_H_
