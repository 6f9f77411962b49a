// SPDX-License-Identifier: Apache-2.0
//
// What a lab job is: its size, its communicators, its work and its faults. Made by
// the launcher from the command line, sent to every rank as JSON, and never
// changed afterwards. Plain data; errors are absl::Status with a text for the user.
#ifndef MYCROFT_TOOLS_LAB_JOB_CONFIG_H_
#define MYCROFT_TOOLS_LAB_JOB_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tools/lab/job/fault.h"
#include "tools/lab/job/verbs.h"

namespace mycroft::lab {

enum class Layout { kFlat, kDpPp, kDpTp };

enum class Transport { kTcp, kVerbs };

// Operations of one iteration, the letters of the truth file. kAllToAll: a group of messages to
// and from everybody, of sizes that change with every pair and iteration, as tokens are sent to
// experts.
enum class OpKind { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kSendRecv, kAllToAll };

struct JobConfig {
  int ranks = 4;
  Layout layout = Layout::kFlat;
  int dp = 0;  // 0 in a flat job
  int pp = 0;
  int tp = 0;
  int64_t iters = 0;      // 0: until `duration_s`
  double duration_s = 0;  // 0: until `iters`
  int channels = 2;
  int64_t bytes = 4 << 20;  // of one message of `ops`
  std::vector<OpKind> ops = {OpKind::kAllReduce};
  int64_t compute_us = 20000;
  int64_t first_us = 0;  // added to the first compute phase
  double noise_percent = 0;
  int microbatches = 2;
  int64_t p2p_bytes = 1 << 20;     // between pipeline stages, per microbatch and direction
  int64_t tp_bytes = 512 << 10;    // tensor-parallel AllReduce per microbatch
  int64_t world_bytes = 64 << 10;  // AllReduce of all ranks at the end of an iteration
  bool uneven_p2p = false;
  std::vector<FaultSpec> faults;
  std::vector<EventSpec> events;
  std::string plugin;  // empty: NCCL_PROFILER_PLUGIN as NCCL resolves it
  bool plugin_given = false;
  int profiler_api = 0;  // 0: the newest that the plugin exports
  uint64_t seed = 1;
  int64_t socket_buffer = 128 << 10;  // SO_SNDBUF and SO_RCVBUF; 0: the system's choice
  std::string keep_open;  // a file that each rank holds open; "{rank}" is its number
  double connect_after_s = 0;  // from the first communicator's start to its connections
  Transport transport = Transport::kTcp;
  std::vector<std::string> ib_devices;  // rank i uses device i modulo their number
  VerbsOptions ib;
  bool ib_flush = false;      // RDMA_READ after every arrival, as with GPU Direct
  bool ib_spin = false;       // progress threads never sleep while there is work
  double abort_after_s = 10;  // from the first dead or failed rank to the abort of all
};

// A communicator: `members[r]` is the job rank of its rank r.
struct CommPlan {
  std::string name;
  uint64_t id = 0;
  std::vector<int> members;
  bool ring = false;       // carries collectives
  bool p2p = false;        // neighbours exchange messages
  bool p2p_wraps = false;  // the last is a neighbour of the first
  bool p2p_all = false;    // everybody is a neighbour of everybody
};

// Place of a job rank in the grid; -1: no such dimension.
struct Role {
  int dp = -1;
  int pp = -1;
  int tp = -1;
};

const char* ToString(Layout layout);        // "flat", "dpxpp", "dpxtp"
const char* ToString(OpKind op);            // "ar", "rs", "ag", "bc", "sr", "aa"
const char* ToString(Transport transport);  // "tcp", "verbs"
absl::StatusOr<Transport> ParseTransport(const std::string& text);
absl::StatusOr<std::vector<std::string>> ParseDevices(const std::string& text);  // "rxeA,rxeB"
absl::StatusOr<Layout> ParseLayout(const std::string& text);
absl::StatusOr<std::vector<OpKind>> ParseOps(const std::string& text);  // "ar,rs,ag"

// Fills in the missing grid dimension and checks every bound.
absl::Status Complete(JobConfig* config);
// The faults act on the transport of the job. Call when `faults` and `transport` are set.
absl::Status CheckFaults(const JobConfig& config);
// The RDMA device of a rank; empty: none.
std::string DeviceOf(const JobConfig& config, int job_rank);

// flat: "world". dpxpp (job rank = stage * dp + index): "world", "dp<stage>",
// "pp<dp index>". dpxtp (job rank = index * tp + tp index): "world", "tp<dp index>",
// "dp<tp index>". A communicator of one rank is left out.
std::vector<CommPlan> PlanComms(const JobConfig& config);
Role RoleOf(const JobConfig& config, int job_rank);

nlohmann::json ToJson(const JobConfig& config);
absl::StatusOr<JobConfig> ConfigFromJson(const nlohmann::json& json);

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_JOB_CONFIG_H_
