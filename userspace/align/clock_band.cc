// SPDX-License-Identifier: Apache-2.0
#include "userspace/align/clock_band.h"

#include <algorithm>
#include <cmath>

namespace mycroft {
namespace {

// Rounding of doubles: a contradiction smaller than this is none.
constexpr double kSlack = 0.5;
// Hulls grow with the logarithm of the points; only made-up points come near this.
constexpr size_t kMostPoints = 2048;

// b is needed when it lies below the line from a to c.
bool Needed(const ClockBand::Point& a, const ClockBand::Point& b, const ClockBand::Point& c) {
  return (b.x - a.x) * (c.y - a.y) - (b.y - a.y) * (c.x - a.x) > 0;
}

bool ByX(const ClockBand::Point& a, const ClockBand::Point& b) { return a.x < b.x; }

// Value at x of the line from a to b.
double Between(const ClockBand::Point& a, const ClockBand::Point& b, double x) {
  return a.y + (b.y - a.y) * ((x - a.x) / (b.x - a.x));
}

}  // namespace

ClockBand::ClockBand(double max_slope)
    : limit_(max_slope), steep_{max_slope, max_slope}, height_{HUGE_VAL, HUGE_VAL} {}

// Smallest y - slope x of the hull.
double ClockBand::Support(Side side, double slope, size_t* at) const {
  const Hull& hull = hull_[side];
  size_t low = 0, high = hull.size() - 1;
  while (low < high) {
    const size_t i = (low + high) / 2;
    // Edges get steeper to the right.
    if (hull[i + 1].y - hull[i].y < slope * (hull[i + 1].x - hull[i].x)) {
      low = i + 1;
    } else {
      high = i;
    }
  }
  if (at != nullptr) *at = low;
  return hull[low].y - slope * hull[low].x;
}

// The largest value at x over the slopes of the band. Over all slopes it is the hull
// itself, reached at the slope of its edge there; the function is concave in the slope.
double ClockBand::Reach(Side side, double x) const {
  const Hull& hull = hull_[side];
  if (hull.empty()) return HUGE_VAL;
  const double most = steep_[side], least = -steep_[Other(side)];
  double slope = most;
  if (x < hull.front().x) {
    slope = least;
  } else if (x < hull.back().x) {
    const auto right = std::upper_bound(hull.begin(), hull.end(), Point{x, 0}, ByX);
    const auto left = right - 1;
    slope = (right->y - left->y) / (right->x - left->x);
    if (least <= slope && slope <= most) return Between(*left, *right, x);
    slope = std::clamp(slope, least, most);
  }
  return Support(side, slope) + slope * x;
}

bool ClockBand::Fits(Side side, Point p) const {
  p.y *= Sign(side);
  const Side other = Other(side);
  if (hull_[other].empty()) return true;
  const double reach = p.x >= last_x_ ? height_[other] + steep_[other] * p.x : Reach(other, p.x);
  return p.y + reach >= -kSlack;
}

// A point to the right of all others makes the steepest line flatter, or lowers it.
void ClockBand::Tighten(Side side, Point p, size_t others) {
  if (p.y >= height_[side] + steep_[side] * p.x) return;
  const Side other = Other(side);
  const Hull& hull = hull_[other];
  const auto slope = [&](size_t i) { return (p.y + hull[i].y) / (p.x - hull[i].x); };
  while (others > 0 && hull[others - 1].x >= p.x) --others;
  if (others > 0) {
    // The slope falls and then rises along the hull; the place moves little.
    size_t& at = tangent_[side];
    at = std::min(at, others - 1);
    while (at + 1 < others && slope(at + 1) <= slope(at)) ++at;
    while (at > 0 && slope(at - 1) < slope(at)) --at;
    steep_[side] = std::max(std::min(steep_[side], slope(at)), -steep_[other]);
  }
  height_[side] = p.y - steep_[side] * p.x;
}

void ClockBand::Rebuild() {
  for (int side : {kUpper, kLower}) {
    steep_[side] = limit_;
    height_[side] = HUGE_VAL;
    tangent_[side] = 0;
  }
  size_t next[2] = {0, 0};
  while (next[0] < hull_[0].size() || next[1] < hull_[1].size()) {
    const bool upper = next[1] >= hull_[1].size() ||
                       (next[0] < hull_[0].size() && hull_[0][next[0]].x <= hull_[1][next[1]].x);
    const Side side = upper ? kUpper : kLower;
    Tighten(side, hull_[side][next[side]], next[Other(side)]);
    ++next[side];
  }
}

bool ClockBand::Add(Side side, Point p) {
  if (!Fits(side, p)) return false;
  Point mirrored{p.x, p.y * Sign(side)};
  Hull& recent = recent_[side];
  if (recent.size() < kRecent) {
    recent.push_back(mirrored);
  } else {
    recent[next_recent_[side]++ % kRecent] = mirrored;
  }
  Insert(side, mirrored);
  return true;
}

void ClockBand::Insert(Side side, Point p) {
  const bool late = !empty() && p.x < last_x_;
  if (!late) last_x_ = p.x;
  Hull& hull = hull_[side];
  if (!late) {
    Tighten(side, p, hull_[Other(side)].size());
    if (!hull.empty() && hull.back().x == p.x) {
      if (p.y >= hull.back().y) return;
      hull.pop_back();
    }
    while (hull.size() >= 2 && !Needed(hull[hull.size() - 2], hull.back(), p)) hull.pop_back();
    hull.push_back(p);
    if (hull.size() > kMostPoints) Thin(&hull);
    return;
  }
  auto at = std::lower_bound(hull.begin(), hull.end(), p, ByX);
  if (at != hull.end() && at->x == p.x) {
    if (p.y >= at->y) return;
  } else if (at != hull.begin() && at != hull.end() && p.y >= Between(at[-1], *at, p.x)) {
    return;  // says nothing new
  }
  const bool narrows = hull.empty() || p.y < Reach(side, p.x);
  if (at != hull.end() && at->x == p.x) {
    *at = p;
  } else {
    at = hull.insert(at, p);
  }
  const size_t i = at - hull.begin();
  size_t left = i, right = i + 1;  // [left, i) and [i + 1, right) are not needed any more
  while (left >= 2 && !Needed(hull[left - 2], hull[left - 1], hull[i])) --left;
  while (right + 1 < hull.size() && !Needed(hull[i], hull[right], hull[right + 1])) ++right;
  hull.erase(hull.begin() + i + 1, hull.begin() + right);
  hull.erase(hull.begin() + left, hull.begin() + i);
  if (hull.size() > kMostPoints) Thin(&hull);
  if (narrows) Rebuild();
}

// Every second point of the older half goes: the band becomes wider, never wrong.
void ClockBand::Thin(Hull* hull) {
  size_t kept = 0;
  for (size_t i = 0; i < hull->size(); ++i) {
    if (i % 2 == 0 || i > hull->size() / 2) (*hull)[kept++] = (*hull)[i];
  }
  hull->resize(kept);
  Rebuild();
}

void ClockBand::CutAfter(double to) {
  const auto after = [&](const Point& p) { return p.x > to; };
  for (Hull& hull : hull_) std::erase_if(hull, after);
  Rebuild();
  for (Side side : {kUpper, kLower}) {
    std::erase_if(recent_[side], after);
    next_recent_[side] = 0;
    for (const Point& p : recent_[side]) Insert(side, p);
  }
  last_x_ = std::min(last_x_, to);
}

double ClockBand::NewestAgainst(Side side, Point p) const {
  const Hull& hull = hull_[side];
  if (hull.empty()) return last_x_;
  const double y = p.y * Sign(Other(side));
  double newest = -HUGE_VAL;
  for (const Hull* points : {&hull, &recent_[side]}) {
    for (const Point& q : *points) {
      if (y + q.y + limit_ * std::abs(p.x - q.x) < -kSlack) newest = std::max(newest, q.x);
    }
  }
  if (newest > -HUGE_VAL) return newest;
  // The two ends of the line that p violates.
  size_t at = 0;
  Support(side, steep_[side], &at);
  double x = hull[at].x;
  const Hull& others = hull_[Other(side)];
  if (!others.empty()) {
    Support(Other(side), -steep_[side], &at);
    x = std::min(x, others[at].x);
  }
  return x;
}

}  // namespace mycroft
