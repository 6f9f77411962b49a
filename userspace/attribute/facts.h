// SPDX-License-Identifier: Apache-2.0
//
// What the hosts know that could explain an incident: one Fact for each thing that
// is wrong with a device, port, queue pair, link or thread of the job, with its time
// and the kinds of suspects that it has a mechanism for. Which facts decide is the
// business of evidence.h.
//
// Pure functions of the model.
#ifndef MYCROFT_USERSPACE_ATTRIBUTE_FACTS_H_
#define MYCROFT_USERSPACE_ATTRIBUTE_FACTS_H_

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "userspace/attribute/evidence.h"

namespace mycroft {

enum class FactKind : uint8_t {
  kGpuGone,  // does not answer any more, or was removed
  kNicGone,
  kXid,               // the driver reported a hardware error of the GPU
  kGpuHangs,          // the driver was asked about it and does not come back
  kThermal,           // its clocks are down for heat
  kPowerLimit,        // its clocks are down for power, or somebody set them so
  kEccErrors,         // errors of its memory that were not corrected, rows not remapped
  kEccCorrected,
  kNvlinkErrors,      // a link went down, or had to be trained again
  kNvlinkReplays,
  kSpins,             // "100 % busy" at a fraction of its power
  kKernelsSlow,       // its compute kernels take longer than they did
  kCopiesSlow,        // its copies take longer per byte than they did
  kStreamBlocked,     // NCCL's kernel waits behind one that does not end
  kKernelDoesNotEnd,  // one that is not NCCL's, and the host waits for it
  kNotScheduled,      // NCCL's kernel finds no place on the GPU
  kNothingInFront,    // NCCL's kernel is the oldest of its stream
  kNothingLaunched,   // all that was launched is finished: the host is late
  kPortDown,          // is not ACTIVE
  kPortFlap,          // went down and came back
  kPhysicalErrors,    // symbol errors and the like: cable, port
  kWrongGid,          // never completed a request; the two ends' GIDs do not fit
  kMtuMismatch,       // sends packets that the other end's network cannot take
  kRetryExceeded,     // completion status 12: many causes
  kReceiverNotReady,  // RNR
  kBadRequest,        // remote access, protection: the request itself is wrong
  kPeerQpGone,        // the other end was destroyed while its process lives
  kPacketLoss,        // retries, out of sequence; both ports healthy
  kCongestion,        // CNP, ECN, pauses received
  kPauses,            // the receiver sends pause frames, PCIe does not explain it
  kPcieCeiling,       // a path is used as fast as its slowest link allows
  kLinkDegraded,      // below what both ends allow, under load
  kAerUncorrectable,
  kAerCorrectable,
  kAcsRedirect,
  kDmaFault,
  kStarved,  // a thread wanted a CPU and got none
  kReclaim,  // direct reclaim: memory pressure
  kBlocked,  // uninterruptible sleep
  kOomKill,
  kMemlock,    // registration failed, and the limit is too low
  kReads,      // the main thread reads from a file, pipe or socket
  kQpStalled,  // posts without completions where the other end's port lives
  kQpBroken,   // in the error state, nobody saw why
};

enum class Weight : uint8_t {
  kSupport,   // printed, decides nothing
  kStrong,    // decides when nothing contradicts
  kDecisive,  // a state that cannot be anything else
};

struct Fact {
  FactKind kind = FactKind::kPacketLoss;
  Weight weight = Weight::kSupport;
  Component component = Component::kUnknown;
  const Worker* worker = nullptr;  // whose device or thread it is
  const Worker* other = nullptr;   // given: it explains the edges between the two only
  uint64_t since_ns = 0;           // of a polled value: when it was read; 0: not known
  uint32_t shapes = 0;             // ShapeBit of the suspects that it can cause
  std::string device;              // "mlx5_0/1", "0000:3b:00.0"; empty: a thread
  std::string what;                // a few words for the summary
  std::string text;                // a sentence with figures
  std::string refused;             // given: why it is no cause here
  bool suspect_path = false;       // the GPU's slot, riser or power may be at fault as well
  bool disabled = false;           // kPortDown: by its own end, not for want of the other
  bool refused_request = false;    // kQpBroken: by the other end, not for want of an answer
};

constexpr uint32_t ShapeBit(SuspectShape shape) { return 1u << static_cast<int>(shape); }

std::vector<Fact> FindFacts(const EvidenceInput& input);

// For the files that find facts: printf of at most 511 bytes, and a new fact in `facts`.
template <typename... Args>
std::string FactText(const char* format, Args... args) {
  char text[512];
  std::snprintf(text, sizeof(text), format, args...);
  return text;
}
Fact& AddFact(std::vector<Fact>* facts, FactKind kind, Weight weight, Component component,
              const Worker& worker, uint32_t shapes, uint64_t since_ns);
// Of one worker, what its GPU board says (gpu_facts.cc).
void FindGpuFacts(const EvidenceInput& input, const Worker& worker, std::vector<Fact>* facts);

// A connection of the job that is broken for good: a queue pair in the error state, or with
// a completion that tells of one, and no operation went on after it. Its progress thread
// has ended or will not go on, so that flows show their last state from then on. Only the
// first to fail, and those that failed with it.
struct BrokenEdge {
  const Worker* from = nullptr;  // sends data
  const Worker* to = nullptr;
  const Qp* qp = nullptr;  // of either end
  uint64_t failed_ns = 0;
  bool named = false;  // with which error is known
};
std::vector<BrokenEdge> BrokenEdges(const HardwareModel& hardware, const std::vector<Worker*>& job);

// Whether `cause`, at the same place and not later, makes `effect` happen.
bool Explains(const Fact& cause, const Fact& effect);

// The GPU of a worker when its process has exactly one open; empty: not known.
std::string GpuOf(const HardwareModel& hardware, const Worker& worker);
// Ports that the queue pairs of a worker's process use (flush loops included). Where no queue
// pair is seen (no probes): the port of the only RDMA device that it has open, if it is one.
std::vector<const Port*> PortsOf(const HardwareModel& hardware, const Worker& worker);
std::string PortName(const Port& port);  // "mlx5_0/1"
// Bytes over the link of a device: as it counts them, else what its port, or for a
// GPU the flows of the worker, have moved.
CounterHistory TrafficOf(const HardwareModel& hardware, const Worker& worker,
                         const PciDevice& device);
// Edges among the workers of a job on which data was ever sent, by their flows.
EdgeSet EdgesOfFlows(const std::vector<Worker*>& job);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_ATTRIBUTE_FACTS_H_
