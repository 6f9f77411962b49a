// SPDX-License-Identifier: Apache-2.0
//
// A timeline in each export format. Errors: DataLoss when `out` fails,
// ResourceExhausted when options.max_bytes is too small for anything useful.
// Pure functions but for `out`, thread-safe.
#ifndef MYCROFT_USERSPACE_REPORT_EXPORT_FORMATS_H_
#define MYCROFT_USERSPACE_REPORT_EXPORT_FORMATS_H_

#include <ostream>

#include "absl/status/status.h"
#include "userspace/report/export.h"
#include "userspace/report/timeline.h"

namespace mycroft {

// Protobuf for ui.perfetto.dev and trace_processor.
absl::Status WritePerfetto(const Timeline& timeline, const ExportOptions& options,
                           std::ostream& out);
// JSON trace event format, for chrome://tracing and Perfetto.
absl::Status WriteChrome(const Timeline& timeline, const ExportOptions& options, std::ostream& out);
// "rank;phase;collective;channel;state weight", weight in microseconds, for flame graphs.
absl::Status WriteFolded(const Timeline& timeline, const ExportOptions& options, std::ostream& out);
// One evented profile per rank, for speedscope.app.
absl::Status WriteSpeedscope(const Timeline& timeline, const ExportOptions& options,
                             std::ostream& out);
// One page that needs nothing else.
absl::Status WriteHtml(const Timeline& timeline, const ExportOptions& options, std::ostream& out);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_REPORT_EXPORT_FORMATS_H_
