// SPDX-License-Identifier: Apache-2.0
//
// What one sampling tick saw: the unit that flows from a source (live boards, a
// recording, a simulation) to the model, and that the store writes. If two
// sources give equal snapshots, they get equal verdicts.
//
// Values only: a Snapshot owns everything in it, may be copied and moved, and
// has no thread of its own. Times are nanoseconds; `_ns` without a clock in the
// name is CLOCK_MONOTONIC of the host named in Snapshot::host.
#ifndef MYCROFT_USERSPACE_DECODE_SNAPSHOT_H_
#define MYCROFT_USERSPACE_DECODE_SNAPSHOT_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bpf/abi/board.h"
#include "userspace/decode/gpu_work.h"
#include "userspace/decode/hardware.h"

namespace mycroft {

// A process, for ever: a pid is used again, a pid with its start time is not.
struct ProcessKey {
  uint32_t pid = 0;         // in the agent's pid namespace
  uint64_t start_time = 0;  // field 22 of /proc/PID/stat, clock ticks since boot
  friend auto operator<=>(const ProcessKey&, const ProcessKey&) = default;
};

// One communicator line. Sampled when it changed.
struct CommSample {
  uint32_t index = 0;       // line in the board
  uint32_t generation = 0;  // of the line
  uint64_t comm_id = 0;     // equal on all ranks
  int32_t rank = 0;
  int32_t nranks = 0;
  int32_t nnodes = 0;
  mc_comm_state state = MC_COMM_FREE;
  uint64_t init_ns = 0;
  uint64_t finalize_ns = 0;  // 0 while active
  std::string name;          // may be empty
  uint64_t coll_count = 0;
  uint64_t p2p_count = 0;
  bool in_api = false;
  uint64_t api_enter_ns = 0;
  uint64_t api_leave_ns = 0;
  friend bool operator==(const CommSample&, const CommSample&) = default;
};

// One operation. Sampled when it changed: a running operation may come many
// times, the last one holds. Fields as in mc_board_op.
struct OpSample {
  uint64_t id = 0;
  uint32_t comm = 0;  // CommSample::index
  uint32_t comm_generation = 0;
  mc_op_kind kind = MC_OP_NONE;
  mc_func func = MC_FUNC_UNKNOWN;
  mc_datatype datatype = MC_TYPE_UNKNOWN;
  mc_algo algo = MC_ALGO_UNKNOWN;
  mc_proto proto = MC_PROTO_UNKNOWN;
  uint8_t channels = 0;
  uint8_t flags = 0;
  int32_t root_or_peer = 0;
  uint64_t ordinal = 0;
  uint64_t nccl_seq = 0;
  uint64_t count = 0;  // elements
  uint64_t stream = 0;
  uint64_t group_id = 0;
  uint64_t api_ns = 0;
  uint64_t start_ns = 0;
  uint64_t stop_ns = 0;
  uint16_t proxy_started = 0;
  uint16_t proxy_progress = 0;
  uint16_t proxy_done = 0;
  uint64_t proxy_first_ns = 0;
  uint64_t proxy_progress_ns = 0;
  uint64_t proxy_last_ns = 0;
  std::array<uint64_t, MC_WAIT_COUNT> wait_ns{};
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  uint64_t steps_total = 0;
  uint64_t steps_done = 0;
  uint32_t send_steps = 0;
  uint32_t recv_steps = 0;
  uint64_t send_posted_sum_ns = 0;  // sums over steps, modulo 2^64
  uint64_t send_done_sum_ns = 0;
  uint64_t recv_posted_sum_ns = 0;
  uint64_t recv_data_sum_ns = 0;
  std::array<uint64_t, MC_MAX_WAIT_COUNT> max_wait_ns{};  // enum mc_max_wait
  uint16_t kernel_started = 0;
  uint16_t kernel_stopped = 0;
  uint64_t kernel_gpu_start = 0;  // GPU clock
  uint64_t kernel_gpu_stop = 0;   // GPU clock
  uint64_t kernel_start_seen_ns = 0;
  uint64_t kernel_stop_seen_ns = 0;
  // Everything that was begun for it has ended, as far as can be seen.
  bool complete() const {
    if (stop_ns == 0 || (proxy_started == 0 && kernel_started == 0)) return false;
    return proxy_done >= proxy_started && kernel_stopped >= kernel_started;
  }
  friend bool operator==(const OpSample&, const OpSample&) = default;
};

// One flow. Sampled when it changed and a second has passed since it last was,
// and at the first tick at which it has an open operation but stands still.
struct FlowSample {
  uint32_t index = 0;  // line in the board
  uint32_t comm = 0;   // CommSample::index
  uint32_t comm_generation = 0;
  uint8_t channel = 0;
  mc_direction direction = MC_SEND;
  int32_t peer = 0;
  uint32_t owner_pid = 0;
  mc_flow_state state = MC_FLOW_IDLE;
  uint16_t open_ops = 0;
  uint64_t op_id = 0;
  uint32_t total = 0;
  uint32_t posted = 0;
  uint32_t ready = 0;
  uint32_t transmitted = 0;
  uint32_t done = 0;
  uint32_t chunk_bytes = 0;
  uint64_t state_ns = 0;
  uint64_t moved_ns = 0;
  uint64_t posted_ns = 0;
  uint64_t ready_ns = 0;
  uint64_t transmitted_ns = 0;
  uint64_t done_ns = 0;
  uint64_t ops_done = 0;
  uint64_t steps_done = 0;
  uint64_t bytes = 0;
  std::array<uint64_t, 3> wait_ns{};
  uint64_t last_op_id = 0;
  uint64_t last_first_ns = 0;
  uint64_t last_final_ns = 0;
  uint64_t peer_wait_polls = 0;
  friend bool operator==(const FlowSample&, const FlowSample&) = default;
};

// What /proc says of one thread. Counters are cumulative.
struct ThreadSample {
  uint32_t tid = 0;    // in the agent's pid namespace; 0: not resolved
  uint32_t roles = 0;  // enum mc_thread_role
  char state = '?';    // /proc/PID/task/TID/stat: R S D T t Z; X: ended
  uint64_t run_ns = 0;       // schedstat: time on a CPU
  uint64_t runq_wait_ns = 0; // schedstat: time runnable, waiting for a CPU
  uint64_t slices = 0;       // schedstat: times it was given a CPU; 0 unknown
  std::string wchan;         // kernel function it sleeps in; empty unknown
  friend bool operator==(const ThreadSample&, const ThreadSample&) = default;
};

// What the host says of a process. Absent in replays of profiler callbacks.
struct HostSample {
  char state = '?';  // of the main thread
  uint64_t throttled_ns = 0;       // cgroup cpu.stat, cumulative
  uint64_t throttled_periods = 0;  // cgroup cpu.stat nr_throttled, cumulative
  uint64_t major_faults = 0;       // cumulative
  std::vector<ThreadSample> threads;
  friend bool operator==(const HostSample&, const HostSample&) = default;
};

enum class ProcessStatus : uint8_t {
  kRunning = 0,
  kExited = 1,     // gone; last sample of this process
  kUnreadable = 2, // there, but its board cannot be read any more: see `problem`
};

struct ProcessSample {
  ProcessKey key;
  ProcessStatus status = ProcessStatus::kRunning;
  std::string problem;    // why kUnreadable
  std::string name;       // process name; only when new
  std::string container;  // container id or empty; only when new
  uint32_t profiler_api = 0;
  uint32_t level = 0;  // enum mc_level
  uint64_t last_callback_ns = 0;
  std::array<uint64_t, MC_LOSS_COUNT> lost{};  // cumulative
  uint64_t torn_reads = 0;                     // lines given up on, cumulative
  std::optional<HostSample> host;              // when sampled this tick
  std::optional<ProcessHardware> hardware;     // when sampled this tick
  std::optional<GpuWorkSample> gpu_work;       // of its GPU board; when it changed
  std::vector<CommSample> comms;
  std::vector<OpSample> ops;
  std::vector<FlowSample> flows;
  friend bool operator==(const ProcessSample&, const ProcessSample&) = default;
};

// A gap in what is seen, in words for the user: "what; what is lost by it".
struct BlindSpot {
  std::string what;  // "process 1234 has no board"
  std::string lost;  // "its operations are not visible"
  std::string fix;   // "set NCCL_PROFILER_PLUGIN=..." or empty
  friend bool operator==(const BlindSpot&, const BlindSpot&) = default;
};

struct Snapshot {
  std::string host;       // identity of the host (name; machine-id + boot-id in host_id)
  std::string host_id;
  uint64_t t_ns = 0;      // CLOCK_MONOTONIC of that host at the tick
  uint64_t wall_ns = 0;   // CLOCK_REALTIME at the tick
  uint64_t interval_ns = 0;  // sampling interval in force
  std::vector<ProcessSample> processes;  // only those with something to say
  std::optional<HardwareSample> hardware;  // when sampled this tick
  std::vector<BlindSpot> blind_spots;    // all in force; only when they changed
  bool blind_spots_changed = false;
  friend bool operator==(const Snapshot&, const Snapshot&) = default;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_DECODE_SNAPSHOT_H_
