// SPDX-License-Identifier: Apache-2.0
//
// Who made the job slow. Every worker's time line is cut into shares (see
// Settled): host gap, own GPU, flush, network, waiting for a peer. Compared with
// the shares of its normal cycles, a culprit has an excess of its own; a victim
// only waits longer for its peers (the idea of wait-state propagation in MPI
// performance tools). The network is judged by edges: the transit time of an edge
//
//   transit = min( mean(received - handed to the NIC), mean(received - buffer posted) )
//
// grows only where the path itself is slow, since a late sender or a receiver
// without a free buffer shortens one of the two.
//
// Pure function of the model.
#ifndef MYCROFT_USERSPACE_ATTRIBUTE_BLAME_H_
#define MYCROFT_USERSPACE_ATTRIBUTE_BLAME_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "userspace/attribute/incident.h"
#include "userspace/detect/cycle.h"
#include "userspace/model/job.h"

namespace mycroft {

struct WorkerShares {
  const Worker* worker = nullptr;
  size_t cycles = 0;                         // in the slow window
  std::array<double, kShareCount> normal{};  // ns per cycle
  std::array<double, kShareCount> now{};     // ns per cycle
  std::array<double, kShareCount> noise{};   // robust standard deviation when normal
  double excess(Share share) const { return now[share] - normal[share]; }
};

struct EdgeTransit {
  const Worker* from = nullptr;
  const Worker* to = nullptr;
  uint64_t comm_id = 0;
  size_t normal_ops = 0, now_ops = 0;
  double normal_ns = 0, now_ns = 0;  // mean transit per step
  double now_total_ns = 0;           // transit x steps, per cycle: an upper bound of the cost
  // A path that loses packets is as fast as ever but for the few operations that wait for a
  // retransmission: only the mean shows them.
  double normal_mean_ns = 0, now_mean_ns = 0;
  size_t late_ops = 0;  // of now_ops: ten times as long as usual
  // Mean of received - acknowledged at the sender. Near zero: the data leaves the
  // sender as slowly as it arrives, so the limit is on the sender's side.
  double lag_ns = 0;
};

enum class BlameKind : uint8_t { kHost, kGpu, kFlush, kNetSender, kNetNode, kNetEdge };

struct Blame {
  BlameKind kind = BlameKind::kGpu;
  const Worker* worker = nullptr;  // kNetEdge: the sender
  const Worker* other = nullptr;   // kNetEdge: the receiver
  double excess_ns = 0;            // per cycle
  std::string why;
  std::vector<WorkerOrder::Edge> edges;  // kNet*: the slow ones it is blamed for
};

struct BlameResult {
  double lost_ns = 0;    // per cycle, of the job
  double normal_ns = 0;  // cycle
  double explained_ns = 0;  // of lost_ns, by the first blame; if that is an edge, by all edges
  bool whole_job_paused = false;
  std::vector<Blame> blames;  // largest first
  std::vector<WorkerShares> shares;
  std::vector<EdgeTransit> edges;
  std::vector<const Worker*> victims;
  std::vector<std::string> evidence;
  std::vector<Rejected> rejected;
  double confidence = 0;
};

// The job has been slow in [since_ns, until_ns]. `detectors` by worker index.
BlameResult FindBlame(const std::vector<Worker*>& job,
                      const std::map<size_t, CycleDetector>& detectors, uint64_t since_ns,
                      uint64_t until_ns);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_ATTRIBUTE_BLAME_H_
