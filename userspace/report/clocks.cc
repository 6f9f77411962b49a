// SPDX-License-Identifier: Apache-2.0
#include "userspace/report/clocks.h"

#include <cmath>
#include <cstdio>
#include <map>
#include <utility>

#include "userspace/report/text.h"

namespace mycroft {

std::string ErrorBoundText(uint64_t error_ns) {
  // DurationText shows three digits.
  uint64_t unit = 1000;
  while (error_ns / unit >= 1000) unit *= 10;
  const uint64_t rest = error_ns % unit;
  return "\u00b1" + DurationText(rest == 0 && error_ns > 0 ? error_ns : error_ns - rest + unit);
}

std::string ClockText(const GpuClockState& clock) {
  std::string out = "GPU clock of ";
  out +=
      clock.rank >= 0 ? "rank " + std::to_string(clock.rank) : "GPU " + std::to_string(clock.gpu);
  out += " (" + PrintableText(clock.host) + ", pid " + std::to_string(clock.process.pid) + "): ";
  if (!clock.error_ns) return out + "not aligned: " + PrintableText(clock.problem);
  out += ErrorBoundText(*clock.error_ns);
  char drift[64];
  std::snprintf(drift, sizeof drift, ", %.1f \u00b1 %.1f ppm %s", std::abs(clock.drift_ppm),
                std::ceil(clock.drift_error_ppm * 10) / 10, clock.drift_ppm < 0 ? "slow" : "fast");
  out += drift;
  if (clock.steps > 0) {
    out += ", set " + std::to_string(clock.steps) + (clock.steps == 1 ? " time" : " times");
  }
  return out;
}

std::vector<std::string> ClockTexts(const std::vector<GpuClockState>& clocks) {
  std::vector<std::string> out;
  std::map<std::pair<std::string, std::string>, std::vector<const GpuClockState*>> problems;
  for (const GpuClockState& clock : clocks) {
    if (clock.error_ns) {
      out.push_back(ClockText(clock));
    } else {
      problems[{clock.host, clock.problem}].push_back(&clock);
    }
  }
  for (const auto& [key, same] : problems) {
    std::vector<int32_t> ranks;
    for (const GpuClockState* clock : same) {
      if (clock->rank >= 0) ranks.push_back(clock->rank);
    }
    if (same.size() == 1 || ranks.size() < same.size()) {  // without a rank: each its own line
      for (const GpuClockState* clock : same) out.push_back(ClockText(*clock));
      continue;
    }
    out.push_back("GPU clocks of ranks " + RankList(std::move(ranks)) + " (" +
                  PrintableText(key.first) + "): not aligned: " + PrintableText(key.second));
  }
  return out;
}

std::string ClockText(const HostClockState& clock) {
  std::string out = "clock of " + PrintableText(clock.host) + ": ";
  if (!clock.error_ns) return out + "not aligned: " + PrintableText(clock.problem);
  return out + ErrorBoundText(*clock.error_ns) + " against " + PrintableText(clock.reference) +
         "'s";
}

}  // namespace mycroft
