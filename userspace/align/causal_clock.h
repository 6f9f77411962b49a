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
// Drift is limited to kMaxDrift (200 ppm: more than any quartz). When the bounds
// contradict each other, a clock has been set: a new epoch starts with the newest
// bound, the old ones are dropped, nothing is smeared. Adding is O(log n) amortised
// (only the convex hulls are kept), converting O(hull). Not thread-safe.
#ifndef MYCROFT_USERSPACE_ALIGN_CAUSAL_CLOCK_H_
#define MYCROFT_USERSPACE_ALIGN_CAUSAL_CLOCK_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace mycroft {

class CausalClock {
 public:
  static constexpr double kMaxDrift = 200e-6;

  // Bounds older than `window_ns` before the newest one are forgotten.
  explicit CausalClock(uint64_t window_ns = 600'000'000'000ull) : window_ns_(window_ns) {}

  // The remote event (remote clock) happened at or after the local one (local clock).
  void RemoteAfterLocal(uint64_t remote_ns, uint64_t local_ns);
  // The remote event happened at or before the local one.
  void RemoteBeforeLocal(uint64_t remote_ns, uint64_t local_ns);

  struct Offset {
    int64_t offset_ns = 0;    // remote - local
    uint64_t error_ns = 0;    // half width of the band: |true offset - offset| <= error
  };
  // At that local time. FailedPrecondition with the reason when a side has no bound.
  absl::StatusOr<Offset> At(uint64_t local_ns) const;

  struct Converted {
    uint64_t ns = 0;
    uint64_t error_ns = 0;
  };
  // A time of the remote clock on the local clock.
  absl::StatusOr<Converted> ToLocal(uint64_t remote_ns) const;

  uint64_t epochs() const { return epochs_; }  // 1 + number of steps seen
  uint64_t bounds() const { return bounds_; }  // ever added
  size_t kept() const { return upper_.size() + lower_.size(); }

 private:
  struct Point {
    double x;  // local ns since origin_
    double y;  // offset ns since base_
  };
  void Add(std::vector<Point>* hull, double sign, uint64_t remote_ns, uint64_t local_ns);
  static void Insert(std::vector<Point>* hull, double sign, Point point);
  // Range of intercepts at slope b: highest lower bound and lowest upper bound.
  double Low(double b) const;
  double High(double b) const;
  bool Feasible(double* slope) const;
  void Restart(Point point, double sign);

  uint64_t window_ns_;
  bool started_ = false;
  uint64_t origin_ = 0;
  int64_t base_ = 0;
  double newest_ = 0;
  std::vector<Point> upper_;  // lower hull of the upper bounds, by x
  std::vector<Point> lower_;  // upper hull of the lower bounds, by x
  uint64_t epochs_ = 1;
  uint64_t bounds_ = 0;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_ALIGN_CAUSAL_CLOCK_H_
