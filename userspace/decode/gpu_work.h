// SPDX-License-Identifier: Apache-2.0
//
// What a verdict needs of a GPU board, small enough to be kept and recorded once a second:
// which streams have unfinished work and what is the oldest of it, and per GPU the sums of
// kernel times, copies and launch delays.
//
// Absence proves nothing: work that is not known to be finished may be finished, unless a
// host thread waits for it or a query said so (bpf/abi/gpu_board.h, "finished").
//
// Values only. Times are CLOCK_MONOTONIC of the host.
#ifndef MYCROFT_USERSPACE_DECODE_GPU_WORK_H_
#define MYCROFT_USERSPACE_DECODE_GPU_WORK_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bpf/abi/gpu_board.h"
#include "userspace/decode/gpu_snapshot.h"

namespace mycroft {

inline constexpr size_t kMaxGpuWorkStreams = 16, kMaxGpuWorkDevices = 16, kMaxGpuWorkName = 96,
                        kMaxGpuWorkText = 256;

// A stream with work that is not known to be finished.
struct GpuStreamWork {
  uint32_t stream = 0;                  // GpuStreamSample::index
  std::optional<uint32_t> stream_id;    // CUPTI's number within the context
  std::optional<uint32_t> context;      // GpuContextSample::index
  std::optional<uint32_t> device;       // ordinal
  uint64_t launched = 0, finished = 0;  // tickets
  GpuPending pending = GpuPending::kUnknown;
  uint64_t waited_since_ns = 0;  // a host thread waits for it since; 0: none does
  // The oldest that is not known to be finished; work NONE: not known.
  mc_gpu_work oldest_work = MC_GPU_WORK_NONE;
  std::string oldest;  // its kernel, shortened
  uint64_t oldest_ns = 0;
  bool oldest_proved = false;  // it is that one that is proved to be unfinished
  bool no_nccl = false;        // all that may be unfinished is seen, and none of it is NCCL's
  // The last that is not NCCL's between that one and NCCL's kernel; work NONE: nothing is.
  mc_gpu_work front_work = MC_GPU_WORK_NONE;
  std::string front;
  // The first kernel of NCCL that is not known to be finished.
  std::string nccl;
  uint64_t nccl_ns = 0;                    // launched; 0: none
  std::optional<uint32_t> nccl_waits_for;  // another stream, whose work must end before it
  friend bool operator==(const GpuStreamWork&, const GpuStreamWork&) = default;
};

// Sums over activity records of one GPU, cumulative.
struct GpuDeviceWork {
  uint32_t device = 0;  // ordinal
  std::string pci;      // dddd:bb:dd.f; empty: not known
  // Kernels that are not NCCL's, of names whose usual time is known: how long they ran, and
  // how long they would have run with the usual time of each.
  uint64_t kernels = 0, kernel_ns = 0, expected_ns = 0;
  uint64_t nccl_kernels = 0, nccl_ns = 0;
  uint64_t delays = 0, delay_ns = 0;  // launch to start
  std::array<uint64_t, MC_GPU_COPY_COUNT> copies{}, copy_bytes{}, copy_ns{};
  friend bool operator==(const GpuDeviceWork&, const GpuDeviceWork&) = default;
};

struct GpuWorkSample {
  mc_gpu_state state = MC_GPU_STARTING;
  mc_gpu_level level = MC_GPU_LEVEL_UNSET;
  std::string problem;          // DescribeGpuState: what is not seen, and who holds CUPTI
  uint64_t armed_until_ns = 0;  // 0: no activity records
  uint64_t launches = 0;        // kernels
  uint64_t nccl_launches = 0;
  uint64_t last_launch_ns = 0;  // of any stream
  uint64_t finished_ns = 0;     // when the last proof of finished work came
  uint32_t streams_left_out = 0;
  std::vector<GpuStreamWork> streams;  // with unfinished work; by index
  std::vector<GpuDeviceWork> devices;  // by ordinal
  friend bool operator==(const GpuWorkSample&, const GpuWorkSample&) = default;
};

// "gemm" of "_Z4gemmPfS_S_", "at::native::vectorized" of a nested name; others as they are,
// at most kMaxGpuWorkName bytes.
std::string ShortKernelName(const std::string& mangled);

// Successive snapshots of one board to samples. Remembers the usual time of each kernel (its
// mean when eight had been recorded) and what was counted so far. Not thread-safe.
class GpuWorkSampler {
 public:
  GpuWorkSample Sample(const GpuSnapshot& snapshot);

 private:
  struct Known {
    bool usual = false;
    uint64_t usual_ns = 0, count = 0, sum_ns = 0;
  };
  struct StreamSums {
    uint64_t nccl_count = 0, nccl_ns = 0, delay_count = 0, delay_ns = 0;
    std::array<uint64_t, MC_GPU_COPY_COUNT> copies{}, bytes{}, ns{};
  };
  GpuDeviceWork* Device(uint32_t ordinal);

  std::map<uint32_t, Known> names_;
  std::map<std::pair<uint32_t, uint32_t>, StreamSums> streams_;  // index, generation
  std::map<uint32_t, GpuDeviceWork> devices_;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_DECODE_GPU_WORK_H_
