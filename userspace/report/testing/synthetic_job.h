// SPDX-License-Identifier: Apache-2.0
//
// For tests and benchmarks only: a made-up training job as the agent would have
// sampled it. Ranks run rings of collectives on nested communicators; times have
// the jitter of real ones down to the nanosecond (which decides how many bytes a
// recording takes), samples come by the rules in snapshot.h. One rank may get
// stuck for a while or for ever. The same options give the same snapshots.
//
// It knows nothing of NCCL: what the plugin reports is tested with real traces.
#ifndef MYCROFT_USERSPACE_REPORT_TESTING_SYNTHETIC_JOB_H_
#define MYCROFT_USERSPACE_REPORT_TESTING_SYNTHETIC_JOB_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "userspace/attribute/incident.h"
#include "userspace/decode/snapshot_source.h"

namespace mycroft {

struct SyntheticOptions {
  int ranks = 4;
  int ranks_per_host = 4;  // each host gets snapshots of its own
  int channels = 2;        // per communicator; two flows each
  bool pairs = true;       // besides "world", a communicator for each two ranks
  double ops_per_s = 20;   // per rank
  bool overlap = false;    // communicators run side by side, not one after the other
  double duration_s = 10;
  uint64_t interval_ns = 100'000'000;
  uint64_t start_ns = 5'000'000'000'000;  // of CLOCK_MONOTONIC
  bool kernels = true;
  bool host_samples = true;
  int stuck_rank = -1;    // whose GPU stops filling buffers; -1: none
  double stuck_at_s = 0;  // in the first operation of all ranks after that, for stuck_for_s
  double stuck_for_s = 1e9;
  uint64_t seed = 1;
};

class SyntheticJob : public SnapshotSource {
 public:
  explicit SyntheticJob(const SyntheticOptions& options);
  absl::StatusOr<std::optional<Snapshot>> Next() override;
  // What the pipeline should have said of the stuck rank; empty without one.
  std::vector<Incident> Incidents() const;

 private:
  struct Flow {
    int comm = 0;  // of comms_
    int channel = 0;
    mc_direction direction = MC_SEND;
    int peer = 0;
  };
  struct FlowPlan {  // in job time, which stands still while the job is stuck
    uint64_t begin = 0, step_ns = 0, late = 0;
    uint32_t posted_lag = 0, ready_lag = 0, done_lag = 0;  // of the last step
    double share[3] = {0, 0, 0};                           // of the time, by wait
    bool counted = false;                                  // in FlowTotal
  };
  struct RankPlan {
    uint64_t id = 0;
    uint64_t api = 0, start = 0, stop = 0, first = 0, progress = 0, last = 0;
    uint64_t kernel_start = 0, kernel_stop = 0, gpu_start = 0, gpu_stop = 0;
    std::vector<FlowPlan> flows;
    std::optional<OpSample> sampled;
    bool counted = false;
  };
  struct Op {
    int comm = 0;
    mc_func func = MC_FUNC_UNKNOWN;
    uint64_t ordinal = 0, nccl_seq = 0, count = 0;
    uint32_t steps = 0;
    uint64_t step_bytes = 0;
    std::vector<RankPlan> ranks;  // by rank in the communicator
  };
  struct Comm {
    uint64_t id = 0;
    std::string name;
    std::vector<int> ranks;  // job ranks
    uint64_t ops = 0;
    std::vector<uint64_t> per_func;
  };
  struct FlowTotal {
    uint64_t ops = 0, steps = 0, bytes = 0, wait[3] = {0, 0, 0};
    uint64_t last_id = 0, last_first = 0, last_final = 0;
    uint64_t posted = 0, ready = 0, transmitted = 0, done = 0;
    std::optional<FlowSample> sampled;
    uint64_t sampled_at = 0;
    bool stood = false;
  };
  struct Rank {
    std::vector<int> comms;
    std::vector<std::vector<FlowTotal>> flows;  // by position in comms
    std::vector<std::optional<CommSample>> sampled;
    uint64_t next_id = 1;
    std::vector<uint64_t> free_at;  // by position in comms
    uint64_t run_ns = 0, runq_ns = 0;
    bool announced = false;
  };

  void Plan(uint64_t until);
  uint64_t PlanOp(int comm, mc_func func, uint64_t count, uint64_t gap);
  uint64_t Real(uint64_t job_ns) const;
  uint64_t Job(uint64_t real_ns) const;
  bool Stuck(uint64_t real_ns) const;
  OpSample SampleOp(const Op& op, int rank, uint64_t now) const;
  ProcessSample SampleProcess(int rank, uint64_t now);
  double Uniform(double low, double high);
  uint64_t Jitter(double mean, double spread);

  SyntheticOptions options_;
  std::mt19937_64 random_;
  std::vector<Comm> comms_;
  std::vector<Rank> ranks_;
  std::deque<Op> ops_;
  uint64_t planned_ = 0;
  uint64_t iteration_ = 0;
  uint64_t stuck_after_ns_ = UINT64_MAX;  // as asked for
  uint64_t stuck_ns_ = UINT64_MAX, stuck_end_ns_ = UINT64_MAX;
  uint64_t now_ = 0;
  int host_ = 0;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_REPORT_TESTING_SYNTHETIC_JOB_H_
