// SPDX-License-Identifier: Apache-2.0
//
// Who waits for whom, now. The oldest operation in flight of every worker is
// looked at through the head-of-line states of its flows (design section 5.1);
// the edges are followed to the sinks: those who wait for nobody. Sinks are the
// culprits, everybody who reaches one is its victim. A cycle without a sink is a
// deadlock.
//
// Pure function of the model; results hold pointers into it, valid until its
// next Apply().
#ifndef MYCROFT_USERSPACE_ATTRIBUTE_WAIT_GRAPH_H_
#define MYCROFT_USERSPACE_ATTRIBUTE_WAIT_GRAPH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "userspace/attribute/incident.h"
#include "userspace/model/job.h"

namespace mycroft {

enum class SinkKind : uint8_t {
  kGpu,          // its GPU does not fill or drain slots
  kFlush,        // NIC - PCIe - GPU path
  kPath,         // data or credit lost between two workers: `worker` sends, `other` receives
  kHostStopped,  // the process is stopped
  kHostStarved,  // its threads want a CPU and do not get one
  kHostProxy,    // the proxy thread does not take up an operation
  kProxyEnded,   // its progress threads have ended, as after a failed request
  kNotEntered,   // has nothing in flight; others wait for it to enter
  kDead,         // the process is gone, its communicators were not finalized
  kLeft,         // it finalized its communicators and is gone, others still wait
  kUnseen,       // a rank that no agent sees
};

struct Sink {
  SinkKind kind = SinkKind::kUnseen;
  const Worker* worker = nullptr;  // nullptr for kUnseen
  const Worker* other = nullptr;   // kPath: the receiver
  const Comm* comm = nullptr;      // where it was met
  int32_t rank = -1;               // kUnseen: rank in `comm`
  std::string where;               // "channel 0, recv from rank 3"
  std::string why;                 // one sentence: the local evidence
  uint64_t since_ns = 0;           // since when the local evidence holds; 0 unknown
  // kPath: counters say that everything the sender finished has arrived: what is
  // missing never left its side.
  bool nothing_in_flight = false;
};

struct WaitStep {
  const Worker* from = nullptr;
  const Worker* to = nullptr;  // nullptr: a rank that is not seen
  std::string why;
};

struct WaitGraph {
  std::vector<Sink> sinks;             // without duplicates
  std::vector<const Worker*> victims;  // reach a sink, are none themselves
  std::vector<WaitStep> chain;         // from the victim farthest away to a sink
  std::vector<const Worker*> cycle;    // a deadlock, when there is no sink
  std::vector<WaitStep> cycle_steps;
};

// Workers whose head operation has not moved for `still_ns` are the ones that wait.
// `not_starved`: of whom it is known that they had a CPU since then; the last two samples of
// /proc may be of a time when they still moved.
WaitGraph BuildWaitGraph(const JobModel& model, const std::vector<Worker*>& job, uint64_t still_ns,
                         const WorkerSet& not_starved = {});

// What the host samples say; false without samples.
bool IsStopped(const Worker& worker);
// All its progress threads are gone and the process lives: its flows will never move, and
// show what they did when the thread ended. False without samples.
bool ProgressEnded(const Worker& worker);
// Share of the wanted CPU time that a thread of this worker did not get since `since_ns`, as
// far back as host samples are kept (0: the worse of the last 0.4 s and the last 1 s); 0
// without two samples. The kernel adds a wait to its figures when the wait is over: a thread
// that is runnable in sample after sample waited whenever it did not run. `text` gets the figures,
// `turn_ns` the mean wait of that thread until it got a CPU (0: not known, or its cgroup was
// throttled), `usual` the share of the same thread or cgroup before `since_ns`, as far back as
// samples are kept (nullopt: not that far): on a busy host every thread waits, always.
double CpuStarvation(const Worker& worker, uint64_t since_ns, std::string* text,
                     double* turn_ns = nullptr, std::optional<double>* usual = nullptr);

// Edges that share workers, directly or through others, together: each group has a
// cause of its own.
std::vector<EdgeSet> ConnectedEdges(const EdgeSet& edges);

std::string NameOf(const Worker& worker);  // "rank 3"
std::string OpName(const Op& op);          // "AllReduce #31 on world"

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_ATTRIBUTE_WAIT_GRAPH_H_
