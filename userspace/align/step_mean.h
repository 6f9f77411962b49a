// SPDX-License-Identifier: Apache-2.0
#ifndef MYCROFT_USERSPACE_ALIGN_STEP_MEAN_H_
#define MYCROFT_USERSPACE_ALIGN_STEP_MEAN_H_

#include <cstdint>

namespace mycroft {

// A sum modulo 2^64 of `steps` times near `reference`, as their mean. REQUIRES: steps > 0.
inline uint64_t MeanOf(uint64_t sum, uint32_t steps, uint64_t reference) {
  const uint64_t expected = reference * steps;
  const auto difference = static_cast<int64_t>(sum - expected);
  return reference + static_cast<uint64_t>(difference / static_cast<int64_t>(steps));
}

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_ALIGN_STEP_MEAN_H_
