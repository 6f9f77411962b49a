// SPDX-License-Identifier: Apache-2.0
#include "userspace/attribute/wait_graph.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

namespace mycroft {
namespace {

// Spans of starvation: a verdict must come soon, and a quota gives CPU time in bursts.
constexpr uint64_t kSoonNs = 400'000'000;
constexpr uint64_t kLongNs = 1'000'000'000;

struct Edge {
  const Worker* to = nullptr;
  std::string why;
};

struct Node {
  const Worker* worker = nullptr;
  const Op* head = nullptr;
  bool still = false;
  std::vector<Edge> edges;
  std::vector<Sink> sinks;
};

// The rank that the user knows: in the job where that worker is seen.
int32_t JobRank(const Comm& comm, int32_t rank) {
  auto it = comm.members.find(rank);
  return it == comm.members.end() ? rank : it->second->worker->job_rank;
}

std::string FlowName(const FlowSample& flow, const Comm& comm) {
  char text[96];
  std::snprintf(text, sizeof(text), "channel %u, %s rank %d", flow.channel,
                flow.direction == MC_SEND ? "send to" : "recv from", JobRank(comm, flow.peer));
  return text;
}

std::string Counts(const FlowSample& flow) {
  char text[96];
  std::snprintf(text, sizeof(text), "%u of %u steps %s, %u %s", flow.done, flow.total,
                flow.direction == MC_SEND ? "acknowledged" : "consumed",
                flow.direction == MC_SEND ? flow.transmitted : flow.ready,
                flow.direction == MC_SEND ? "handed to the NIC" : "received");
  return text;
}

class Builder {
 public:
  Builder(const JobModel& model, const std::vector<Worker*>& job, uint64_t still_ns,
          const WorkerSet& not_starved)
      : model_(model), job_(job), still_ns_(still_ns), not_starved_(not_starved) {}

  WaitGraph Build() {
    for (const Worker* worker : job_) {
      Node& node = nodes_[worker];
      node.worker = worker;
      node.head = worker->alive() ? worker->HeadOp() : nullptr;
      if (node.head != nullptr) {
        uint64_t moved = LastMovement(*worker, *node.head);
        node.still = model_.now_ns() >= moved + still_ns_;
      }
    }
    for (auto& [worker, node] : nodes_) {
      if (node.head != nullptr) Look(node);
    }
    return Collect();
  }

 private:
  static const FlowSample* FindFlow(const Member& member, uint64_t op_id, uint8_t channel,
                                    mc_direction direction, int32_t peer) {
    for (const auto& [line, flow] : member.flows) {
      if (flow.channel == channel && flow.direction == direction && flow.peer == peer &&
          flow.op_id == op_id && flow.owner_pid == 0) {
        return &flow;
      }
    }
    return nullptr;
  }

  static const Member* MemberAt(const Comm& comm, int32_t rank) {
    auto it = comm.members.find(rank);
    return it == comm.members.end() ? nullptr : it->second;
  }

  // The peer's side of the same operation; nullptr when it has not entered it.
  static const Op* Counterpart(const Op& op, const Member& peer) {
    if (op.s.kind == MC_OP_COLL) return JobModel::FindColl(peer, op.s.ordinal);
    mc_op_kind kind = op.s.kind == MC_OP_SEND ? MC_OP_RECV : MC_OP_SEND;
    return JobModel::FindP2p(peer, kind, op.member->info.rank, op.s.ordinal);
  }

  // Host evidence that explains why a worker moves nothing, whatever its flows say.
  bool HostSink(const Worker& worker, const Comm* comm, Sink* sink) const {
    sink->worker = &worker;
    sink->comm = comm;
    if (worker.status == ProcessStatus::kExited) {
      bool active = false, in_flight = false;
      for (const auto& [line, member] : worker.members) {
        active |= member->info.state == MC_COMM_ACTIVE;
      }
      for (const auto& [id, op] : worker.ops) in_flight |= !op.settled && !op.complete;
      sink->since_ns = worker.exited_ns;
      if (!active && in_flight) return false;  // it gave up waiting itself: an after-effect
      if (!active) {
        sink->kind = SinkKind::kLeft;
        sink->why = "it has finalized its communicators and ended";
        return true;
      }
      sink->kind = SinkKind::kDead;
      sink->why = "its process (pid " + std::to_string(worker.key.pid) + ") is gone";
      return true;
    }
    if (IsStopped(worker)) {
      sink->kind = SinkKind::kHostStopped;
      sink->since_ns = 0;
      sink->why = "its process (pid " + std::to_string(worker.key.pid) + ") is stopped (state T)";
      return true;
    }
    std::string figures;
    if (not_starved_.count(&worker) == 0 && CpuStarvation(worker, 0, &figures) >= 0.5) {
      sink->kind = SinkKind::kHostStarved;
      sink->why = figures;
      return true;
    }
    return false;
  }

  // A worker with operations in flight and nobody left to move them.
  bool Ended(const Worker& worker) const {
    return worker.alive() && worker.HeadOp() != nullptr && ProgressEnded(worker);
  }

  // What the node's worker waits for where no flow has to be asked: a state of its host, or
  // the end of its progress thread; that end is only an effect where a peer is gone.
  bool HostDecides(Node& node, const Comm& comm) {
    const Worker& worker = *node.worker;
    Sink sink;
    if (HostSink(worker, &comm, &sink)) {
      node.sinks.push_back(std::move(sink));
      return true;
    }
    if (!Ended(worker)) return false;
    bool gone = false;
    for (const auto& [rank, peer] : comm.members) {
      Sink theirs;
      if (peer->worker == &worker || !HostSink(*peer->worker, &comm, &theirs) ||
          theirs.kind != SinkKind::kDead) {
        continue;
      }
      gone = true;
      AddEdge(node, comm, rank, "its progress thread has ended and that process is gone");
    }
    if (gone) return true;
    sink.kind = SinkKind::kProxyEnded;
    sink.why =
        "its progress thread has ended, as after a failed request; what its flows show is their "
        "last state";
    node.sinks.push_back(std::move(sink));
    return true;
  }

  void AddPath(Node& node, const Worker* from, const Worker* to, const Comm* comm,
               const FlowSample& at, uint64_t since, bool nothing_in_flight, std::string why) {
    // The other end may be unable to move for a reason of its own; Look() has asked for this.
    const Worker* peer = to == node.worker ? from : to;
    Sink host;
    if (HostSink(*peer, comm, &host) || Ended(*peer)) {
      node.edges.push_back({peer, why});
      return;
    }
    Sink sink;
    sink.kind = SinkKind::kPath;
    sink.worker = from;
    sink.other = to;
    sink.comm = comm;
    sink.where =
        "channel " + std::to_string(at.channel) + ", " + NameOf(*from) + " to " + NameOf(*to);
    sink.why = std::move(why);
    sink.since_ns = since;
    sink.nothing_in_flight = nothing_in_flight;
    node.sinks.push_back(std::move(sink));
  }

  void AddOwn(Node& node, SinkKind kind, const FlowSample& flow, std::string why) {
    Sink sink;
    sink.kind = kind;
    sink.worker = node.worker;
    sink.comm = node.head->member->comm;
    sink.where = FlowName(flow, *sink.comm);
    sink.why = std::move(why);
    sink.since_ns = flow.state_ns;
    node.sinks.push_back(std::move(sink));
  }

  // An edge to a peer: or to a rank that nobody sees.
  void AddEdge(Node& node, const Comm& comm, int32_t rank, std::string why) {
    const Member* peer = MemberAt(comm, rank);
    if (peer != nullptr) {
      node.edges.push_back({peer->worker, std::move(why)});
      return;
    }
    Sink sink;
    sink.kind = SinkKind::kUnseen;
    sink.comm = &comm;
    sink.rank = rank;
    sink.why = std::move(why);
    node.sinks.push_back(std::move(sink));
  }

  void Look(Node& node) {
    const Op& op = *node.head;
    const Comm& comm = *op.member->comm;
    if (HostDecides(node, comm)) return;
    std::vector<const FlowSample*> flows;
    for (const auto& [line, flow] : op.member->flows) {
      if (flow.op_id == op.s.id && flow.open_ops > 0 && flow.state != MC_FLOW_IDLE) {
        flows.push_back(&flow);
      }
    }
    if (flows.empty()) {
      LookWithoutFlows(node);
      return;
    }
    for (const FlowSample* flow : flows) LookAtFlow(node, *flow, flows);
    if (node.edges.empty() && node.sinks.empty()) LookWithoutFlows(node);
  }

  void LookWithoutFlows(Node& node) {
    const Op& op = *node.head;
    const Comm& comm = *op.member->comm;
    if (op.s.kind != MC_OP_COLL) {
      const Member* peer = MemberAt(comm, op.s.root_or_peer);
      if (peer == nullptr) {
        AddEdge(node, comm, op.s.root_or_peer, OpName(op) + " waits for it");
      } else if (Counterpart(op, *peer) == nullptr) {
        AddEdge(node, comm, op.s.root_or_peer, "it has not entered " + OpName(op));
      }
      return;
    }
    for (const auto& [rank, peer] : comm.members) {
      if (peer == op.member) continue;
      if ((!peer->has_coll || peer->last_coll_ordinal < op.s.ordinal) &&
          Counterpart(op, *peer) == nullptr) {
        AddEdge(node, comm, rank, "it has not entered " + OpName(op));
      }
    }
    if (node.edges.empty()) {
      // All have entered, none shows a flow: an edge to each that is still in it.
      for (const auto& [rank, peer] : comm.members) {
        if (peer == op.member) continue;
        const Op* theirs = Counterpart(op, *peer);
        if (theirs != nullptr && !theirs->complete && !theirs->settled &&
            nodes_[peer->worker].head != theirs) {
          AddEdge(node, comm, rank, "it is still in an earlier operation");
        }
      }
    }
  }

  // What moved so lately may not have reached the other end.
  bool Fresh(uint64_t moved_ns) const { return model_.now_ns() < moved_ns + still_ns_; }

  // True when the peer is not in this operation (yet): then it decides.
  bool PeerElsewhere(Node& node, const FlowSample& flow, const Member& peer, const Op** theirs) {
    const Op& op = *node.head;
    *theirs = Counterpart(op, peer);
    if (*theirs == nullptr) {
      if (peer.has_coll && op.s.kind == MC_OP_COLL && peer.last_coll_ordinal > op.s.ordinal) {
        return false;  // long past it
      }
      AddEdge(node, *op.member->comm, flow.peer, "it has not entered " + OpName(op));
      return true;
    }
    const Op* head = nodes_[peer.worker].head;
    if (!(*theirs)->complete && !(*theirs)->settled && head != nullptr && head != *theirs &&
        head->s.id < (*theirs)->s.id) {
      AddEdge(node, *op.member->comm, flow.peer,
              "it is still in " + OpName(*head) + ", before " + OpName(op));
      return true;
    }
    return false;
  }

  void LookAtFlow(Node& node, const FlowSample& flow, const std::vector<const FlowSample*>& flows) {
    const Op& op = *node.head;
    const Comm& comm = *op.member->comm;
    const Member* peer = MemberAt(comm, flow.peer);
    const Op* theirs = nullptr;
    switch (flow.state) {
      case MC_FLOW_IDLE:
        return;
      case MC_FLOW_QUEUED:
      case MC_FLOW_PROGRESS: {
        // Not taken up by the proxy thread although nothing is before it; a receive
        // in progress without a buffer posted waits for its own kernel.
        bool others_move = false;
        for (const FlowSample* other : flows) {
          others_move |= other->state != MC_FLOW_QUEUED && other->state != MC_FLOW_PROGRESS;
        }
        if (!others_move && flow.state == MC_FLOW_QUEUED) {
          AddOwn(node, SinkKind::kHostProxy, flow,
                 "the proxy thread has not taken up " + OpName(op));
        }
        return;
      }
      case MC_FLOW_RECV_REMOTE: {
        if (peer == nullptr) {
          AddEdge(node, comm, flow.peer, FlowName(flow, comm) + ": no data from it");
          return;
        }
        if (PeerElsewhere(node, flow, *peer, &theirs)) return;
        const FlowSample* send = theirs == nullptr ? nullptr
                                                   : FindFlow(*peer, theirs->s.id, flow.channel,
                                                              MC_SEND, op.member->info.rank);
        const bool finished = theirs == nullptr || theirs->complete || theirs->settled;
        if (finished ? theirs != nullptr && Fresh(theirs->end_ns)
                     : send != nullptr && Fresh(send->moved_ns)) {
          AddEdge(node, comm, flow.peer, FlowName(flow, comm) + ": its data is on its way");
          return;
        }
        if (finished) {
          AddPath(node, peer->worker, node.worker, &comm, flow, flow.state_ns, false,
                  NameOf(*peer->worker) + " has finished sending, " + NameOf(*node.worker) +
                      " has not received (" + Counts(flow) + ")");
          return;
        }
        if (send == nullptr) {
          AddEdge(node, comm, flow.peer, FlowName(flow, comm) + ": no data from it");
          return;
        }
        if (send->state == MC_FLOW_SEND_NET) {
          AddPath(node, peer->worker, node.worker, &comm, flow, send->state_ns,
                  send->done <= flow.ready,
                  "the sender has handed the data to the NIC (" + Counts(*send) +
                      "), the receiver has a buffer posted and gets nothing (" + Counts(flow) +
                      ")");
          return;
        }
        if (send->state == MC_FLOW_SEND_PEER) {
          AddPath(node, peer->worker, node.worker, &comm, flow, send->state_ns, false,
                  "the receiver has offered a buffer, the sender has not seen it (" +
                      Counts(*send) + "; " + Counts(flow) + ")");
          return;
        }
        if (send->transmitted > flow.ready) {
          AddPath(node, peer->worker, node.worker, &comm, flow, flow.state_ns, false,
                  "steps are acknowledged at the sender and not received (" + Counts(*send) + "; " +
                      Counts(flow) + ")");
          return;
        }
        AddEdge(node, comm, flow.peer, FlowName(flow, comm) + ": no data from it");
        return;
      }
      case MC_FLOW_RECV_FLUSH:
        AddOwn(node, SinkKind::kFlush, flow,
               "data has arrived at the NIC and its flush to the GPU does not end (" +
                   Counts(flow) + ")");
        return;
      case MC_FLOW_RECV_GPU: {
        // A GPU that cannot send cannot receive either: then the send side decides.
        for (const FlowSample* other : flows) {
          if (other->direction == MC_SEND && other->channel == flow.channel &&
              (other->state == MC_FLOW_SEND_NET || other->state == MC_FLOW_SEND_PEER)) {
            return;
          }
        }
        AddOwn(node, SinkKind::kGpu, flow,
               "data has arrived and its GPU does not take it (" + Counts(flow) + ")");
        return;
      }
      case MC_FLOW_SEND_GPU: {
        bool has_recv = false;
        for (const FlowSample* other : flows) {
          has_recv |= other->direction == MC_RECV && other->channel == flow.channel;
        }
        if (has_recv && op.s.kind == MC_OP_COLL) return;  // the receive side decides
        AddOwn(node, SinkKind::kGpu, flow,
               "its GPU does not fill the send slots (" + Counts(flow) + ")");
        return;
      }
      case MC_FLOW_SEND_PEER:
      case MC_FLOW_SEND_NET: {
        if (peer == nullptr) {
          AddEdge(node, comm, flow.peer, FlowName(flow, comm) + ": not acknowledged");
          return;
        }
        if (PeerElsewhere(node, flow, *peer, &theirs)) return;
        const FlowSample* recv = theirs == nullptr ? nullptr
                                                   : FindFlow(*peer, theirs->s.id, flow.channel,
                                                              MC_RECV, op.member->info.rank);
        if (recv != nullptr &&
            (recv->state == MC_FLOW_RECV_GPU || recv->state == MC_FLOW_RECV_FLUSH ||
             recv->state == MC_FLOW_QUEUED)) {
          AddEdge(node, comm, flow.peer, FlowName(flow, comm) + ": the receiver has no free slot");
          return;
        }
        if (recv != nullptr && Fresh(recv->moved_ns)) {
          AddEdge(node, comm, flow.peer, FlowName(flow, comm) + ": the receiver goes on");
          return;
        }
        bool credit = flow.state == MC_FLOW_SEND_PEER;
        AddPath(node, node.worker, peer->worker, &comm, flow, flow.state_ns,
                !credit && recv != nullptr && flow.done <= recv->ready,
                credit ? "the receiver has offered a buffer, the sender has not seen it (" +
                             Counts(flow) + ")"
                       : "handed to the NIC and not acknowledged (" + Counts(flow) + ")");
        return;
      }
    }
  }

  WaitGraph Collect() {
    // Workers that others wait for and that have nothing in flight.
    WorkerMap<std::string> waited;
    for (auto& [worker, node] : nodes_) {
      if (!node.still) continue;
      for (const Edge& edge : node.edges) waited.emplace(edge.to, edge.why);
    }
    for (auto& [worker, why] : waited) {
      Node& node = nodes_[worker];
      node.worker = worker;
      if (node.head != nullptr || !node.sinks.empty()) continue;
      Sink sink;
      if (!HostSink(*worker, nullptr, &sink)) {
        if (!worker->alive()) continue;
        sink.kind = SinkKind::kNotEntered;
        sink.worker = worker;
        sink.since_ns = worker->last_end_ns;
        sink.why = why + "; it has no operation in flight";
        for (const auto& [line, member] : worker->members) {
          if (member->info.in_api) sink.why += " and is inside an NCCL call";
        }
      }
      node.sinks.push_back(sink);
    }

    WaitGraph graph;
    WorkerMap<int> depth;  // longest known distance to a sink
    WorkerMap<const Edge*> next;
    std::set<std::tuple<SinkKind, const Worker*, const Worker*, const Comm*, int32_t>> known;
    WorkerSet reaches;
    // A node with sinks of its own is where the chain ends, even if it waits as well.
    std::vector<const Worker*> queue;
    for (auto& [worker, node] : nodes_) {
      bool waiting = node.still || node.head == nullptr;
      if (node.sinks.empty() || !waiting) continue;
      for (const Sink& sink : node.sinks) {
        const Worker* place = sink.kind == SinkKind::kUnseen ? nullptr : sink.worker;
        auto id = std::make_tuple(sink.kind, place, sink.other, sink.comm, sink.rank);
        if (sink.kind != SinkKind::kUnseen && sink.kind != SinkKind::kPath) {
          std::get<3>(id) = nullptr;
        }
        if (known.insert(id).second) {
          graph.sinks.push_back(sink);
        } else if (sink.kind == SinkKind::kPath && !sink.nothing_in_flight) {
          for (Sink& old : graph.sinks) {
            if (old.kind == SinkKind::kPath && old.worker == sink.worker &&
                old.other == sink.other) {
              old.nothing_in_flight = false;
            }
          }
        }
      }
      reaches.insert(worker);
      depth[worker] = 0;
      queue.push_back(worker);
    }
    // Walk the edges backwards, breadth first.
    WorkerMap<std::vector<std::pair<const Worker*, const Edge*>>> back;
    for (auto& [worker, node] : nodes_) {
      if (!node.still) continue;
      for (const Edge& edge : node.edges) back[edge.to].push_back({worker, &edge});
    }
    const Worker* farthest = nullptr;
    for (size_t i = 0; i < queue.size(); ++i) {
      for (auto& [from, edge] : back[queue[i]]) {
        if (!reaches.insert(from).second) continue;
        depth[from] = depth[queue[i]] + 1;
        next[from] = edge;
        queue.push_back(from);
        if (farthest == nullptr || depth[from] > depth[farthest]) farthest = from;
      }
    }
    WorkerSet own;
    for (const Sink& sink : graph.sinks) {
      if (sink.kind != SinkKind::kPath && sink.worker != nullptr) own.insert(sink.worker);
    }
    for (auto& [worker, node] : nodes_) {
      if (node.still && reaches.count(worker) != 0 && own.count(worker) == 0) {
        graph.victims.push_back(worker);
      }
    }
    for (const Worker* at = farthest; at != nullptr && next.count(at) != 0;) {
      graph.chain.push_back({at, next[at]->to, next[at]->why});
      at = next[at]->to;
    }
    if (graph.sinks.empty()) FindCycle(&graph);
    return graph;
  }

  void FindCycle(WaitGraph* graph) {
    for (auto& [start, first] : nodes_) {
      if (!first.still || first.edges.empty()) continue;
      std::vector<const Worker*> path;
      WorkerSet on_path;
      const Worker* at = start;
      while (at != nullptr && on_path.insert(at).second) {
        path.push_back(at);
        Node& node = nodes_[at];
        at = node.edges.empty() ? nullptr : node.edges[0].to;
      }
      if (at == nullptr) continue;
      auto begin = std::find(path.begin(), path.end(), at);
      graph->cycle.assign(begin, path.end());
      for (const Worker* worker : graph->cycle) {
        graph->cycle_steps.push_back(
            {worker, nodes_[worker].edges[0].to, nodes_[worker].edges[0].why});
      }
      return;
    }
  }

  const JobModel& model_;
  const std::vector<Worker*>& job_;
  uint64_t still_ns_;
  const WorkerSet& not_starved_;
  WorkerMap<Node> nodes_;
};

}  // namespace

WaitGraph BuildWaitGraph(const JobModel& model, const std::vector<Worker*>& job, uint64_t still_ns,
                         const WorkerSet& not_starved) {
  return Builder(model, job, still_ns, not_starved).Build();
}

bool IsStopped(const Worker& worker) {
  const HostSample* host = worker.host_now();
  return host != nullptr && (host->state == 'T' || host->state == 't');
}

bool ProgressEnded(const Worker& worker) {
  const HostSample* host = worker.host_now();
  if (host == nullptr) return false;
  bool ended = false;
  for (const ThreadSample& thread : host->threads) {
    if ((thread.roles & MC_THREAD_PROGRESS) == 0) continue;
    if (thread.state != 'X') return false;
    ended = true;
  }
  return ended;
}

namespace {

const ThreadSample* FindThread(const HostSample& host, uint32_t tid) {
  for (const ThreadSample& thread : host.threads) {
    if (thread.tid == tid) return &thread;
  }
  return nullptr;
}

// How long a thread was runnable and did not run since sample `first`, by its state in the
// samples; counted where three in a row say so, as one that sleeps now and then is often
// seen runnable twice.
double SeenWaiting(const std::deque<HostAt>& samples, size_t first, uint32_t tid) {
  double waited = 0, in_row = 0;
  size_t row = 0;
  const ThreadSample* before = nullptr;
  for (size_t i = first; i < samples.size(); ++i) {
    const ThreadSample* thread = FindThread(samples[i].sample, tid);
    const bool known = thread != nullptr && thread->run_ns != 0;  // no schedstat reads as 0
    if (!known || thread->state != 'R') {
      before = nullptr;
      continue;
    }
    if (before == nullptr) {
      row = 1;
      in_row = 0;
    } else {
      const double elapsed = static_cast<double>(samples[i].t_ns - samples[i - 1].t_ns);
      const double ran =
          static_cast<double>(thread->run_ns - std::min(before->run_ns, thread->run_ns));
      in_row += std::max(0.0, elapsed - ran);
      if (++row >= 3) {
        waited += in_row;
        in_row = 0;
      }
    }
    before = thread;
  }
  return waited;
}

struct ThreadWait {
  double waited = 0, ran = 0;  // ns
  uint64_t slices = 0;         // times it was given a CPU; 0: the kernel does not say
};

// Of the thread between two samples, by the kernel's figures; nullopt where they do not tell.
std::optional<ThreadWait> WaitBetween(const HostAt& from, const HostAt& to, uint32_t tid) {
  const ThreadSample* before = FindThread(from.sample, tid);
  const ThreadSample* now = FindThread(to.sample, tid);
  if (before == nullptr || now == nullptr || now->runq_wait_ns < before->runq_wait_ns ||
      now->run_ns < before->run_ns) {
    return std::nullopt;
  }
  ThreadWait wait;
  wait.waited = static_cast<double>(now->runq_wait_ns - before->runq_wait_ns);
  wait.ran = static_cast<double>(now->run_ns - before->run_ns);
  if (before->slices > 0 && now->slices > before->slices) wait.slices = now->slices - before->slices;
  return wait;
}

// A sum over CPUs, added when a throttling is over.
double ThrottledShare(const HostAt& from, const HostAt& to) {
  if (to.t_ns <= from.t_ns || to.sample.throttled_ns <= from.sample.throttled_ns) return 0;
  return std::min(1.0, static_cast<double>(to.sample.throttled_ns - from.sample.throttled_ns) /
                           static_cast<double>(to.t_ns - from.t_ns));
}

// The share that this thread (0: its cgroup) waited from sample to sample; 0: not known.
double WaitedShare(const HostAt& from, const HostAt& to, uint32_t tid) {
  if (tid == 0) return ThrottledShare(from, to);
  const std::optional<ThreadWait> wait = WaitBetween(from, to, tid);
  if (!wait || to.t_ns <= from.t_ns) return 0;
  const double elapsed = static_cast<double>(to.t_ns - from.t_ns);
  return wait->waited / std::max(elapsed, wait->waited + wait->ran);
}

// The share of the time since sample `first`; replaces *text, *turn_ns and *who, the thread
// (0: its cgroup), where it is more than `worst`.
double StarvationSince(const Worker& worker, size_t first, double worst, std::string* text,
                       double* turn_ns, uint32_t* who) {
  const HostAt& from = worker.host_samples[first];
  const HostAt& to = worker.host_samples.back();
  const double elapsed = static_cast<double>(to.t_ns - from.t_ns);
  if (elapsed <= 0) return worst;
  char buffer[192];
  auto keep = [&](uint32_t tid, double share, double turn) {
    worst = share;
    *who = tid;
    if (turn_ns != nullptr) *turn_ns = turn;
    if (text != nullptr) *text = buffer;
  };
  for (const ThreadSample& now : to.sample.threads) {
    std::optional<ThreadWait> wait = WaitBetween(from, to, now.tid);
    if (!wait) continue;
    double turn = wait->slices > 0 ? wait->waited / static_cast<double>(wait->slices) : 0;
    // The kernel adds a wait when it is over.
    const double seen = SeenWaiting(worker.host_samples, first, now.tid);
    if (seen > wait->waited) {
      wait->waited = seen;
      turn = 0;
    }
    const double share = wait->waited / std::max(elapsed, wait->waited + wait->ran);
    if (share <= worst) continue;
    std::snprintf(buffer, sizeof(buffer),
                  "its %s thread (tid %u) waited for a CPU %.0f ms of the last %.0f ms",
                  (now.roles & MC_THREAD_PROGRESS) != 0 ? "proxy" : "main", now.tid,
                  std::min(wait->waited, elapsed) / 1e6, elapsed / 1e6);
    keep(now.tid, share, turn);
  }
  if (const double throttled = ThrottledShare(from, to); throttled > worst) {
    std::snprintf(buffer, sizeof(buffer),
                  "its cgroup was throttled %.0f ms of the last %.0f ms (CPU quota)",
                  throttled * elapsed / 1e6, elapsed / 1e6);
    keep(0, throttled, 0);
  }
  return worst;
}

}  // namespace

double CpuStarvation(const Worker& worker, uint64_t since_ns, std::string* text, double* turn_ns,
                     std::optional<double>* usual) {
  if (turn_ns != nullptr) *turn_ns = 0;
  if (usual != nullptr) usual->reset();
  const std::deque<HostAt>& samples = worker.host_samples;
  if (samples.size() < 2) return 0;
  auto newest_at = [&](uint64_t t_ns) {  // or the oldest
    size_t i = samples.size() - 1;
    while (i > 0 && samples[i].t_ns > t_ns) --i;
    return i;
  };
  const uint64_t now = samples.back().t_ns;
  if (since_ns != 0) {
    size_t first = newest_at(since_ns);
    // The time before it dilutes; a later start may leave too little.
    if (first + 1 < samples.size() && samples[first].t_ns < since_ns &&
        2 * (now - samples[first + 1].t_ns) >= now - since_ns) {
      ++first;
    }
    uint32_t who = 0;
    const double share = StarvationSince(worker, first, 0, text, turn_ns, &who);
    const size_t onset = newest_at(since_ns);
    if (usual != nullptr && share > 0 && onset > 0 && samples[onset].t_ns <= since_ns) {
      *usual = WaitedShare(samples.front(), samples[onset], who);
    }
    return share;
  }
  double worst = 0;
  uint32_t who = 0;
  for (uint64_t window : {kSoonNs, kLongNs}) {
    worst =
        StarvationSince(worker, newest_at(now - std::min(now, window)), worst, text, turn_ns, &who);
  }
  return worst;
}

std::vector<EdgeSet> ConnectedEdges(const EdgeSet& edges) {
  std::vector<EdgeSet> groups;
  for (const auto& edge : edges) {
    EdgeSet merged = {edge};
    std::erase_if(groups, [&](const EdgeSet& group) {
      const bool touches = std::any_of(group.begin(), group.end(), [&](const auto& other) {
        return other.first == edge.first || other.first == edge.second ||
               other.second == edge.first || other.second == edge.second;
      });
      if (touches) merged.insert(group.begin(), group.end());
      return touches;
    });
    groups.push_back(std::move(merged));
  }
  return groups;
}

std::string NameOf(const Worker& worker) { return "rank " + std::to_string(worker.job_rank); }

std::string OpName(const Op& op) {
  std::string name = ToString(op.s.func);
  name += " #" + std::to_string(op.s.ordinal);
  const Comm& comm = *op.member->comm;
  const std::string peer = std::to_string(JobRank(comm, op.s.root_or_peer));
  if (op.s.kind == MC_OP_SEND) name += " to rank " + peer;
  if (op.s.kind == MC_OP_RECV) name += " from rank " + peer;
  char id[32];
  std::snprintf(id, sizeof(id), "%llx", static_cast<unsigned long long>(comm.id));
  name += " on " + (comm.name.empty() ? std::string("communicator ") + id : comm.name);
  return name;
}

}  // namespace mycroft
