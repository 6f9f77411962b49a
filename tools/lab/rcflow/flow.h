// SPDX-License-Identifier: Apache-2.0
//
// A stream of messages over one reliable connection between two RDMA devices of this
// host, both ends in one process, with every fault that a program can make by itself.
// A source of truth for tests: what it prints was seen at the verbs interface, without
// Mycroft.
//
// Not thread-safe; runs in the calling thread and polls.
#ifndef MYCROFT_TOOLS_LAB_RCFLOW_FLOW_H_
#define MYCROFT_TOOLS_LAB_RCFLOW_FLOW_H_

#include <signal.h>

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "tools/lab/rcflow/endpoint.h"

namespace mycroft::lab {

enum class FlowFault : uint8_t {
  kNone,
  kBadRemoteKey,  // the sender names a memory key that does not exist
  kNoReceive,     // the receiver posts no more receive requests
};

struct FlowOptions {
  std::string from = "rxeA", to = "rxeB";
  std::optional<uint32_t> gid_index;       // of the sender
  std::optional<uint32_t> peer_gid_index;  // of the receiver
  ConnectionSettings connection;
  std::optional<uint32_t> peer_mtu;  // path MTU that the receiver assumes; default: the same
  bool send = false;                 // SEND to posted receives, not RDMA WRITE
  uint32_t bytes = 65536;            // of a message, at least 16
  uint32_t depth = 16;               // messages under way
  double seconds = 5;
  uint32_t interval_ms = 250;
  FlowFault fault = FlowFault::kNone;
  double fault_after_s = 0;
  // After a bad completion: stay until the time is over, as a job that hangs. Else end.
  bool stay = false;
  const volatile sig_atomic_t* stop = nullptr;  // not 0: the time is over
  std::string truth;  // file for the own fault, as tools/vm/soft-roce writes it; or empty
};

struct FlowResult {
  uint64_t messages = 0;
  uint64_t bad_completions = 0;
  // Messages that the receiver's memory did not hold when they were complete.
  uint64_t wrong_data = 0;
};

// Writes JSON lines to `out`, times in CLOCK_MONOTONIC nanoseconds:
//   {"t_ns", "mbytes_per_s", "messages", "max_latency_us", "state"}   per interval
//   {"t_ns", "bad_completion": {"end", "status", "name", "vendor", "qp"}}
//   {"t_ns", "event", "end"}                                          asynchronous
//   {"t_ns", "summary": {...}}                                        the last one
absl::StatusOr<FlowResult> RunFlow(const FlowOptions& options, FILE* out);

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_RCFLOW_FLOW_H_
