// SPDX-License-Identifier: Apache-2.0
//
// The truth of a lab job: which fault was injected where and when. Written for
// tests and people; Mycroft never reads it. Keys as in the truth.json of recorded
// NCCL traces (README.md lists them); written first with the plan, and replaced
// atomically whenever a fault begins or ends and when the job ends.
#ifndef MYCROFT_TOOLS_LAB_JOB_TRUTH_H_
#define MYCROFT_TOOLS_LAB_JOB_TRUTH_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"
#include "tools/lab/job/config.h"

namespace mycroft::lab {

struct FaultTruth {
  uint64_t onset_ns = 0;  // 0: not begun
  uint64_t clear_ns = 0;  // 0: not ended
};

struct RankTruth {
  int pid = 0;
  std::string result = "running";  // ok, wrong, aborted, error, killed
  uint64_t abort_ns = 0;
  uint64_t ready_ns = 0;
  int64_t gpu_offset_ns = 0;
  double gpu_drift_ppm = 0;
  std::vector<std::array<uint64_t, 3>> iters;  // start, enqueued, drained
};

struct JobTruth {
  uint64_t t0_ns = 0;  // zero of `at`; 0: not all ranks ready yet
  int api = 0;
  std::string note;
  std::vector<FaultTruth> faults;  // as config.faults
  std::vector<FaultTruth> events;  // as config.events
  std::vector<RankTruth> ranks;
};

// What an observer should say while every fault of the job holds.
nlohmann::json Expected(const JobConfig& config);
nlohmann::json ToJson(const JobConfig& config, const JobTruth& truth);
absl::Status WriteTruth(const std::string& path, const JobConfig& config, const JobTruth& truth);

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_JOB_TRUTH_H_
