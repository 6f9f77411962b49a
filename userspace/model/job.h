// SPDX-License-Identifier: Apache-2.0
//
// The job as the snapshots tell it: workers (one per process, or per GPU of a
// process that drives several), communicators, operations, flows. Detection and
// attribution read it; only Apply() writes it.
//
//   Worker  --has-->  Member (its rank in one communicator)  --of-->  Comm
//   Worker  --ran-->  Op (in order of enqueue, over all its communicators)
//
// Not thread-safe. Memory is bounded: histories are rings, tables are capped.
// Pointers stay valid until the next Apply().
#ifndef MYCROFT_USERSPACE_MODEL_JOB_H_
#define MYCROFT_USERSPACE_MODEL_JOB_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "userspace/decode/snapshot.h"
#include "userspace/model/view.h"

namespace mycroft {

struct Comm;
struct Worker;

// A worker's part in one communicator.
struct Member {
  Comm* comm = nullptr;
  Worker* worker = nullptr;
  CommSample info;
  std::map<uint32_t, FlowSample> flows;  // by line of the board
  // Completed operations since the communicator was made, to map ordinals.
  uint64_t last_coll_ordinal = 0;
  bool has_coll = false;
};

struct Op {
  OpSample s;
  Member* member = nullptr;
  uint64_t end_ns = 0;  // 0: in flight, or its end cannot be seen
  bool complete = false;
  bool settled = false;  // went into Worker::history
  uint64_t seen_ns = 0;  // tick of the last sample
};

// Times of one cycle position, nanoseconds; see Settled.
enum Share {
  kHostGap = 0,  // nothing was enqueued on the worker
  kOwnGpu,       // data or slots were there, its GPU did not take them
  kFlush,        // local NIC - PCIe - GPU path
  kSendNet,      // handed to the NIC, not acknowledged
  kSendPeer,     // the receiver grants no slot
  kRemote,       // the sending peer
  kShareCount,
};

// A completed operation in the order of its worker. The worker's time line is
// cut at the ends of operations: every instant belongs to the oldest open
// operation, or to the gap before the next one (no operation open).
struct Settled {
  uint64_t id = 0;
  uint64_t key = 0;        // communicator, kind, function, peer, size
  uint64_t shape_key = 0;  // the same without the size
  Member* member = nullptr;
  mc_op_kind kind = MC_OP_NONE;
  int32_t peer = -1;  // p2p
  uint64_t ordinal = 0;
  uint64_t start_ns = 0;
  uint64_t end_ns = 0;   // never before the previous one's end
  uint64_t head_ns = 0;  // time as oldest open operation
  double share[kShareCount] = {};
  // Step times for the transit over an edge; valid where steps > 0.
  uint32_t send_steps = 0, recv_steps = 0;
  uint64_t send_posted_sum_ns = 0, send_done_sum_ns = 0;
  uint64_t recv_posted_sum_ns = 0, recv_data_sum_ns = 0;
  uint64_t bytes = 0;  // sent + received
};

constexpr uint64_t kHostHistoryNs = 6'000'000'000;
constexpr uint64_t kHostStepNs = 200'000'000;

struct HostAt {
  uint64_t t_ns = 0;  // of the snapshot
  HostSample sample;
};

struct Worker {
  size_t index = 0;
  std::string host;
  ProcessKey key;
  std::string name;
  std::string container;
  int32_t job_rank = -1;  // in the largest communicator
  ProcessStatus status = ProcessStatus::kRunning;
  uint64_t exited_ns = 0;
  std::map<uint32_t, std::unique_ptr<Member>> members;  // by line of the board
  std::map<uint64_t, Op> ops;                           // by id: in flight and recent
  uint64_t open_from = 0;                               // all with a smaller id are settled
  size_t settled_ops = 0;                               // how many of ops are settled
  std::deque<Settled> history;                          // completed, oldest first
  uint64_t settled_count = 0;                           // ever, to index history
  uint64_t last_end_ns = 0;                             // end of the last settled operation
  uint64_t last_seen_ns = 0;
  uint64_t last_callback_ns = 0;
  uint32_t level = 0;
  uint32_t profiler_api = 0;
  std::array<uint64_t, MC_LOSS_COUNT> lost{};
  uint64_t torn_reads = 0;
  // What the host said of the process: the newest of the last kHostHistoryNs, oldest first,
  // about kHostStepNs apart; empty without host samples.
  std::deque<HostAt> host_samples;

  const HostSample* host_now() const {
    return host_samples.empty() ? nullptr : &host_samples.back().sample;
  }

  // The oldest operation in flight; nullptr: none.
  const Op* HeadOp() const;
  bool alive() const { return status == ProcessStatus::kRunning; }
};

// Order of workers that does not depend on addresses, so that a replay walks its
// containers in the same order as the live agent did.
struct WorkerOrder {
  bool operator()(const Worker* a, const Worker* b) const {
    return (a != nullptr ? a->index + 1 : 0) < (b != nullptr ? b->index + 1 : 0);
  }
  using Edge = std::pair<const Worker*, const Worker*>;
  bool operator()(const Edge& a, const Edge& b) const {
    if ((*this)(a.first, b.first)) return true;
    if ((*this)(b.first, a.first)) return false;
    return (*this)(a.second, b.second);
  }
};
template <typename V>
using WorkerMap = std::map<const Worker*, V, WorkerOrder>;
using WorkerSet = std::set<const Worker*, WorkerOrder>;
template <typename V>
using EdgeMap = std::map<WorkerOrder::Edge, V, WorkerOrder>;
using EdgeSet = std::set<WorkerOrder::Edge, WorkerOrder>;

struct Comm {
  uint64_t id = 0;
  std::string name;
  int32_t nranks = 0;
  std::map<int32_t, Member*> members;  // by rank; those seen
  bool finalized = false;
};

class JobModel {
 public:
  void Apply(const Snapshot& snapshot);

  uint64_t now_ns() const { return now_ns_; }
  const std::vector<std::unique_ptr<Worker>>& workers() const { return workers_; }
  const std::map<uint64_t, std::unique_ptr<Comm>>& comms() const { return comms_; }
  const std::vector<BlindSpot>& source_blind_spots() const { return blind_; }
  uint64_t interval_ns() const { return interval_ns_; }
  uint64_t malformed() const { return malformed_; }
  // The operation of this communicator's member with that place in the sequence,
  // in flight or recent; nullptr when it has not entered it or it is forgotten.
  static const Op* FindColl(const Member& member, uint64_t ordinal);
  static const Op* FindP2p(const Member& member, mc_op_kind kind, int32_t peer, uint64_t ordinal);
  // Groups of workers that share communicators, directly or through others.
  std::vector<std::vector<Worker*>> Jobs() const;
  JobView View() const;

 private:
  void ApplyProcess(const Snapshot& snapshot, const ProcessSample& process);
  Worker* WorkerOf(const Snapshot& snapshot, const ProcessSample& process, size_t occurrence);
  void Settle(Worker& worker);
  void RankWorkers();

  uint64_t now_ns_ = 0;
  uint64_t wall_ns_ = 0;
  uint64_t interval_ns_ = 100'000'000;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::map<uint64_t, std::unique_ptr<Comm>> comms_;
  std::map<std::string, std::vector<BlindSpot>> blind_by_host_;
  std::vector<BlindSpot> blind_;
  // Lines of a process to the worker that owns them (several when one process
  // drives several GPUs).
  struct ProcessIndex {
    std::vector<Worker*> workers;
    std::map<uint32_t, Worker*> by_comm_line;
  };
  std::map<std::pair<std::string, ProcessKey>, ProcessIndex> processes_;
  uint64_t malformed_ = 0;
};

// When an operation, or a flow of it, last moved; not before it became the head of the line.
uint64_t LastMovement(const Worker& worker, const Op& op);

// How long the oldest operation of this worker usually takes, ns: the second longest of its
// last `window` (one long wait is not a habit); nullopt before its rhythm is known.
std::optional<uint64_t> UsualHead(const Worker& worker, size_t window);

// Identity of an operation in the repeating sequence of a training step.
uint64_t OpKey(const Op& op, bool with_size);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_MODEL_JOB_H_
