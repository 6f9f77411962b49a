// SPDX-License-Identifier: Apache-2.0
//
// Durations and sizes as people type and read them. Pure functions, thread-safe.
#ifndef MYCROFT_USERSPACE_BASE_UNITS_H_
#define MYCROFT_USERSPACE_BASE_UNITS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace mycroft {

// "100ms", "1.5s", "2m", "1h", "7d", "500us", "20ns", "1h30m" in nanoseconds. A number needs a
// unit; only 0 may stand alone. InvalidArgument otherwise, also when it does not fit.
[[nodiscard]] absl::StatusOr<uint64_t> ParseDuration(const std::string& text);

// "64KiB", "10MB", "1.5GiB", "4096" (bytes). K, M, G, T alone are powers of 1024.
[[nodiscard]] absl::StatusOr<uint64_t> ParseBytes(const std::string& text);

// At most six characters, for columns: "850us", "12ms", "3.2s", "42.0s", "4m05s", "3h12m", "9d03h".
std::string ShortDuration(uint64_t ns);

// At most seven characters: "0B/s", "12kB/s", "1.2GB/s". Powers of 1000, as NCCL reports.
std::string ShortRate(double bytes_per_s);

// What ParseDuration and ParseBytes read back to the very same number.
std::string ExactDuration(uint64_t ns);
std::string ExactBytes(uint64_t bytes);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_BASE_UNITS_H_
