// SPDX-License-Identifier: Apache-2.0
//
// The clock of every GPU (%globaltimer, as NCCL's kernels read it) against
// CLOCK_MONOTONIC of its host, from what the snapshots say anyway:
//
//   API call entered   ->  first start of the kernel       the launch is made inside it
//   first start        ->  seen by the host                NCCL polls for it
//   last stop          ->  seen by the host
//   last data received ->  last stop                       protocol Simple only
//
// The enqueueing of an operation (start_ns) is no cause of its kernel: NCCL reports it
// after the launch. With the protocols LL and LL128 the GPU sees the data before the
// host does. In a replay of a CUDA graph the API call is not known. An event that never
// stops says nothing of the stop. %globaltimer is coarse: a reading may be a
// microsecond old, which is part of every bound.
//
// One clock per process and GPU. The board does not say on which GPU a communicator
// is: as in the model, a process that holds several ranks of one communicator drives as
// many GPUs. Observe() snapshots in order; the clocks are a function of them, so a
// replay gives the same. Memory is bounded. Not thread-safe.
#ifndef MYCROFT_USERSPACE_ALIGN_GPU_ALIGNER_H_
#define MYCROFT_USERSPACE_ALIGN_GPU_ALIGNER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "userspace/align/causal_clock.h"
#include "userspace/decode/snapshot.h"

namespace mycroft {

// What is known of one GPU's clock, at the last snapshot of its process.
struct GpuClockState {
  std::string host;
  ProcessKey process;
  uint32_t gpu = 0;                  // nth of the process
  int32_t rank = -1;                 // in its largest communicator
  std::optional<uint64_t> error_ns;  // empty: no conversion, `problem` says why
  std::string problem;
  double drift_ppm = 0, drift_error_ppm = 0;
  uint64_t bounds = 0;
  uint64_t steps = 0;  // times that one of the clocks was set
  friend bool operator==(const GpuClockState&, const GpuClockState&) = default;
};

class GpuAligner {
 public:
  // Segments of CausalClock to keep for each GPU: about a minute each.
  explicit GpuAligner(size_t most_segments = 16) : most_segments_(most_segments) {}

  void Observe(const Snapshot& snapshot);

  // A reading of the GPU's clock, of the GPU on which this communicator is, on the clock
  // of its host. NotFound when the communicator is not known, FailedPrecondition and
  // OutOfRange as CausalClock, with the reason.
  absl::StatusOr<ClockMap::Converted> ToHost(const std::string& host, const ProcessKey& process,
                                             uint32_t comm, uint64_t gpu_ns) const;

  // By host, process and GPU; those of processes that have a communicator.
  std::vector<GpuClockState> Clocks() const;

 private:
  struct Gpu {
    CausalClock clock;
    int32_t rank = -1, nranks = 0;
  };
  struct Member {
    uint32_t generation = 0;
    uint64_t comm_id = 0;
    int32_t rank = 0;
    bool active = false;
    size_t gpu = 0;
  };
  // An operation whose stop and last data are told by different samples.
  struct Received {
    uint32_t comm = 0, comm_generation = 0;
    uint64_t data_ns = 0;  // 0: not known yet
    uint64_t gpu_stop = 0;
  };
  struct Process {
    std::vector<Gpu> gpus;
    std::map<uint32_t, Member> comms;       // by line of the board
    std::map<uint64_t, Received> received;  // by operation
    uint32_t level = 0;
    bool exited = false;
    uint64_t last_ns = 0;
  };
  struct Bound {
    size_t gpu = 0;
    bool gpu_after_host = false;
    uint64_t gpu_ns = 0, host_ns = 0;
  };
  void AddComm(Process* process, const CommSample& sample) const;
  void AddOp(Process* process, const OpSample& op, uint64_t now_ns, std::vector<Bound>* bounds);

  size_t most_segments_;
  std::map<std::pair<std::string, ProcessKey>, Process> processes_;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_ALIGN_GPU_ALIGNER_H_
