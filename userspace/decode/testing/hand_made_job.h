// SPDX-License-Identifier: Apache-2.0
//
// For tests, fuzzers and benchmarks only: a job written by hand, line by line, as an
// agent would have sampled it. Nothing happens by itself: the test enters and ends
// operations, sets the states of flows, moves the clock, and takes what changed.
//
//   HandMadeJob job(4);                          // "world" is communicator 0
//   for (int r = 0; r < 4; ++r) job.Enter(r);    // an AllReduce each
//   job.Ring(1, MC_FLOW_SEND_GPU, MC_FLOW_RECV_GPU);
//   job.Sleep(2000);
//   job.Feed(pipeline);                          // or model.Apply()
//
// Cycle() plays one training step of a ring with given costs, for detection and
// blame. Ranks are job ranks; peers of flows and of p2p are ranks in the
// communicator. Times in ns of one clock, durations in ms. References to
// operations stay valid for 60 more of that rank, others for the life of the job. Not
// thread-safe.
#ifndef MYCROFT_USERSPACE_DECODE_TESTING_HAND_MADE_JOB_H_
#define MYCROFT_USERSPACE_DECODE_TESTING_HAND_MADE_JOB_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "userspace/decode/snapshot.h"

namespace mycroft {

class HandMadeJob {
 public:
  struct Options {
    int ranks = 4;
    int ranks_per_host = 0;  // 0: all on one
    int channels = 2;        // of a collective: one flow each to the next, from the previous
    uint64_t start_ns = 1'000'000'000'000;
  };
  explicit HandMadeJob(int ranks) : HandMadeJob(Options{.ranks = ranks}) {}
  explicit HandMadeJob(const Options& options);

  int ranks() const { return options_.ranks; }
  uint64_t now_ns() const { return now_ns_; }
  uint64_t start_ns() const { return options_.start_ns; }
  void Sleep(double ms) { now_ns_ += static_cast<uint64_t>(ms * 1e6); }

  // ---- communicators: returns its number; ranks in it in the order given --------
  int AddComm(const std::string& name, const std::vector<int>& job_ranks);
  CommSample& Comm(int rank, int comm = 0);
  void Finalize(int rank, int comm = 0);

  // ---- operations ------------------------------------------------------------------
  // Enqueued now, with the flows of a ring open: progress not begun.
  OpSample& Enter(int rank, int comm = 0, mc_func func = MC_FUNC_ALLREDUCE,
                  uint64_t count = 1 << 20);
  OpSample& EnterP2p(int rank, int comm, mc_op_kind kind, int peer, uint64_t count = 1 << 20);
  // Without any proxy: a communicator inside one node.
  OpSample& EnterSilent(int rank, int comm = 0, mc_func func = MC_FUNC_ALLREDUCE);
  // All its steps are done now.
  void Finish(int rank, OpSample& op);
  void EnterAll(int comm = 0);
  void FinishAll(int comm = 0);  // of every rank, all that are in flight
  OpSample& Newest(int rank, int comm = 0);

  // ---- flows -----------------------------------------------------------------------
  // Made when it does not exist; of the newest operation on this communicator.
  FlowSample& Flow(int rank, int comm, int channel, mc_direction direction, int peer);
  // The state holds since now; counters that fit the state.
  void Set(FlowSample& flow, mc_flow_state state);
  // All channels of the ring at this rank: what sends and receives wait for.
  void Ring(int rank, mc_flow_state send, mc_flow_state recv, int comm = 0);

  // ---- processes -------------------------------------------------------------------
  ProcessSample& Process(int rank);  // its own fields; comms, ops and flows are filled by Take()
  void Exit(int rank);
  void Hide(int rank);         // never sampled: a host without an agent
  HostSample& Host(int rank);  // there from now on; sampled at every Take()

  // ---- one step of training --------------------------------------------------------
  struct Cost {
    double host_ms = 8;  // from the end of the last operation to the next call
    double gpu_ms = 1;   // data is there and its GPU does not take it
    double flush_ms = 0.1;
    double net_ms = 0.3;         // in transit to the next rank
    bool leaves_slowly = false;  // acknowledged as late as it arrives
  };
  // A ring collective of all of `comm`, entered and ended; the clock stands at its end.
  // Takes max(host) + the largest of the other costs + 1 ms.
  void Cycle(const std::vector<Cost>& costs, int comm = 0);

  // ---- what the agents saw -----------------------------------------------------------
  // One snapshot per host with what changed since the last call.
  std::vector<Snapshot> Take();
  template <typename Pipeline>
  void Feed(Pipeline& pipeline) {
    for (const Snapshot& snapshot : Take()) pipeline.Feed(snapshot);
  }
  template <typename Model>
  void Apply(Model& model) {
    for (const Snapshot& snapshot : Take()) model.Apply(snapshot);
  }

 private:
  struct CommPlan {
    std::string name;
    std::vector<int> ranks;
  };
  struct Rank {
    ProcessSample process;
    bool hidden = false, gone = false, announced = false;
    std::optional<HostSample> host;
    std::map<int, CommSample> comms;  // by number of the communicator
    std::map<uint64_t, OpSample> ops;
    std::map<std::tuple<int, int, int, int>, FlowSample> flows;
    std::map<int, CommSample> sent_comms;
    std::map<uint64_t, OpSample> sent_ops;
    std::map<uint32_t, FlowSample> sent_flows;
    std::map<int, uint64_t> colls;  // ordinals
    std::map<std::tuple<int, int, int>, uint64_t> messages;
    uint64_t next_id = 1;
  };
  int RankIn(int rank, int comm) const;
  OpSample& Add(int rank, int comm, mc_op_kind kind, mc_func func, uint64_t count, int peer);

  Options options_;
  uint64_t now_ns_;
  std::vector<CommPlan> plans_;
  std::vector<Rank> ranks_;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_DECODE_TESTING_HAND_MADE_JOB_H_
