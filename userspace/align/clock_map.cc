// SPDX-License-Identifier: Apache-2.0
#include "userspace/align/clock_map.h"

namespace mycroft {

std::optional<ClockMap::Converted> ClockMap::Outside(uint64_t remote_ns) const {
  const auto from = [&](const Piece& piece) {
    return static_cast<double>(static_cast<int64_t>(remote_ns - piece.origin));
  };
  for (const Piece& piece : *pieces_) {
    const double d = from(piece);
    if (d < 0 ? d >= -piece.unsure_before : d > piece.end && d <= piece.end + piece.unsure_after) {
      return std::nullopt;
    }
  }
  for (auto piece = pieces_->rbegin(); piece != pieces_->rend(); ++piece) {
    const double d = from(*piece);
    if (d > piece->end && piece->after) return After(*piece, d, remote_ns);
    if (d < 0 && piece->before) {
      return Make(*piece, remote_ns, piece->offset[0] + piece->slope_before * d,
                  piece->error[0] - piece->growth_before * d);
    }
  }
  return std::nullopt;
}

}  // namespace mycroft
