// SPDX-License-Identifier: Apache-2.0
//
// The job as a person wants to see it at one instant: what `mycroft top`,
// `--json` and the metrics print. Values only, computed from the model on
// request; nothing in here is kept up to date.
#ifndef MYCROFT_USERSPACE_MODEL_VIEW_H_
#define MYCROFT_USERSPACE_MODEL_VIEW_H_

#include <cstdint>
#include <string>
#include <vector>

#include "userspace/decode/snapshot.h"
#include "userspace/model/devices.h"

namespace mycroft {

struct FlowView {
  uint8_t channel = 0;
  mc_direction direction = MC_SEND;
  int32_t peer = 0;           // rank in the communicator
  mc_flow_state state = MC_FLOW_IDLE;
  uint64_t state_age_ns = 0;  // how long the head-of-line state has held
  uint32_t total = 0, posted = 0, ready = 0, transmitted = 0, done = 0;
  uint64_t bytes = 0;         // lifetime
  std::array<uint64_t, 3> wait_ns{};  // lifetime, see mc_board_flow
};

// One rank in one communicator.
struct RankView {
  int32_t rank = 0;      // in this communicator
  int32_t job_rank = 0;  // in the largest communicator that contains the process
  std::string host;
  ProcessKey process;
  std::string process_name;
  char process_state = '?';  // /proc state of the main thread; 'X' gone
  mc_func func = MC_FUNC_UNKNOWN;  // last or current operation
  uint64_t ordinal = 0;
  uint64_t op_bytes = 0;     // size of the operation's buffer on this rank
  bool in_flight = false;
  double progress = 0;       // 0..1 of the current operation
  uint64_t age_ns = 0;       // in flight: since it started; else since it ended
  double bytes_per_s = 0;    // of the last completed operation of that kind
  double baseline_bytes_per_s = 0;  // 0: not yet known
  mc_flow_state wait = MC_FLOW_IDLE;  // dominating head-of-line state
  uint64_t wait_age_ns = 0;
  std::vector<FlowView> flows;
};

struct CommView {
  uint64_t comm_id = 0;
  std::string name;
  int32_t nranks = 0;
  bool finalized = false;
  std::vector<RankView> ranks;  // those seen, by rank
};

struct JobView {
  uint64_t t_ns = 0;
  uint64_t wall_ns = 0;
  uint32_t processes = 0;
  uint32_t level = 0;  // enum mc_level, the lowest of the processes
  std::vector<CommView> comms;  // by size, largest first
  std::array<uint64_t, MC_LOSS_COUNT> lost{};  // summed over processes
  uint64_t torn_reads = 0;
  std::vector<BlindSpot> blind_spots;
  std::vector<DeviceView> devices;  // of all hosts
  std::vector<ProbeSample> probes;  // of all hosts, by name; the first host's text
  // Processes whose GPU is watched through CUPTI, and those of them of which each kernel is
  // recorded, which costs them time.
  uint32_t gpu_watched = 0, gpu_recorded = 0;
};

// "AllReduce", "send: waits for the GPU", ...; never null.
const char* ToString(mc_func func);
const char* ToString(mc_flow_state state);
const char* ToString(mc_datatype type);
// Bytes of one element; 0 for unknown types.
uint32_t DatatypeBytes(mc_datatype type);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_MODEL_VIEW_H_
