// SPDX-License-Identifier: Apache-2.0
//
// Timelines of a recording in five formats: one track group per rank (operations,
// channels, wait states, kernels), stalls as slices that carry the verdict.
#ifndef MYCROFT_USERSPACE_REPORT_EXPORT_H_
#define MYCROFT_USERSPACE_REPORT_EXPORT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "userspace/attribute/incident.h"
#include "userspace/decode/snapshot_source.h"

namespace mycroft {

enum class ExportFormat { kPerfetto, kChrome, kFolded, kSpeedscope, kHtml };

// "perfetto", "chrome", "folded", "speedscope", "html".
std::optional<ExportFormat> ParseExportFormat(const std::string& name);

struct ExportOptions {
  uint64_t since_ns = 0;  // recording's clock; slices are cut to the window
  uint64_t until_ns = UINT64_MAX;
  uint64_t max_bytes = 0;                // 0: no limit; else ends cleanly and says so
  std::vector<std::string> clocks;       // lines on the hosts' clocks, to be passed on
  std::function<void(double)> progress;  // 0..1; may be empty
  // Times of the first and last snapshot of the source, for the progress while it is
  // read; 0: not known.
  uint64_t first_ns = 0;
  uint64_t last_ns = 0;
};

// Reads the source to its end and writes to `out`. Memory grows with the number
// of operations in the window. Errors: of the source; DataLoss when `out` fails.
[[nodiscard]] absl::Status Export(SnapshotSource& source, const std::vector<Incident>& incidents,
                                  ExportFormat format, const ExportOptions& options,
                                  std::ostream& out);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_REPORT_EXPORT_H_
