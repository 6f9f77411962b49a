// SPDX-License-Identifier: Apache-2.0
//
// What one process's GPU board said at one moment. Plain values; nothing refers to the
// board any more. Times are nanoseconds of the host's CLOCK_MONOTONIC; counters are
// cumulative since the line (stream, name) came to be.
//
// Of the end of work three things can be known, and no more is claimed:
//   finished    proved: a synchronisation returned, a query said so, or a record came
//   unfinished  proved: a host thread is inside a wait for it now, or a query said
//               "not ready" (proved_ns says when)
//   unknown     neither. Without activity records this is the usual case of a healthy
//               stream, so it is no sign of anything.
#ifndef MYCROFT_USERSPACE_DECODE_GPU_SNAPSHOT_H_
#define MYCROFT_USERSPACE_DECODE_GPU_SNAPSHOT_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bpf/abi/gpu_board.h"

namespace mycroft {

struct GpuDeviceSample {
  uint32_t ordinal = 0;  // CUDA's, after CUDA_VISIBLE_DEVICES
  std::string uuid;      // GPU-xxxxxxxx-xxxx-..., as NVML prints it; empty unknown
  std::string pci;       // dddd:bb:dd.f; empty unknown
  std::string name;
  friend bool operator==(const GpuDeviceSample&, const GpuDeviceSample&) = default;
};

struct GpuContextSample {
  uint32_t index = 0;
  uint32_t uid = 0;                // CUPTI's number
  std::optional<uint32_t> device;  // ordinal
  bool alive = false;
  uint64_t created_ns = 0;
  uint64_t destroyed_ns = 0;
  friend bool operator==(const GpuContextSample&, const GpuContextSample&) = default;
};

struct GpuLaunch {
  uint64_t ticket = 0;  // nth work of its stream, from 1
  uint64_t launch_ns = 0;
  uint32_t correlation = 0;
  mc_gpu_work work = MC_GPU_WORK_NONE;
  mc_gpu_copy copy = MC_GPU_COPY_OTHER;
  uint64_t bytes = 0;  // of a copy or memset, rounded up to KiB
  uint32_t name = 0;   // GpuNameSample::index; 0 unknown
  std::string kernel;  // its name, as far as known
  friend bool operator==(const GpuLaunch&, const GpuLaunch&) = default;
};

enum class GpuPending : uint8_t {
  kNone = 0,        // all that was launched is finished
  kUnknown = 1,     // some of it is not known to be
  kWaitedFor = 2,   // a host thread waits for several streams, of which this is one
  kUnfinished = 3,  // proved
};

struct GpuStreamSample {
  uint32_t index = 0;
  uint32_t generation = 0;
  bool alive = false;
  std::optional<uint32_t> context;    // GpuContextSample::index
  std::optional<uint32_t> device;     // ordinal
  std::optional<uint32_t> stream_id;  // CUPTI's, within the context
  mc_gpu_stream_kind kind = MC_GPU_STREAM_CREATED;
  uint64_t handle = 0;  // hashed
  uint64_t created_ns = 0;
  uint64_t destroyed_ns = 0;
  bool capturing = false;
  uint64_t launched = 0;  // last ticket
  uint64_t finished = 0;  // ticket; <= launched
  mc_gpu_host_call finished_by = MC_GPU_HOST_NONE;
  uint64_t finished_ns = 0;  // when it was proved
  uint64_t last_launch_ns = 0;
  uint64_t kernels = 0;  // NCCL's included
  uint64_t nccl_kernels = 0;
  uint64_t graphs = 0;
  uint64_t memsets = 0;
  uint64_t voids = 0;
  std::array<uint64_t, MC_GPU_COPY_COUNT> copies{};
  std::array<uint64_t, MC_GPU_COPY_COUNT> copy_bytes{};
  mc_gpu_host_call last_wait = MC_GPU_HOST_NONE;
  uint64_t last_wait_ns = 0;  // when it returned
  uint64_t last_wait_took_ns = 0;
  // Of activity records.
  uint64_t records = 0;
  uint64_t last_end_ns = 0;
  uint64_t kernel_count = 0, kernel_ns = 0;  // without NCCL's
  uint64_t nccl_count = 0, nccl_ns = 0;
  uint64_t delay_count = 0, delay_ns = 0, delay_max_ns = 0;  // launch -> start
  std::array<uint64_t, MC_GPU_COPY_COUNT> done_copies{};
  std::array<uint64_t, MC_GPU_COPY_COUNT> done_copy_bytes{};
  std::array<uint64_t, MC_GPU_COPY_COUNT> done_copy_ns{};
  // What may still run.
  GpuPending pending = GpuPending::kNone;
  uint64_t proved_ns = 0;           // kUnfinished: when it was last proved
  uint64_t waited_since_ns = 0;     // a host thread is inside a wait for it since; 0: none is
  std::optional<GpuLaunch> oldest;  // not known to be finished; empty: none, or forgotten
  std::optional<GpuLaunch> last;
  // The last wait for another stream that was put into this one, while it may still hold:
  // what was launched after `wait_at` starts only after that stream's `wait_ticket` ended.
  std::optional<uint32_t> waits_for_stream;  // GpuStreamSample::index
  uint64_t wait_ticket = 0;
  uint64_t wait_at = 0;
  std::vector<GpuLaunch> behind;  // after `oldest`, as far as the queue goes back
  friend bool operator==(const GpuStreamSample&, const GpuStreamSample&) = default;
};

struct GpuNameSample {
  uint32_t index = 0;
  std::string name;  // mangled; cut where `cut`
  bool cut = false;
  bool nccl = false;
  std::optional<uint32_t> device;
  uint64_t count = 0;  // of records
  uint64_t sum_ns = 0, min_ns = 0, max_ns = 0, ewma_ns = 0, last_ns = 0, last_end_ns = 0;
  std::array<uint32_t, 32> log2{};  // [i]: times of [2^i, 2^(i+1)) ns
  friend bool operator==(const GpuNameSample&, const GpuNameSample&) = default;
};

struct GpuThreadSample {
  uint32_t tid = 0;                          // in the process's own pid namespace
  mc_gpu_host_call call = MC_GPU_HOST_NONE;  // it is inside of now
  uint64_t enter_ns = 0;
  std::optional<uint32_t> stream;   // GpuStreamSample::index
  std::optional<uint32_t> context;  // GpuContextSample::index
  uint64_t ticket = 0;
  mc_gpu_host_call last_call = MC_GPU_HOST_NONE;
  uint64_t last_leave_ns = 0;
  uint64_t calls = 0;
  friend bool operator==(const GpuThreadSample&, const GpuThreadSample&) = default;
};

struct GpuEventSample {
  uint64_t id = 0;
  uint64_t launch_ns = 0;  // 0 unknown
  uint64_t start_ns = 0, end_ns = 0;
  uint64_t bytes = 0;
  uint32_t stream = 0, name = 0, correlation = 0;
  mc_gpu_work work = MC_GPU_WORK_NONE;
  mc_gpu_copy copy = MC_GPU_COPY_OTHER;
  bool graph = false;
  friend bool operator==(const GpuEventSample&, const GpuEventSample&) = default;
};

struct GpuSnapshot {
  uint32_t pid = 0;  // in the process's own pid namespace
  std::string process;
  std::string library_version;
  std::string cupti_path;
  uint32_t cupti_version = 0;
  mc_gpu_state state = MC_GPU_STARTING;
  mc_gpu_level level = MC_GPU_LEVEL_UNSET;
  mc_gpu_clock clock = MC_GPU_CLOCK_NONE;
  uint64_t clock_error_ns = 0;   // of a pair: half its width. CUPTI's own error is not known
  std::string other_subscriber;  // when state is MC_GPU_TAKEN; may be empty
  bool layout_known = false;     // false: activity records of this CUPTI cannot be read
  uint32_t error = 0;            // CUptiResult
  mc_gpu_cupti_call error_call = MC_GPU_CALL_NONE;
  uint32_t chained = 0;
  uint64_t created_ns = 0;
  uint64_t last_callback_ns = 0;
  uint64_t launches = 0;       // kernels
  uint64_t nccl_launches = 0;  // 0 while launches > 0: no name matched NCCL's
  uint64_t armed_ns = 0, armed_until_ns = 0, armed_total_ns = 0, flushed_ns = 0;
  uint64_t records = 0, overhead_ns = 0, matched_exact = 0, matched_near = 0;
  // Our own thread in that process is inside a call of CUPTI since; 0: it is not.
  uint64_t helper_call_ns = 0;
  mc_gpu_cupti_call helper_call = MC_GPU_CALL_NONE;
  std::array<uint64_t, MC_GPU_LOSS_COUNT> lost{};
  uint64_t torn_reads = 0;  // lines given up on
  std::vector<GpuDeviceSample> devices;
  std::vector<GpuContextSample> contexts;
  std::vector<GpuStreamSample> streams;  // those used at least once, destroyed ones too
  std::vector<GpuNameSample> names;      // names[i].index == i; [0] is "unknown"
  std::vector<GpuThreadSample> threads;
  std::vector<GpuEventSample> events;  // newer than asked for, oldest first
  uint64_t next_event_id = 1;          // to ask with the next time
  uint64_t events_missed = 0;          // overwritten before they were read
  friend bool operator==(const GpuSnapshot&, const GpuSnapshot&) = default;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_DECODE_GPU_SNAPSHOT_H_
