// SPDX-License-Identifier: Apache-2.0
//
// A conversion between two clocks, ready to use: from readings of the remote clock to
// the local one, with the error bound, in a few nanoseconds. Immutable; a copy shares
// the table. Made by CausalClock::Map(). Thread-safe.
//
// Per stretch of time the middle of the band and its half width at evenly spaced
// readings; between them a straight line. The upper edge of the band is a convex
// function and the lower one a concave function of the reading, so a chord never
// makes the band narrower than it is.
#ifndef MYCROFT_USERSPACE_ALIGN_CLOCK_MAP_H_
#define MYCROFT_USERSPACE_ALIGN_CLOCK_MAP_H_

#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace mycroft {

class ClockMap {
 public:
  struct Converted {
    uint64_t ns = 0;
    uint64_t error_ns = 0;
  };

  static constexpr size_t kParts = 32;
  struct Piece {
    uint64_t origin = 0;  // remote reading at the first knot
    int64_t base = 0;     // local = remote - base - offset
    double end = 0;       // of the last knot, ns after the first
    double parts_per_ns = 0;
    bool before = false, after = false;  // goes on to the left, to the right
    // Readings so close outside belong to the time of a step: neither clock is known.
    double unsure_before = 0, unsure_after = 0;
    std::array<double, kParts + 1> offset{}, error{};
    bool clear = false;                          // readings after the end belong to no older piece
    double slope_before = 0, slope_after = 0;    // of the offset, outside
    double growth_before = 0, growth_after = 0;  // of the error, outside
  };

  ClockMap() = default;
  explicit ClockMap(std::vector<Piece> pieces)
      : pieces_(std::make_shared<const std::vector<Piece>>(std::move(pieces))) {}

  // Nothing when there is no band for that reading; CausalClock::ToLocal says why.
  std::optional<Converted> ToLocal(uint64_t remote_ns) const {
    if (pieces_ == nullptr) return std::nullopt;
    // The newest first: it is nearly always the one.
    for (auto piece = pieces_->rbegin(); piece != pieces_->rend(); ++piece) {
      const double d = static_cast<double>(static_cast<int64_t>(remote_ns - piece->origin));
      if (d >= 0 && d <= piece->end) return Inside(*piece, d, remote_ns);
      if (d > piece->end && piece->clear) return After(*piece, d, remote_ns);
    }
    return Outside(remote_ns);
  }

  bool empty() const { return pieces_ == nullptr || pieces_->empty(); }

 private:
  static Converted Make(const Piece& piece, uint64_t remote_ns, double offset, double error) {
    // Rounding costs half a nanosecond here, and less in the table.
    const auto rounded = static_cast<int64_t>(offset + (offset < 0 ? -0.5 : 0.5));
    return {remote_ns - static_cast<uint64_t>(piece.base) - static_cast<uint64_t>(rounded),
            static_cast<uint64_t>(error + 2)};
  }
  static Converted Inside(const Piece& piece, double d, uint64_t remote_ns) {
    const double at = d * piece.parts_per_ns;
    const size_t i = at < kParts - 1 ? static_cast<size_t>(at) : kParts - 1;
    const double part = at - static_cast<double>(i);
    return Make(piece, remote_ns, piece.offset[i] + (piece.offset[i + 1] - piece.offset[i]) * part,
                piece.error[i] + (piece.error[i + 1] - piece.error[i]) * part);
  }
  static Converted After(const Piece& piece, double d, uint64_t remote_ns) {
    const double far = d - piece.end;
    return Make(piece, remote_ns, piece.offset[kParts] + piece.slope_after * far,
                piece.error[kParts] + piece.growth_after * far);
  }
  std::optional<Converted> Outside(uint64_t remote_ns) const;

  std::shared_ptr<const std::vector<Piece>> pieces_;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_ALIGN_CLOCK_MAP_H_
