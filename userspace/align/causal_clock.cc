// SPDX-License-Identifier: Apache-2.0
#include "userspace/align/causal_clock.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"

namespace mycroft {
namespace {

constexpr int kSearchSteps = 60;  // a ternary search over +-200 ppm: far below 1 ppt
// Rounding of doubles: contradictions smaller than this are none.
constexpr double kSlackNs = 2;

template <typename F>
double MaximiseConcave(double from, double to, F value) {
  for (int i = 0; i < kSearchSteps; ++i) {
    double a = from + (to - from) / 3, b = to - (to - from) / 3;
    if (value(a) < value(b)) {
      from = a;
    } else {
      to = b;
    }
  }
  return (from + to) / 2;
}

}  // namespace

void CausalClock::RemoteAfterLocal(uint64_t remote_ns, uint64_t local_ns) {
  // When the remote clock shows remote_ns, the local one shows local_ns or more.
  Add(&upper_, 1, remote_ns, local_ns);
}

void CausalClock::RemoteBeforeLocal(uint64_t remote_ns, uint64_t local_ns) {
  Add(&lower_, -1, remote_ns, local_ns);
}

// `sign` 1 keeps the lower hull, -1 the upper one; points may come out of order.
void CausalClock::Insert(std::vector<Point>* hull, double sign, Point p) {
  auto at = std::lower_bound(hull->begin(), hull->end(), p,
                             [](const Point& a, const Point& b) { return a.x < b.x; });
  if (at != hull->end() && at->x == p.x) {
    if (sign * p.y >= sign * at->y) return;
    *at = p;
  } else {
    at = hull->insert(at, p);
  }
  auto outside = [&](const Point& a, const Point& b, const Point& c) {
    // b is needed when it lies on the outer side of the line a-c.
    double cross = (b.x - a.x) * (c.y - a.y) - (b.y - a.y) * (c.x - a.x);
    return sign * cross > 0;
  };
  size_t i = at - hull->begin();
  if (i > 0 && i + 1 < hull->size() && !outside((*hull)[i - 1], (*hull)[i], (*hull)[i + 1])) {
    hull->erase(hull->begin() + i);
    return;
  }
  while (i >= 2 && !outside((*hull)[i - 2], (*hull)[i - 1], (*hull)[i])) {
    hull->erase(hull->begin() + i - 1);
    --i;
  }
  while (i + 2 < hull->size() && !outside((*hull)[i], (*hull)[i + 1], (*hull)[i + 2])) {
    hull->erase(hull->begin() + i + 1);
  }
}

void CausalClock::Add(std::vector<Point>* hull, double sign, uint64_t remote_ns,
                      uint64_t local_ns) {
  ++bounds_;
  int64_t offset = static_cast<int64_t>(remote_ns - local_ns);
  if (!started_) {
    started_ = true;
    origin_ = local_ns;
    base_ = offset;
  }
  Point p{static_cast<double>(static_cast<int64_t>(local_ns - origin_)),
          static_cast<double>(offset - base_)};
  newest_ = std::max(newest_, p.x);
  Insert(hull, sign, p);
  double oldest = newest_ - static_cast<double>(window_ns_);
  for (auto* side : {&upper_, &lower_}) {
    std::erase_if(*side, [&](const Point& q) { return q.x < oldest; });
  }
  double slope = 0;
  if (!upper_.empty() && !lower_.empty() && !Feasible(&slope)) Restart(p, sign);
}

void CausalClock::Restart(Point point, double sign) {
  ++epochs_;
  upper_.clear();
  lower_.clear();
  (sign > 0 ? upper_ : lower_).push_back(point);
}

double CausalClock::Low(double b) const {
  double low = -HUGE_VAL;
  for (const Point& p : lower_) low = std::max(low, p.y - b * p.x);
  return low;
}

double CausalClock::High(double b) const {
  double high = HUGE_VAL;
  for (const Point& p : upper_) high = std::min(high, p.y - b * p.x);
  return high;
}

bool CausalClock::Feasible(double* slope) const {
  // The usual case first: the widest band without drift.
  if (High(0) >= Low(0)) {
    *slope = 0;
    return true;
  }
  *slope = MaximiseConcave(-kMaxDrift, kMaxDrift, [&](double b) { return High(b) - Low(b); });
  return High(*slope) - Low(*slope) >= -kSlackNs;
}

absl::StatusOr<CausalClock::Offset> CausalClock::At(uint64_t local_ns) const {
  if (upper_.empty() && lower_.empty()) {
    return absl::FailedPreconditionError("no pair of events relates the two clocks");
  }
  if (upper_.empty() || lower_.empty()) {
    return absl::FailedPreconditionError(
        "the clocks are bounded from one side only: no event of the " +
        std::string(upper_.empty() ? "remote clock is known to follow"
                                   : "remote clock is known to precede") +
        " one of the local clock");
  }
  double slope = 0;
  if (!Feasible(&slope)) return absl::InternalError("bounds contradict each other");
  double x = static_cast<double>(static_cast<int64_t>(local_ns - origin_));
  // The slopes for which the band is not empty form an interval around `slope`.
  auto edge = [&](double from, double to) {
    for (int i = 0; i < kSearchSteps; ++i) {
      double middle = (from + to) / 2;
      (High(middle) - Low(middle) >= -kSlackNs ? from : to) = middle;
    }
    return from;
  };
  double first = edge(slope, -kMaxDrift), last = edge(slope, kMaxDrift);
  double up = MaximiseConcave(first, last, [&](double b) { return High(b) + b * x; });
  double down = MaximiseConcave(first, last, [&](double b) { return -(Low(b) + b * x); });
  // The search stops short of the ends; they may be the extremes.
  double high = std::max({High(up) + up * x, High(first) + first * x, High(last) + last * x});
  double low = std::min({Low(down) + down * x, Low(first) + first * x, Low(last) + last * x});
  Offset result;
  result.offset_ns = base_ + static_cast<int64_t>(std::llround((high + low) / 2));
  result.error_ns = static_cast<uint64_t>(std::max(0.0, std::ceil((high - low) / 2 + kSlackNs)));
  return result;
}

absl::StatusOr<CausalClock::Converted> CausalClock::ToLocal(uint64_t remote_ns) const {
  // The offset at the instant itself: one step of iteration, drift is tiny.
  auto first = At(static_cast<uint64_t>(static_cast<int64_t>(remote_ns) - base_));
  if (!first.ok()) return first.status();
  uint64_t local = static_cast<uint64_t>(static_cast<int64_t>(remote_ns) - first->offset_ns);
  auto second = At(local);
  if (!second.ok()) return second.status();
  return Converted{static_cast<uint64_t>(static_cast<int64_t>(remote_ns) - second->offset_ns),
                   second->error_ns};
}

}  // namespace mycroft
