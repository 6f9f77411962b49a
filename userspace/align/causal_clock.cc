// SPDX-License-Identifier: Apache-2.0
#include "userspace/align/causal_clock.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "absl/status/status.h"

namespace mycroft {
namespace {

constexpr int64_t kReadingNs = 1;  // a reading is its clock's time, rounded down
constexpr double kRoundingNs = 1;  // of the arithmetic with doubles
// Bounds come late by as long as an operation lasts. What is older, or comes again and
// again, means that the local clock was set back.
constexpr double kLateNs = 60e9;
constexpr uint64_t kLateInARow = 64;

std::string SecondsText(uint64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f s", static_cast<double>(ns) / 1e9);
  return text;
}

// The root of x + value(x) = r for a value that changes by less than a thousandth of x.
template <typename F>
double Solve(double r, F value) {
  double x = r - value(r);
  for (int i = 0; i < 6; ++i) {
    const double next = r - value(x);
    const bool done = std::abs(next - x) < 1e-3;
    x = next;
    if (done) break;
  }
  return x;
}

}  // namespace

void CausalClock::RemoteAfterLocal(uint64_t remote_ns, uint64_t local_ns) {
  // When the remote clock shows remote_ns, the local one shows local_ns or more.
  Add(ClockBand::kUpper, remote_ns, local_ns, 0);
}

void CausalClock::RemoteBeforeLocal(uint64_t remote_ns, uint64_t local_ns) {
  Add(ClockBand::kLower, remote_ns, local_ns, 0);
}

void CausalClock::Sample(uint64_t remote_ns, uint64_t local_ns, uint64_t error_ns) {
  const auto error = static_cast<int64_t>(std::min<uint64_t>(error_ns, INT64_MAX / 4));
  Add(ClockBand::kUpper, remote_ns, local_ns, error);
  Add(ClockBand::kLower, remote_ns, local_ns, error);
}

size_t CausalClock::kept() const {
  size_t sum = 0;
  for (const Segment& segment : segments_) sum += segment.band.size();
  return sum;
}

ClockBand::Point CausalClock::PointOf(const Segment& segment, ClockBand::Side side,
                                      uint64_t local_ns, int64_t offset_ns) const {
  // Some 60 years: more is nonsense, and must not overflow anywhere.
  const double y =
      std::clamp(static_cast<double>(static_cast<int64_t>(static_cast<uint64_t>(offset_ns) -
                                                          static_cast<uint64_t>(segment.base))),
                 -2e18, 2e18);
  const double slack = static_cast<double>(options_.wander_ns) + kReadingNs;
  return {segment.X(local_ns), side == ClockBand::kUpper ? y + slack : y - slack};
}

bool CausalClock::AddTo(Segment* segment, ClockBand::Side side, uint64_t local_ns,
                        int64_t offset_ns) const {
  if (!segment->band.Add(side, PointOf(*segment, side, local_ns, offset_ns))) return false;
  ++segment->bounds;
  return true;
}

CausalClock::Segment CausalClock::Fresh(ClockBand::Side side, uint64_t local_ns,
                                        int64_t offset_ns) const {
  Segment fresh;
  fresh.origin = local_ns;
  fresh.base = offset_ns;
  fresh.band = ClockBand(options_.max_drift);
  (void)AddTo(&fresh, side, local_ns, offset_ns);  // the first one always fits
  return fresh;
}

void CausalClock::Begin(ClockBand::Side side, uint64_t local_ns, int64_t offset_ns) {
  const bool after_step = !segments_.empty();
  segments_.push_back(Fresh(side, local_ns, offset_ns));
  segments_.back().after_step = after_step;
  next_.reset();
  Forget();
}

void CausalClock::Forget() {
  while (segments_.size() > std::max<size_t>(1, options_.most_segments)) {
    segments_.pop_front();
    forgot_ = true;
  }
}

// The last epoch contradicts a bound of `side`. All of it that may be younger than the
// step is forgotten.
void CausalClock::CloseAtStep(ClockBand::Side side, uint64_t local_ns, int64_t offset_ns) {
  const ClockBand::Side other = side == ClockBand::kUpper ? ClockBand::kLower : ClockBand::kUpper;
  Segment& newest = segments_.back();
  undo_ = newest;
  const uint64_t last = newest.Local(
      std::floor(newest.band.NewestAgainst(other, PointOf(newest, side, local_ns, offset_ns))));
  for (auto segment = segments_.rbegin(); segment != segments_.rend(); ++segment) {
    const double to = segment->X(last);
    if (&*segment != &newest && segment->to <= to) break;
    segment->band.CutAfter(to);
    segment->to = to;
    if (segment->after_step) break;
  }
}

void CausalClock::Add(ClockBand::Side side, uint64_t remote_ns, uint64_t local_ns,
                      int64_t error_ns) {
  ++bounds_;
  map_.reset();
  const auto offset =
      static_cast<int64_t>(remote_ns - local_ns +
                           static_cast<uint64_t>(side == ClockBand::kUpper ? error_ns : -error_ns));
  if (segments_.empty() || restart_) {
    restart_ = false;
    if (!segments_.empty()) {
      segments_.back().to = segments_.back().band.last_x();
      undo_.reset();
      ++epochs_;
    }
    return Begin(side, local_ns, offset);
  }
  Segment* newest = &segments_.back();
  const double x = newest->X(local_ns);
  if (x < newest->from && segments_.size() > 1) {
    // Older than this epoch or this part of it. Where it fits it may narrow old times.
    for (auto segment = segments_.rbegin() + 1; segment != segments_.rend(); ++segment) {
      const double there = segment->X(local_ns);
      if (there < segment->from && segment + 1 != segments_.rend()) continue;
      if (there <= segment->to && AddTo(&*segment, side, local_ns, offset)) return;
      break;
    }
    if (newest->band.last_x() - x <= kLateNs && late_ < kLateInARow) {
      // Near a step, where it may belong to either side: of no use.
      ++rejected_;
      ++late_;
      return;
    }
  }
  late_ = 0;
  if (AddTo(newest, side, local_ns, offset)) {
    if (undo_ && newest->band.two_sided()) undo_.reset();
    return Age(side, local_ns, offset);
  }
  if (undo_ && undo_->band.Fits(side, PointOf(*undo_, side, local_ns, offset))) {
    // The "step" was a false bound: back to the epoch before.
    rejected_ += newest->bounds;
    --epochs_;
    segments_.pop_back();
    if (!segments_.empty()) segments_.pop_back();
    segments_.push_back(*std::move(undo_));
    undo_.reset();
    next_.reset();
    (void)AddTo(&segments_.back(), side, local_ns, offset);
    return;
  }
  CloseAtStep(side, local_ns, offset);
  ++epochs_;
  Begin(side, local_ns, offset);
}

// A bound was added to the newest segment. Every window another band begins, and when
// that has seen one window, it takes over; both overlap by half a window on each side of
// the time at which they do.
void CausalClock::Age(ClockBand::Side side, uint64_t local_ns, int64_t offset_ns) {
  Segment& newest = segments_.back();
  const auto window = static_cast<double>(options_.window_ns);
  if (!next_) {
    if (newest.band.last_x() >= window) next_ = Fresh(side, local_ns, offset_ns);
    return;
  }
  // A late bound from before its time, or one that does not fit: then it is left as it is.
  if (next_->X(local_ns) >= 0) (void)AddTo(&*next_, side, local_ns, offset_ns);
  if (next_->band.last_x() < window || !next_->band.two_sided()) return;
  const uint64_t turn = next_->Local(std::floor(next_->band.last_x() - window / 2));
  newest.to = newest.X(turn);
  next_->from = next_->X(turn);
  segments_.push_back(*std::move(next_));
  next_ = Fresh(side, local_ns, offset_ns);
  Forget();
}

absl::Status CausalClock::Missing(const Segment& segment) const {
  const bool upper = segment.band.has(ClockBand::kUpper);
  const std::string follows = upper ? options_.local : options_.remote;
  const std::string precedes = upper ? options_.remote : options_.local;
  return absl::FailedPreconditionError(
      "the clocks are bounded from one side only: no event of " + follows +
      " is known to follow one of " + precedes + "; the other way there are " +
      std::to_string(segment.bounds) + ", since " + SecondsText(segment.Local(segment.from)) +
      " of " + options_.local + (segment.after_step ? ", when it was set" : ""));
}

const CausalClock::Segment* CausalClock::SegmentAt(uint64_t local_ns) const {
  const Segment& newest = segments_.back();
  const double ahead = newest.X(local_ns);
  if (ahead >= newest.from && ahead <= newest.band.last_x()) return &newest;
  for (auto segment = segments_.rbegin() + 1; segment != segments_.rend(); ++segment) {
    const double x = segment->X(local_ns);
    if (x >= segment->from && x <= segment->to) return &*segment;
  }
  if (ahead >= newest.from) return &newest;
  const Segment& first = segments_.front();
  if (!forgot_ && first.X(local_ns) < first.from &&
      (segments_.size() == 1 || first.to >= first.from)) {
    return &first;
  }
  return nullptr;
}

absl::StatusOr<CausalClock::Offset> CausalClock::At(uint64_t local_ns) const {
  if (segments_.empty()) {
    return absl::FailedPreconditionError("no pair of events relates " + options_.remote + " to " +
                                         options_.local);
  }
  const Segment* segment = SegmentAt(local_ns);
  if (segment == nullptr) {
    return absl::OutOfRangeError(
        "at " + SecondsText(local_ns) + " of " + options_.local +
        (forgot_ && segments_.front().X(local_ns) < segments_.front().from
             ? ": too long ago, what related the clocks is forgotten"
             : ": one of the clocks was set near that time, it is not known when exactly"));
  }
  if (!segment->band.two_sided()) return Missing(*segment);
  const double x = segment->X(local_ns);
  const double high = segment->band.High(x), low = segment->band.Low(x);
  Offset result;
  result.offset_ns = static_cast<int64_t>(
      static_cast<uint64_t>(segment->base) +
      static_cast<uint64_t>(static_cast<int64_t>(std::llround((high + low) / 2))));
  result.error_ns = static_cast<uint64_t>(std::ceil(std::max(0.0, (high - low) / 2) + kRoundingNs));
  return result;
}

absl::StatusOr<CausalClock::Converted> CausalClock::ToLocal(uint64_t remote_ns) const {
  if (segments_.empty()) return At(0).status();
  const std::optional<Converted> converted = Map().ToLocal(remote_ns);
  if (converted) return *converted;
  if (!segments_.back().band.two_sided()) return Missing(segments_.back());
  return absl::OutOfRangeError("at " + SecondsText(remote_ns) + " of " + options_.remote +
                               ": one of the clocks was set near that time, or it is forgotten");
}

absl::StatusOr<CausalClock::Drift> CausalClock::drift() const {
  if (segments_.empty()) return At(0).status();
  const Segment& newest = segments_.back();
  if (!newest.band.two_sided()) return Missing(newest);
  const double high = newest.band.max_slope(), low = newest.band.min_slope();
  return Drift{(high + low) / 2 * 1e6, std::max(0.0, (high - low) / 2 * 1e6)};
}

const ClockMap& CausalClock::Map() const {
  if (map_) return *map_;
  std::vector<ClockMap::Piece> pieces;
  for (size_t i = 0; i < segments_.size(); ++i) {
    const Segment& segment = segments_[i];
    const bool last = i + 1 == segments_.size();
    const double from = segment.from;
    const double to = last ? std::max(segment.band.last_x(), from) : segment.to;
    if (!segment.band.two_sided() || to < from) continue;
    const ClockBand& band = segment.band;
    // Readings at which even the outermost line of the band is within [from, to].
    const double begin = std::floor(from + band.Low(from));
    const double end = std::max(begin + 1, std::ceil(to + band.High(to)));
    ClockMap::Piece piece;
    piece.origin = segment.origin + static_cast<uint64_t>(segment.base) +
                   static_cast<uint64_t>(static_cast<int64_t>(begin));
    piece.base = segment.base;
    piece.end = end - begin;
    piece.parts_per_ns = static_cast<double>(ClockMap::kParts) / piece.end;
    for (size_t k = 0; k <= ClockMap::kParts; ++k) {
      const double r =
          begin + piece.end * static_cast<double>(k) / static_cast<double>(ClockMap::kParts);
      const double latest = Solve(r, [&](double x) { return band.Low(x); });
      const double earliest = Solve(r, [&](double x) { return band.High(x); });
      piece.offset[k] = r - (latest + earliest) / 2;
      piece.error[k] = std::max(0.0, (latest - earliest) / 2);
    }
    // Local time per ns of the remote clock, along the steepest and the flattest line.
    const double slow = 1 / (1 + band.max_slope()), fast = 1 / (1 + band.min_slope());
    piece.slope_before = piece.slope_after = 1 - (slow + fast) / 2;
    piece.growth_before = piece.growth_after = std::max(0.0, (fast - slow) / 2);
    piece.before = i == 0 && !forgot_;
    piece.after = last;
    if (segment.after_step && i > 0) {
      piece.unsure_before = std::max(0.0, from - segment.X(segments_[i - 1].Local(std::max(
                                                     segments_[i - 1].to, segments_[i - 1].from))));
    }
    if (!last && segments_[i + 1].after_step) {
      piece.unsure_after =
          std::max(0.0, segment.X(segments_[i + 1].Local(segments_[i + 1].from)) - to);
    }
    pieces.push_back(std::move(piece));
  }
  if (!pieces.empty() && pieces.back().after) {
    // The usual case: the remote clock has only ever gone forwards.
    ClockMap::Piece& newest = pieces.back();
    newest.clear = std::all_of(pieces.begin(), pieces.end() - 1, [&](const ClockMap::Piece& old) {
      const double ahead = static_cast<double>(static_cast<int64_t>(newest.origin - old.origin));
      return ahead > 0 && old.end + old.unsure_after <= ahead + newest.end;
    });
  }
  map_.emplace(std::move(pieces));
  return *map_;
}

}  // namespace mycroft
