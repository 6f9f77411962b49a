// SPDX-License-Identifier: Apache-2.0
//
// An incident as the JSON text that a recording holds, and back, exactly: also
// texts that are not UTF-8 ({"hex":"..."}) and numbers that JSON has no word for
// ("nan", "inf", "-inf"). Not the form for users, which is report/verdict.h.
// Pure functions, thread-safe.
#ifndef MYCROFT_USERSPACE_STORE_INCIDENT_JSON_H_
#define MYCROFT_USERSPACE_STORE_INCIDENT_JSON_H_

#include <string>

#include "absl/status/statusor.h"
#include "userspace/attribute/incident.h"

namespace mycroft {

std::string IncidentToJson(const Incident& incident);
// DataLoss when the text is not such a form; keys it does not know are left out.
[[nodiscard]] absl::StatusOr<Incident> IncidentFromJson(const std::string& text);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_STORE_INCIDENT_JSON_H_
