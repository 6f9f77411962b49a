// SPDX-License-Identifier: Apache-2.0
//
// Compares a verdict (the JSON form of userspace/report/verdict.h) with the
// truth of a case (truth.json, written by whoever injected the fault).
//
//   right      the fault's kind, and its culprits by rank and component
//   unsure     an incident, but no culprit, or not its component: "not enough
//              evidence" is a valid answer
//   missed     no incident at all though there was a fault
//   wrong      another rank or component is named; an incident in a healthy job;
//              an onset before the fault
//   late       right, but later than the limit
//
// Pure functions, thread-safe. Malformed JSON is an error, not an exception.
#ifndef MYCROFT_TESTS_GOLDEN_TRACES_JUDGE_H_
#define MYCROFT_TESTS_GOLDEN_TRACES_JUDGE_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace mycroft {

struct ExpectedCulprit {
  int32_t rank = -1;
  std::string component;  // as in truth.json: gpu, network, host, process, application
};

struct Truth {
  std::string verdict;  // healthy, slow, hang, absent, mismatch, dead
  std::vector<ExpectedCulprit> culprits;
  uint64_t onset_ns = 0;      // of the first fault; 0 when healthy
  uint64_t clear_ns = 0;      // of the last fault
  uint64_t iteration_ns = 0;  // longest iteration before the fault, without the first two
  uint64_t fifth_ns = 0;      // the culprit's fifth iteration in the fault was done; 0: not reached
  bool stopped = false;       // some iteration in the fault took longer than a second
};
[[nodiscard]] absl::StatusOr<Truth> ParseTruth(const std::string& text);

enum class Outcome { kRight, kUnsure, kMissed, kWrong, kLate };
const char* ToString(Outcome outcome);

struct Judgement {
  Outcome outcome = Outcome::kWrong;
  std::string why;      // of anything but right
  std::string verdict;  // "slow: rank 2 gpu 0.9; ..." as it was given
  // Of the incident that decided, in seconds after the fault's onset.
  std::optional<double> onset_s, detected_s, verdict_s, cleared_s;
};

struct JudgeOptions {
  // The rank whose trace was left out; -1 none. Then a fault may be missed and
  // may be seen late.
  int32_t missing_rank = -1;
  uint64_t interval_ns = 100'000'000;  // of the sampling
};
[[nodiscard]] absl::StatusOr<Judgement> Judge(const Truth& truth, const std::string& verdict_json,
                                              const JudgeOptions& options = {});

}  // namespace mycroft

#endif  // MYCROFT_TESTS_GOLDEN_TRACES_JUDGE_H_
