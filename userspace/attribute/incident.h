// SPDX-License-Identifier: Apache-2.0
//
// A verdict: what is wrong, since when, who causes it, who waits, and why we
// say so. Values only. Times are nanoseconds of the recording's clock
// (CLOCK_MONOTONIC of the host, or of the first host of a merged recording).
#ifndef MYCROFT_USERSPACE_ATTRIBUTE_INCIDENT_H_
#define MYCROFT_USERSPACE_ATTRIBUTE_INCIDENT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mycroft {

enum class IncidentKind : uint8_t { kStuck, kSlow, kAbsent, kMismatch, kDead };

enum class Component : uint8_t {
  kUnknown,
  kGpu,
  kNvlink,
  kPcie,
  kNic,
  kFabric,
  kHost,
  kApp,
  kCcl,
};

// The rank in one communicator.
struct CommRank {
  uint64_t comm_id = 0;
  std::string comm_name;
  int32_t rank = 0;
  int32_t nranks = 0;
  friend bool operator==(const CommRank&, const CommRank&) = default;
};

struct Culprit {
  int32_t rank = -1;  // in the largest communicator that contains the process
  std::string host;
  uint32_t pid = 0;
  Component component = Component::kUnknown;
  std::vector<Component> candidates;  // when component is kUnknown
  double confidence = 0;              // 0..1
  double gpu_seconds_lost = 0;        // waited for by all victims
  std::vector<CommRank> comms;
  std::string where;  // "channel 1, send to rank 2", or empty for the whole rank
  friend bool operator==(const Culprit&, const Culprit&) = default;
};

// One edge of the chain of waiting, in words: "rank 0 waits for rank 1: ...".
struct WaitEdge {
  int32_t waiter = -1;
  int32_t waited_for = -1;
  std::string why;
  friend bool operator==(const WaitEdge&, const WaitEdge&) = default;
};

struct Rejected {
  std::string suspect;  // "gpu of rank 2"
  std::string reason;
  friend bool operator==(const Rejected&, const Rejected&) = default;
};

struct Incident {
  uint64_t id = 0;  // from 1, in order of detection
  IncidentKind kind = IncidentKind::kStuck;
  uint64_t onset_ns = 0;
  uint64_t detected_ns = 0;
  uint64_t verdict_ns = 0;
  std::optional<uint64_t> cleared_ns;  // empty while open
  uint64_t comm_id = 0;                // where it was seen first
  std::string comm_name;
  std::string summary;            // one line: who waits for whom and why
  std::vector<Culprit> culprits;  // empty: not enough evidence
  std::vector<int32_t> victims;   // job ranks
  std::vector<WaitEdge> chain;
  std::vector<std::string> evidence;
  std::vector<Rejected> rejected;
  friend bool operator==(const Incident&, const Incident&) = default;
};

// "stuck", "gpu", ... as in the JSON form; and back (nullopt for other text).
const char* ToString(IncidentKind kind);
const char* ToString(Component component);
std::optional<IncidentKind> ParseIncidentKind(const std::string& text);
std::optional<Component> ParseComponent(const std::string& text);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_ATTRIBUTE_INCIDENT_H_
