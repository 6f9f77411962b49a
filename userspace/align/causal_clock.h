// SPDX-License-Identifier: Apache-2.0
//
// The offset between two clocks from causality alone: an effect cannot precede its
// cause. Every such pair bounds the offset from one side; over a window the bounds
// leave a band of lines (offset, drift), and the answer is the middle of the band
// at the asked time, with its half width as error bound.
//
//   offset      x  x      x   upper bounds (remote event after local event)
//     |   ------------------------ \.
//     |   ======================== | the band: any line between is possible
//     |   ------------------------ /
//     |     o    o   o  o     o   lower bounds (remote event before local event)
//     +--------------------------- local time
//
//   offset(t) = remote clock - local clock at the same instant
//
// What the error bound rests on: the pairs are true; the drift stays within
// max_drift; within one window the clocks stray from a straight line by no more
// than wander_ns; a step of a clock was seen. A step is seen when bounds contradict
// each other. Then a new epoch begins, nothing is smeared: times before the step are
// converted by the old epoch's band, and a time between the last bound that is surely
// older than the step and the first that is surely younger is refused. Until a bound
// contradicts it, the old band is all that is known, and a step smaller than the band
// is wide may never be seen.
//
// Adding is O(1) amortised for bounds in order of local time (only the two convex
// hulls and the two steepest lines between them are kept: O'Rourke, "An on-line
// algorithm for fitting straight lines between data ranges", CACM 24(9), 1981), and
// O(log hull) for late ones, O(hull) where they narrow the band. Converting is
// O(log hull); Map() gives an object that converts in a few nanoseconds. Memory is
// bounded. Not thread-safe.
#ifndef MYCROFT_USERSPACE_ALIGN_CAUSAL_CLOCK_H_
#define MYCROFT_USERSPACE_ALIGN_CAUSAL_CLOCK_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "userspace/align/clock_band.h"
#include "userspace/align/clock_map.h"

namespace mycroft {

struct ClockOptions {
  // A band rests on the bounds of the last one to two windows. Then it is frozen, to
  // convert older times.
  uint64_t window_ns = 600'000'000'000;
  double max_drift = 200e-6;  // more than any quartz
  uint64_t wander_ns = 0;     // added to every bound and every error
  size_t most_segments = 16;  // epochs and frozen parts; the oldest is forgotten
  std::string remote = "the remote clock", local = "the local clock";  // in reasons
};

class CausalClock {
 public:
  static constexpr double kMaxDrift = 200e-6;

  explicit CausalClock(const ClockOptions& options) : options_(options) {}
  explicit CausalClock(uint64_t window_ns = 600'000'000'000) { options_.window_ns = window_ns; }

  // The remote event (remote clock) happened at or after the local one (local clock).
  void RemoteAfterLocal(uint64_t remote_ns, uint64_t local_ns);
  // The remote event happened at or before the local one.
  void RemoteBeforeLocal(uint64_t remote_ns, uint64_t local_ns);
  // Both clocks were read at one instant, or within error_ns of it.
  void Sample(uint64_t remote_ns, uint64_t local_ns, uint64_t error_ns);
  // One of the clocks is known to have started anew (another boot): the next bound
  // begins an epoch.
  void Restart() { restart_ = true; }

  struct Offset {
    int64_t offset_ns = 0;  // remote - local
    uint64_t error_ns = 0;  // half width of the band: |true offset - offset| <= error
  };
  // At that local time. FailedPrecondition with the reason when a side has no bound,
  // OutOfRange where a step makes the time ambiguous or it is forgotten.
  absl::StatusOr<Offset> At(uint64_t local_ns) const;

  using Converted = ClockMap::Converted;
  // A time of the remote clock on the local clock; errors as above. Where a step back
  // makes a reading occur twice, the later one is meant.
  absl::StatusOr<Converted> ToLocal(uint64_t remote_ns) const;

  // The same as a table, a little wider where the band bends. Made again when bounds
  // have come since the last call.
  const ClockMap& Map() const;

  // How fast the remote clock runs against the local one, in this epoch.
  struct Drift {
    double ppm = 0, error_ppm = 0;  // the true drift is within ppm +- error_ppm
  };
  absl::StatusOr<Drift> drift() const;

  uint64_t epochs() const { return epochs_; }      // 1 + number of steps seen
  uint64_t bounds() const { return bounds_; }      // ever added
  uint64_t rejected() const { return rejected_; }  // late or single ones that fit nothing
  size_t kept() const;                             // points in memory

 private:
  // A stretch of local time with its band; x = local ns - origin, y = offset - base.
  struct Segment {
    uint64_t origin = 0;
    int64_t base = 0;
    ClockBand band;
    double from = 0, to = 0;  // valid for these x
    bool after_step = false;  // else the part before it is frozen, or it is the first
    uint64_t bounds = 0;
    double X(uint64_t local_ns) const {
      return static_cast<double>(static_cast<int64_t>(local_ns - origin));
    }
    uint64_t Local(double x) const {
      return origin + static_cast<uint64_t>(static_cast<int64_t>(x));
    }
  };
  void Add(ClockBand::Side side, uint64_t remote_ns, uint64_t local_ns, int64_t error_ns);
  ClockBand::Point PointOf(const Segment& segment, ClockBand::Side side, uint64_t local_ns,
                           int64_t offset_ns) const;
  bool AddTo(Segment* segment, ClockBand::Side side, uint64_t local_ns, int64_t offset_ns) const;
  void Begin(ClockBand::Side side, uint64_t local_ns, int64_t offset_ns);
  void CloseAtStep(ClockBand::Side side, uint64_t local_ns, int64_t offset_ns);
  void Age(ClockBand::Side side, uint64_t local_ns, int64_t offset_ns);
  Segment Fresh(ClockBand::Side side, uint64_t local_ns, int64_t offset_ns) const;
  void Forget();
  absl::Status Missing(const Segment& segment) const;
  const Segment* SegmentAt(uint64_t local_ns) const;

  ClockOptions options_;
  std::deque<Segment> segments_;  // oldest first; the last one grows
  // Takes over from the newest: the same bounds, but only those of the last window.
  std::optional<Segment> next_;
  // The last epoch as it was before the step, until both sides confirm the new one: a
  // single false bound must not cost the band.
  std::optional<Segment> undo_;
  bool restart_ = false;
  bool forgot_ = false;
  uint64_t epochs_ = 1;
  uint64_t bounds_ = 0;
  uint64_t rejected_ = 0;
  uint64_t late_ = 0;  // rejected in a row
  mutable std::optional<ClockMap> map_;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_ALIGN_CAUSAL_CLOCK_H_
