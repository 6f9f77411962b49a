// SPDX-License-Identifier: Apache-2.0
//
// Which component it is: what the hosts know of their hardware, held against what
// the callbacks say (design section 5.3). The wait graph and the blames name a
// place; here counters, states, links and threads at that place confirm the
// component, name another one, or leave the verdict as it is.
//
//   suspect  what the callbacks say: "the GPU of rank 2", "the path from 0 to 1"
//   fact     what a host knows: "port mlx5_0/1 went down at t"
//
// A fact decides only if it has a mechanism for the suspect (a NIC that is down does
// not keep a GPU from taking data that has arrived), came first, and is not itself
// explained by another fact (a flapping link explains retries, a starved receiver
// explains a receive queue that is empty). Facts that name different culprits give
// "unknown" with candidates. Facts that decide nothing are listed as rejected.
//
// Pure function. Without hardware samples of the workers concerned nothing is
// changed. Results hold pointers into the model, valid until its next Apply().
#ifndef MYCROFT_USERSPACE_ATTRIBUTE_EVIDENCE_H_
#define MYCROFT_USERSPACE_ATTRIBUTE_EVIDENCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "userspace/attribute/incident.h"
#include "userspace/model/hardware.h"
#include "userspace/model/job.h"

namespace mycroft {

// What the callbacks say of a place.
enum class SuspectShape : uint8_t {
  kGpu,     // data is there and its GPU does not take it, or fills no slots
  kFlush,   // the path NIC - PCIe - GPU
  kNode,    // several slow or broken edges share this worker
  kEdge,    // one path between two workers
  kHost,    // late, starved, or its proxy thread does not take up an operation
  kAbsent,  // has not entered the operation that its peers wait in
  kDead,    // its process is gone
  kEnded,   // its progress thread has ended, as after a failed request: any of its paths
};

struct Suspect {
  SuspectShape shape = SuspectShape::kGpu;
  const Worker* worker = nullptr;        // kEdge: the sender
  const Worker* other = nullptr;         // kEdge: the receiver
  std::vector<WorkerOrder::Edge> edges;  // kNode: the broken or slow ones
  Component component = Component::kUnknown;
};

struct EvidenceInput {
  const HardwareModel* hardware = nullptr;
  const std::vector<Worker*>* job = nullptr;
  std::vector<Suspect> suspects;
  std::vector<WorkerOrder::Edge> healthy_edges;  // carry data as fast as ever; may be empty
  bool stuck = true;                             // else slow
  uint64_t onset_ns = 0;
  uint64_t now_ns = 0;
  uint64_t late_ns = 0;  // a cause may be seen that much after the onset (polls, cycles)
  // Slow: the share of the time that was lost, 0 to 1; what is to be its cause must explain
  // half of it.
  double lost_share = 0;
  // Slow: what a step over the slowest edge of each worker takes longer than usual.
  WorkerMap<double> transit_excess_ns;
};

// False: a thread that waits `turn_ns` for a CPU each time it is woken does not explain that
// a step takes so much longer. One that is woken a thousand times a second waits a thousand
// times, but a step takes only a few turns: posted, tested, freed.
bool TurnsExplain(double turn_ns, double transit_excess_ns);

// What is said of one suspect.
struct Opinion {
  bool changed = false;       // false: the callbacks' verdict stands, the rest is empty
  bool after_effect = false;  // explained by the opinion on another suspect: not named
  const Worker* worker = nullptr;
  Component component = Component::kUnknown;
  std::vector<Component> candidates;  // when kUnknown
  double confidence = 0;
  std::string what;   // "the NIC of rank 1 (port mlx5_0/1 went down)"
  std::string where;  // device, port, bridge
};

struct EvidenceResult {
  std::vector<Opinion> opinions;  // one for each suspect
  std::vector<Opinion> unasked;   // decisive facts, when there is no suspect at all
  std::vector<std::string> evidence;
  std::vector<Rejected> rejected;
};

EvidenceResult JudgeHardware(const EvidenceInput& input);

// Queue pairs that carry the data of `from` to `to`, by both ends of the connection
// where both are seen, else by address and posting thread.
std::vector<const Qp*> QpsOfEdge(const HardwareModel& hardware, const Worker& from,
                                 const Worker& to);

// Connected queue pairs on which no post was ever seen while their port sends: the
// GPU posts itself, or a path that the probes do not see. Silence says nothing then.
std::vector<BlindSpot> InvisibleTraffic(const HardwareModel& hardware);

// One for each host with probes that could not attach, or only by a poorer way.
std::vector<BlindSpot> MissingProbes(const HardwareModel& hardware);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_ATTRIBUTE_EVIDENCE_H_
