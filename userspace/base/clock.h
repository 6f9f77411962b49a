// SPDX-License-Identifier: Apache-2.0
#ifndef MYCROFT_USERSPACE_BASE_CLOCK_H_
#define MYCROFT_USERSPACE_BASE_CLOCK_H_

#include <time.h>

#include <cstdint>

namespace mycroft {

// Now, in nanoseconds of one of the kernel's clocks. Thread-safe, cannot fail.
inline uint64_t ReadClockNs(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}
inline uint64_t MonotonicNs() { return ReadClockNs(CLOCK_MONOTONIC); }

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_BASE_CLOCK_H_
