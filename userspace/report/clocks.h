// SPDX-License-Identifier: Apache-2.0
//
// How well each clock is known, in one line for a person:
//   GPU clock of rank 3 (node1, pid 1234): ±12 us, 37.1 ± 0.2 ppm fast
//   clock of node2: ±40 us against node1's
// or why there is no conversion. Pure functions, thread-safe.
#ifndef MYCROFT_USERSPACE_REPORT_CLOCKS_H_
#define MYCROFT_USERSPACE_REPORT_CLOCKS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "userspace/align/gpu_aligner.h"
#include "userspace/align/host_aligner.h"

namespace mycroft {

std::string ClockText(const GpuClockState& clock);
// A line for each; one for those of a host that are not aligned for the same reason.
std::vector<std::string> ClockTexts(const std::vector<GpuClockState>& clocks);
std::string ClockText(const HostClockState& clock);
// "±12 us": rounded up, so that it stays a bound.
std::string ErrorBoundText(uint64_t error_ns);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_REPORT_CLOCKS_H_
