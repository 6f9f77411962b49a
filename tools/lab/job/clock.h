// SPDX-License-Identifier: Apache-2.0
//
// Time in the lab job: nanoseconds of CLOCK_MONOTONIC, the clock of the truth file,
// and the made-up timer of a GPU. Thread-safe, no state.
#ifndef MYCROFT_TOOLS_LAB_JOB_CLOCK_H_
#define MYCROFT_TOOLS_LAB_JOB_CLOCK_H_

#include <time.h>

#include <cstdint>

namespace mycroft::lab {

inline constexpr uint64_t kNsPerUs = 1000;
inline constexpr uint64_t kNsPerMs = 1000 * 1000;
inline constexpr uint64_t kNsPerSec = 1000 * 1000 * 1000;
inline constexpr uint64_t kNever = UINT64_MAX;

inline uint64_t NowNs() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * kNsPerSec + static_cast<uint64_t>(ts.tv_nsec);
}

inline timespec ToTimespec(uint64_t ns) {
  return {static_cast<time_t>(ns / kNsPerSec), static_cast<long>(ns % kNsPerSec)};
}

// %globaltimer of one GPU: it has its own zero and its own rate.
struct GpuClock {
  int64_t offset_ns = 0;
  double drift_ppm = 0;
  uint64_t At(uint64_t mono_ns) const {
    return mono_ns + static_cast<uint64_t>(offset_ns) +
           static_cast<uint64_t>(
               static_cast<int64_t>(static_cast<double>(mono_ns) * drift_ppm * 1e-6));
  }
};

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_JOB_CLOCK_H_
