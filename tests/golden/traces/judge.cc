// SPDX-License-Identifier: Apache-2.0
#include "tests/golden/traces/judge.h"

#include <algorithm>
#include <cstdio>

namespace mycroft {
namespace {

using nlohmann::json;

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kStuckLimitNs = 3 * kSecond;  // fault -> verdict

uint64_t U64(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number_unsigned() ? it->get<uint64_t>() : 0;
}
int64_t I64(const json& object, const char* key, int64_t missing) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number_integer() ? it->get<int64_t>() : missing;
}
std::string Text(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}
const json& List(const json& object, const char* key) {
  static const json empty = json::array();
  const auto it = object.find(key);
  return it != object.end() && it->is_array() ? *it : empty;
}

// Components of a verdict that name the same thing as a component of the truth.
std::set<std::string> Components(const std::string& truth) {
  if (truth == "network") return {"nic", "fabric"};
  if (truth == "process") return {"host"};
  if (truth == "application") return {"app"};
  return {truth};
}

// Kinds of incident that are right for a fault.
std::set<std::string> Kinds(const Truth& truth) {
  if (truth.verdict == "slow") {
    return truth.stopped ? std::set<std::string>{"slow", "stuck"} : std::set<std::string>{"slow"};
  }
  if (truth.verdict == "hang") return {"stuck"};
  return {truth.verdict};
}

double Seconds(uint64_t t_ns, uint64_t from_ns) {
  return static_cast<double>(static_cast<int64_t>(t_ns - from_ns)) / 1e9;
}

std::string Describe(const json& incident) {
  std::string out = Text(incident, "kind") + ":";
  const json& culprits = List(incident, "culprits");
  if (culprits.empty()) out += " no culprit";
  for (const json& culprit : culprits) {
    char text[96];
    const auto confidence = culprit.find("confidence");
    std::snprintf(
        text, sizeof text, " rank %d %s (%.2f)", static_cast<int>(I64(culprit, "rank", -1)),
        Text(culprit, "component").c_str(),
        confidence != culprit.end() && confidence->is_number() ? confidence->get<double>() : 0.0);
    out += text;
  }
  return out;
}

// What one incident says of the culprits.
struct Accusation {
  bool wrong = false;       // someone who did nothing, or the wrong component of one who did
  bool unsure = false;      // nobody, or without the component
  std::set<int32_t> right;  // ranks named with the right component
  std::string why;
};

Accusation Compare(const Truth& truth, const json& incident) {
  Accusation out;
  const json& culprits = List(incident, "culprits");
  out.unsure = culprits.empty();
  for (const json& culprit : culprits) {
    const int32_t rank = static_cast<int32_t>(I64(culprit, "rank", -1));
    const std::string component = Text(culprit, "component");
    const auto expected = std::find_if(truth.culprits.begin(), truth.culprits.end(),
                                       [rank](const ExpectedCulprit& e) { return e.rank == rank; });
    if (rank < 0) {
      out.unsure = true;
    } else if (expected == truth.culprits.end()) {
      out.wrong = true;
      out.why = "rank " + std::to_string(rank) + " is not at fault";
    } else if (component == "unknown") {
      out.unsure = true;
    } else if (Components(expected->component).count(component) == 0) {
      out.wrong = true;
      out.why =
          "rank " + std::to_string(rank) + ": " + component + " in place of " + expected->component;
    } else {
      out.right.insert(rank);
    }
  }
  return out;
}

}  // namespace

const char* ToString(Outcome outcome) {
  switch (outcome) {
    case Outcome::kRight:
      return "right";
    case Outcome::kUnsure:
      return "unsure";
    case Outcome::kMissed:
      return "MISSED";
    case Outcome::kWrong:
      return "WRONG";
    case Outcome::kLate:
      return "LATE";
  }
  return "?";
}

absl::StatusOr<Truth> ParseTruth(const std::string& text) {
  const json root = json::parse(text, nullptr, false);
  if (root.is_discarded() || !root.is_object() || !root.contains("expected")) {
    return absl::InvalidArgumentError("not a truth file");
  }
  Truth truth;
  const json& expected = root["expected"];
  truth.verdict = Text(expected, "verdict");
  if (truth.verdict.empty()) return absl::InvalidArgumentError("no expected verdict");
  for (const json& culprit : List(expected, "culprits")) {
    truth.culprits.push_back(
        {static_cast<int32_t>(I64(culprit, "rank", -1)), Text(culprit, "component")});
  }
  int64_t from_iter = INT64_MAX;
  int64_t to_iter = 0;
  for (const json& fault : List(root, "faults")) {
    if (Text(fault, "component") == "none") continue;  // an event that is no fault
    const uint64_t onset = U64(fault, "onset");
    if (truth.onset_ns == 0 || onset < truth.onset_ns) truth.onset_ns = onset;
    truth.clear_ns = std::max(truth.clear_ns, U64(fault, "clear"));
    from_iter = std::min(from_iter, I64(fault, "from_iter", 0));
    to_iter = std::max(to_iter, I64(fault, "to_iter", 0));
  }
  for (const json& rank : List(root, "ranks")) {
    const json& iterations = List(rank, "iters");
    const bool culprit =
        std::any_of(truth.culprits.begin(), truth.culprits.end(), [&](const ExpectedCulprit& e) {
          return e.rank == static_cast<int32_t>(I64(rank, "rank", -1));
        });
    for (size_t i = 0; i < iterations.size(); ++i) {
      const json& times = iterations[i];
      if (!times.is_array() || times.size() != 3 || !times[0].is_number_unsigned() ||
          !times[2].is_number_unsigned()) {
        return absl::InvalidArgumentError("malformed iterations");
      }
      const uint64_t start = times[0].get<uint64_t>();
      const uint64_t done = times[2].get<uint64_t>();
      const int64_t index = static_cast<int64_t>(i);
      if (start == 0) continue;
      if (i >= 2 && index < from_iter && done > start) {
        truth.iteration_ns = std::max(truth.iteration_ns, done - start);
      }
      if (index >= from_iter && index < to_iter) {
        truth.stopped |= done == 0 || done > start + kSecond;
        if (culprit && index == from_iter + 4) truth.fifth_ns = std::max(truth.fifth_ns, done);
      }
    }
  }
  return truth;
}

absl::StatusOr<Judgement> Judge(const Truth& truth, const std::string& verdict_json,
                                const JudgeOptions& options) {
  const json root = json::parse(verdict_json, nullptr, false);
  if (root.is_discarded() || !root.is_object() || I64(root, "schema_version", 0) != 1 ||
      !root.contains("incidents") || !root["incidents"].is_array()) {
    return absl::InvalidArgumentError("the output is not a verdict: " +
                                      verdict_json.substr(0, 200));
  }
  const json& incidents = root["incidents"];
  Judgement out;
  for (const json& incident : incidents) {
    if (!out.verdict.empty()) out.verdict += "; ";
    out.verdict += Describe(incident);
  }
  if (truth.verdict == "healthy") {
    out.outcome = incidents.empty() ? Outcome::kRight : Outcome::kWrong;
    if (!incidents.empty()) out.why = "an incident in a healthy job";
    return out;
  }
  if (incidents.empty()) {
    out.outcome = options.missing_rank >= 0 ? Outcome::kUnsure : Outcome::kMissed;
    out.why = "no incident";
    return out;
  }

  const std::set<std::string> kinds = Kinds(truth);
  const uint64_t early_ns = std::max(truth.iteration_ns, options.interval_ns);
  std::set<int32_t> found;
  const json* decisive = nullptr;
  out.outcome = Outcome::kUnsure;
  for (const json& incident : incidents) {
    const Accusation accusation = Compare(truth, incident);
    if (accusation.wrong) {
      out.outcome = Outcome::kWrong;
      out.why = accusation.why;
      decisive = &incident;
      break;
    }
    if (U64(incident, "onset_ns") + early_ns < truth.onset_ns) {
      out.outcome = Outcome::kWrong;
      out.why = "onset more than an iteration before the fault";
      decisive = &incident;
      break;
    }
    if (kinds.count(Text(incident, "kind")) == 0) {
      if (out.why.empty()) out.why = "kind " + Text(incident, "kind") + " for " + truth.verdict;
      continue;
    }
    found.insert(accusation.right.begin(), accusation.right.end());
    if (decisive == nullptr && !accusation.unsure && !accusation.right.empty()) {
      decisive = &incident;
    }
  }
  if (out.outcome != Outcome::kWrong) {
    if (decisive != nullptr && found.size() == truth.culprits.size()) {
      out.outcome = Outcome::kRight;
      out.why.clear();
    } else if (out.why.empty()) {
      out.why = found.empty() ? "no culprit, or not its component" : "not all culprits found";
    }
  }
  const json& shown = decisive != nullptr ? *decisive : incidents[0];
  out.onset_s = Seconds(U64(shown, "onset_ns"), truth.onset_ns);
  out.detected_s = Seconds(U64(shown, "detected_ns"), truth.onset_ns);
  out.verdict_s = Seconds(U64(shown, "verdict_ns"), truth.onset_ns);
  if (U64(shown, "cleared_ns") != 0) {
    out.cleared_s = Seconds(U64(shown, "cleared_ns"), truth.onset_ns);
  }

  // 3 s, or for what is slow and not stuck five of its iterations, and the ticks it
  // takes to see them.
  if (out.outcome == Outcome::kRight && options.missing_rank < 0) {
    uint64_t limit_ns = truth.onset_ns + kStuckLimitNs;
    if (truth.verdict == "slow") limit_ns = std::max(limit_ns, truth.fifth_ns);
    limit_ns += 2 * options.interval_ns;
    if (U64(shown, "verdict_ns") > limit_ns) {
      char why[96];
      std::snprintf(why, sizeof why, "verdict %.2f s after the fault, limit %.2f s", *out.verdict_s,
                    Seconds(limit_ns, truth.onset_ns));
      out.outcome = Outcome::kLate;
      out.why = why;
    }
  }
  return out;
}

}  // namespace mycroft
