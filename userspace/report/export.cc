// SPDX-License-Identifier: Apache-2.0
#include "userspace/report/export.h"

#include "userspace/report/export_formats.h"
#include "userspace/report/timeline.h"

namespace mycroft {

std::optional<ExportFormat> ParseExportFormat(const std::string& name) {
  if (name == "perfetto") return ExportFormat::kPerfetto;
  if (name == "chrome") return ExportFormat::kChrome;
  if (name == "folded") return ExportFormat::kFolded;
  if (name == "speedscope") return ExportFormat::kSpeedscope;
  if (name == "html") return ExportFormat::kHtml;
  return std::nullopt;
}

absl::Status Export(SnapshotSource& source, const std::vector<Incident>& incidents,
                    ExportFormat format, const ExportOptions& options, std::ostream& out) {
  const absl::StatusOr<Timeline> timeline = BuildTimeline(source, incidents, options);
  if (!timeline.ok()) return timeline.status();
  switch (format) {
    case ExportFormat::kPerfetto:
      return WritePerfetto(*timeline, options, out);
    case ExportFormat::kChrome:
      return WriteChrome(*timeline, options, out);
    case ExportFormat::kFolded:
      return WriteFolded(*timeline, options, out);
    case ExportFormat::kSpeedscope:
      return WriteSpeedscope(*timeline, options, out);
    case ExportFormat::kHtml:
      return WriteHtml(*timeline, options, out);
  }
  return absl::InvalidArgumentError("unknown export format");
}

}  // namespace mycroft
