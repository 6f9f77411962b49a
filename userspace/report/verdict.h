// SPDX-License-Identifier: Apache-2.0
//
// Verdicts as text and as JSON: the one form of each that every command uses.
// Pure functions, thread-safe.
#ifndef MYCROFT_USERSPACE_REPORT_VERDICT_H_
#define MYCROFT_USERSPACE_REPORT_VERDICT_H_

#include <string>
#include <vector>

#include "userspace/attribute/incident.h"
#include "userspace/decode/snapshot.h"

namespace mycroft {

inline constexpr int kVerdictSchemaVersion = 1;

// {"schema_version":1,"incidents":[...],"blind_spots":[...]}; times are integers
// in nanoseconds, `cleared_ns` is null while open. Pretty-printed when indent >= 0.
std::string VerdictJson(const std::vector<Incident>& incidents,
                        const std::vector<BlindSpot>& blind_spots, int indent = 2);

// "STUCK".
const char* KindName(IncidentKind kind);
// "GPU of rank 1", "rank 2 (NIC or network)".
std::string CulpritText(const Culprit& culprit);

struct VerdictTextOptions {
  bool colour = false;
  uint64_t now_ns = 0;    // "since 3.2 s"; 0: no relative times
  uint64_t start_ns = 0;  // times are printed relative to it; 0: absolute
};

// For each incident: component, place, since when, confidence, chain of waiting,
// evidence, rejected suspects with reasons, GPU-seconds lost.
std::string VerdictText(const std::vector<Incident>& incidents,
                        const std::vector<BlindSpot>& blind_spots,
                        const VerdictTextOptions& options = {});

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_REPORT_VERDICT_H_
