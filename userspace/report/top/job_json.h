// SPDX-License-Identifier: Apache-2.0
//
// The job as JSON: `top --once --json`. The verdicts in it are those of
// VerdictJson, unchanged; "job" is beside them. Pure functions, thread-safe.
#ifndef MYCROFT_USERSPACE_REPORT_TOP_JOB_JSON_H_
#define MYCROFT_USERSPACE_REPORT_TOP_JOB_JSON_H_

#include <string>

#include "userspace/report/top/state.h"

namespace mycroft {

// {"schema_version":1,"incidents":[...],"blind_spots":[...],"job":{...}}; times and
// ages are integers in nanoseconds, `clock` names their clock.
std::string TopJson(const TopData& data, int indent = 2);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_REPORT_TOP_JOB_JSON_H_
