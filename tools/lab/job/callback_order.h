// SPDX-License-Identifier: Apache-2.0
//
// NCCL's order of profiler callbacks as a checker over the calls that one process
// made: which thread calls what, which event is whose parent, in which order events
// start, change state and stop. For tests. It is applied to recordings of real NCCL
// as well as to the lab job: what it asserts is what NCCL does.
#ifndef MYCROFT_TOOLS_LAB_JOB_CALLBACK_ORDER_H_
#define MYCROFT_TOOLS_LAB_JOB_CALLBACK_ORDER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace mycroft::lab {

struct OrderReport {
  std::vector<std::string> violations;  // empty: as NCCL does; at most 20 are kept
  int api = 0;
  bool complete = false;  // the process ended in order: nothing may be left open
  int64_t launches = 0;
  int64_t collectives = 0;
  int64_t messages = 0;  // point to point
  int64_t proxy_ops = 0;
  int64_t steps = 0;
  int64_t refused_sends = 0;  // SendPeerWait repeated
  int64_t kernels = 0;
  int64_t open_events = 0;
  std::map<std::string, int> comms;  // name -> ranks
};

// Lines of a recording; ".gz" is read as well. False with a text in *error.
bool ReadRecording(const std::string& path, std::vector<nlohmann::json>* lines, std::string* error);

// What the transport does with an isend: sockets take it always; verbs refuse until the
// receiver has granted a buffer, and SendPeerWait is then repeated.
enum class Sends { kNeverRefused, kMayBeRefused };
OrderReport CheckOrder(const std::vector<nlohmann::json>& lines,
                       Sends sends = Sends::kNeverRefused);

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_JOB_CALLBACK_ORDER_H_
