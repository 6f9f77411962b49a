// SPDX-License-Identifier: Apache-2.0
//
// Keeps an export below a size: writes it once into nothing to see how large it
// is, and cuts the timeline until it fits. Formats that have better ideas of what
// to leave out do not use it.
#ifndef MYCROFT_USERSPACE_REPORT_EXPORT_LIMIT_H_
#define MYCROFT_USERSPACE_REPORT_EXPORT_LIMIT_H_

#include <functional>
#include <ostream>

#include "absl/status/status.h"
#include "userspace/report/export.h"
#include "userspace/report/timeline.h"

namespace mycroft {

using WriteProgress = std::function<void(double)>;  // 0..1; may be empty
using TimelineWriter =
    std::function<void(const Timeline& timeline, const WriteProgress& progress, std::ostream& out)>;
// Leaves `part` (0..1) of what would be written.
using TimelineCutter = std::function<void(Timeline& timeline, double part)>;

// Cuts off what comes late.
void CutTime(Timeline& timeline, double part);

// Timeline::note of what is written says that something was cut.
absl::Status WriteWithin(const Timeline& timeline, const ExportOptions& options,
                         const TimelineWriter& writer, const TimelineCutter& cutter,
                         std::ostream& out);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_REPORT_EXPORT_LIMIT_H_
