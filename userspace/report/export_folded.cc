// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "userspace/report/export_formats.h"
#include "userspace/report/export_limit.h"
#include "userspace/report/text.h"

namespace mycroft {
namespace {

void Write(const Timeline& timeline, const WriteProgress&, std::ostream& out) {
  for (const FlameSample& sample : timeline.flame) {
    const uint64_t weight = (sample.ns + 500) / 1000;
    if (weight == 0) continue;
    std::string line;
    for (const std::string& frame : sample.stack) {
      if (!line.empty()) line += ';';
      for (const char c : PrintableText(frame)) line += c == ';' ? ',' : c;
    }
    out << line << ' ' << weight << '\n';
  }
}

// Sums over time have no end to cut: the smallest go.
void CutSmall(Timeline& timeline, double part) {
  std::vector<FlameSample>& flame = timeline.flame;
  const FlameSample cut = {{"cut at max_bytes"}, 0};
  uint64_t rest = 0;
  if (!flame.empty() && flame.back().stack == cut.stack) {
    rest = flame.back().ns;
    flame.pop_back();
  }
  std::stable_sort(flame.begin(), flame.end(),
                   [](const FlameSample& a, const FlameSample& b) { return a.ns > b.ns; });
  const auto keep = static_cast<size_t>(static_cast<double>(flame.size()) * part);
  for (size_t i = keep; i < flame.size(); ++i) rest += flame[i].ns;
  flame.resize(keep);
  flame.push_back(cut);
  flame.back().ns = rest;
}

}  // namespace

absl::Status WriteFolded(const Timeline& timeline, const ExportOptions& options,
                         std::ostream& out) {
  return WriteWithin(timeline, options, Write, CutSmall, out);
}

}  // namespace mycroft
