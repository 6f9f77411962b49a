// SPDX-License-Identifier: Apache-2.0
//
// All straight lines that pass below some points and above others: what upper and
// lower bounds leave of offset and drift. Points of each side are kept as a convex
// hull. Coordinates are doubles near zero; the owner chooses the origin.
//
// Both sides are stored so that they look alike: lower bounds with y negated, so that
// a line y = a + b x must satisfy s (a + b x) <= y' with s = 1 or -1. Not thread-safe.
#ifndef MYCROFT_USERSPACE_ALIGN_CLOCK_BAND_H_
#define MYCROFT_USERSPACE_ALIGN_CLOCK_BAND_H_

#include <cstddef>
#include <vector>

namespace mycroft {

class ClockBand {
 public:
  enum Side { kUpper = 0, kLower = 1 };
  struct Point {
    double x = 0, y = 0;
  };

  explicit ClockBand(double max_slope = 200e-6);

  // False, and nothing has changed, when no line satisfies this bound and the others.
  [[nodiscard]] bool Add(Side side, Point p);
  // Whether Add() would accept it.
  bool Fits(Side side, Point p) const;

  bool empty() const { return hull_[kUpper].empty() && hull_[kLower].empty(); }
  bool has(Side side) const { return !hull_[side].empty(); }
  bool two_sided() const { return has(kUpper) && has(kLower); }

  // The highest and the lowest value at x of any line of the band, and the steepest
  // and flattest slope. REQUIRES: two_sided() for High and Low.
  double High(double x) const { return Reach(kUpper, x); }
  double Low(double x) const { return -Reach(kLower, x); }
  double max_slope() const { return steep_[kUpper]; }
  double min_slope() const { return -steep_[kLower]; }

  double last_x() const { return last_x_; }  // of all points, kept or not
  size_t size() const { return hull_[kUpper].size() + hull_[kLower].size(); }

  // Forgets the points after `to`: the band becomes wider, never wrong. Of each side
  // the last points before `to` are still known, also those that were not needed.
  void CutAfter(double to);
  // For p of the other side that does not fit: x of the newest point of `side` that
  // contradicts it alone; else of the oldest one that takes part in the contradiction.
  double NewestAgainst(Side side, Point p) const;

 private:
  using Hull = std::vector<Point>;
  static constexpr size_t kRecent = 32;
  static double Sign(Side side) { return side == kUpper ? 1 : -1; }
  static Side Other(Side side) { return side == kUpper ? kLower : kUpper; }
  double Support(Side side, double slope, size_t* at = nullptr) const;
  double Reach(Side side, double x) const;
  void Tighten(Side side, Point p, size_t others);
  void Rebuild();
  void Thin(Hull* hull);
  void Insert(Side side, Point p);

  double limit_;
  // Both in the mirrored coordinates of the side.
  Hull hull_[2];                // lower hull, by x
  double steep_[2];             // largest slope of a line of the band
  double height_[2];            // largest intercept at that slope
  size_t tangent_[2] = {0, 0};  // point of the other hull that limits the slope: a hint
  double last_x_ = 0;
  Hull recent_[2];  // rings of the last points, needed or not
  size_t next_recent_[2] = {0, 0};
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_ALIGN_CLOCK_BAND_H_
