// SPDX-License-Identifier: Apache-2.0
#include "userspace/decode/testing/hand_made_job.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace mycroft {
namespace {

constexpr uint32_t kSteps = 16;

void Require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "HandMadeJob: %s\n", what);
  std::abort();
}

uint64_t Ns(double ms) { return static_cast<uint64_t>(ms * 1e6); }

}  // namespace

HandMadeJob::HandMadeJob(const Options& options)
    : options_(options), now_ns_(options.start_ns), ranks_(options.ranks) {
  std::vector<int> all;
  for (int rank = 0; rank < options.ranks; ++rank) {
    all.push_back(rank);
    ProcessSample& process = ranks_[rank].process;
    process.key = {static_cast<uint32_t>(1000 + rank), 77};
    process.name = "train";
    process.profiler_api = 5;
    process.level = MC_LEVEL_STEPS;
  }
  AddComm("world", all);
}

int HandMadeJob::RankIn(int rank, int comm) const {
  const auto& ranks = plans_.at(comm).ranks;
  const auto it = std::find(ranks.begin(), ranks.end(), rank);
  Require(it != ranks.end(), "the rank is not in this communicator");
  return static_cast<int>(it - ranks.begin());
}

int HandMadeJob::AddComm(const std::string& name, const std::vector<int>& job_ranks) {
  const int number = static_cast<int>(plans_.size());
  plans_.push_back({name, job_ranks});
  for (size_t i = 0; i < job_ranks.size(); ++i) {
    CommSample sample;
    sample.index = static_cast<uint32_t>(number);
    sample.generation = 1;
    sample.comm_id = 0xc0 + static_cast<uint64_t>(number);
    sample.rank = static_cast<int32_t>(i);
    sample.nranks = static_cast<int32_t>(job_ranks.size());
    sample.nnodes = 1;
    sample.state = MC_COMM_ACTIVE;
    sample.init_ns = now_ns_;
    sample.name = name;
    ranks_.at(job_ranks[i]).comms[number] = sample;
  }
  return number;
}

CommSample& HandMadeJob::Comm(int rank, int comm) { return ranks_.at(rank).comms.at(comm); }

void HandMadeJob::Finalize(int rank, int comm) {
  CommSample& sample = Comm(rank, comm);
  sample.state = MC_COMM_FINALIZED;
  sample.finalize_ns = now_ns_;
}

OpSample& HandMadeJob::Add(int rank, int comm, mc_op_kind kind, mc_func func, uint64_t count,
                           int peer) {
  Rank& r = ranks_.at(rank);
  const CommSample& info = Comm(rank, comm);
  OpSample op;
  op.id = r.next_id++;
  op.comm = info.index;
  op.comm_generation = info.generation;
  op.kind = kind;
  op.func = func;
  op.datatype = MC_TYPE_FLOAT32;
  op.channels = static_cast<uint8_t>(options_.channels);
  op.root_or_peer = peer;
  op.ordinal = kind == MC_OP_COLL ? r.colls[comm]++ : r.messages[{comm, kind, peer}]++;
  op.count = count;
  op.start_ns = now_ns_;
  op.stop_ns = now_ns_ + 1000;
  r.process.last_callback_ns = now_ns_;
  return r.ops[op.id] = op;
}

OpSample& HandMadeJob::Enter(int rank, int comm, mc_func func, uint64_t count) {
  OpSample& op = Add(rank, comm, MC_OP_COLL, func, count, 0);
  op.proxy_started = op.proxy_progress = static_cast<uint16_t>(2 * options_.channels);
  op.proxy_first_ns = op.proxy_progress_ns = now_ns_;
  op.steps_total = uint64_t{kSteps} * op.proxy_started;
  Ring(rank, MC_FLOW_SEND_GPU, MC_FLOW_RECV_REMOTE, comm);
  return op;
}

OpSample& HandMadeJob::EnterP2p(int rank, int comm, mc_op_kind kind, int peer, uint64_t count) {
  const bool send = kind == MC_OP_SEND;
  OpSample& op = Add(rank, comm, kind, send ? MC_FUNC_SEND : MC_FUNC_RECV, count, peer);
  op.proxy_started = op.proxy_progress = 1;
  op.proxy_first_ns = op.proxy_progress_ns = now_ns_;
  op.steps_total = kSteps;
  FlowSample& flow = Flow(rank, comm, 0, send ? MC_SEND : MC_RECV, peer);
  flow.op_id = op.id;
  Set(flow, send ? MC_FLOW_SEND_GPU : MC_FLOW_RECV_REMOTE);
  return op;
}

OpSample& HandMadeJob::EnterSilent(int rank, int comm, mc_func func) {
  return Add(rank, comm, MC_OP_COLL, func, 1 << 20, 0);
}

void HandMadeJob::Finish(int rank, OpSample& op) {
  op.proxy_done = op.proxy_started;
  op.steps_done = op.steps_total;
  op.proxy_last_ns = now_ns_;
  for (auto& [key, flow] : ranks_.at(rank).flows) {
    if (flow.op_id != op.id || flow.open_ops == 0) continue;
    flow.open_ops = 0;
    flow.state = MC_FLOW_IDLE;
    flow.posted = flow.ready = flow.transmitted = flow.done = flow.total;
    flow.state_ns = flow.moved_ns = now_ns_;
    ++flow.ops_done;
    flow.steps_done += flow.total;
  }
}

void HandMadeJob::EnterAll(int comm) {
  for (int rank : plans_.at(comm).ranks) Enter(rank, comm);
}

void HandMadeJob::FinishAll(int comm) {
  for (int rank : plans_.at(comm).ranks) {
    for (auto& [id, op] : ranks_.at(rank).ops) {
      if (op.comm == Comm(rank, comm).index && op.proxy_done < op.proxy_started) Finish(rank, op);
    }
  }
}

OpSample& HandMadeJob::Newest(int rank, int comm) {
  auto& ops = ranks_.at(rank).ops;
  for (auto it = ops.rbegin(); it != ops.rend(); ++it) {
    if (it->second.comm == Comm(rank, comm).index) return it->second;
  }
  Require(false, "no operation on this communicator");
  std::abort();
}

FlowSample& HandMadeJob::Flow(int rank, int comm, int channel, mc_direction direction, int peer) {
  Rank& r = ranks_.at(rank);
  auto [it, fresh] = r.flows.try_emplace({comm, channel, direction, peer});
  FlowSample& flow = it->second;
  const OpSample& op = Newest(rank, comm);
  if (fresh) {
    flow.index = static_cast<uint32_t>(r.flows.size() - 1);
    flow.comm = op.comm;
    flow.comm_generation = op.comm_generation;
    flow.channel = static_cast<uint8_t>(channel);
    flow.direction = direction;
    flow.peer = peer;
    flow.total = kSteps;
    flow.chunk_bytes = 512 << 10;
  }
  flow.op_id = op.id;
  flow.open_ops = 1;
  return flow;
}

void HandMadeJob::Set(FlowSample& flow, mc_flow_state state) {
  flow.state = state;
  flow.state_ns = flow.moved_ns = now_ns_;
  flow.posted = 8;
  flow.ready = flow.transmitted = flow.done = 4;
  switch (state) {
    case MC_FLOW_IDLE:
      flow.open_ops = 0;
      break;
    case MC_FLOW_QUEUED:
    case MC_FLOW_PROGRESS:
      flow.posted = flow.ready = flow.transmitted = flow.done = 0;
      break;
    case MC_FLOW_SEND_GPU:
    case MC_FLOW_RECV_REMOTE:
      break;
    case MC_FLOW_SEND_PEER:
    case MC_FLOW_RECV_FLUSH:
      flow.ready = 5;
      break;
    case MC_FLOW_SEND_NET:
    case MC_FLOW_RECV_GPU:
      flow.ready = flow.transmitted = 6;
      break;
  }
}

void HandMadeJob::Ring(int rank, mc_flow_state send, mc_flow_state recv, int comm) {
  const int n = static_cast<int>(plans_.at(comm).ranks.size());
  const int me = RankIn(rank, comm);
  for (int channel = 0; channel < options_.channels; ++channel) {
    Set(Flow(rank, comm, channel, MC_SEND, (me + 1) % n), send);
    Set(Flow(rank, comm, channel, MC_RECV, (me + n - 1) % n), recv);
  }
}

ProcessSample& HandMadeJob::Process(int rank) { return ranks_.at(rank).process; }
void HandMadeJob::Exit(int rank) { Process(rank).status = ProcessStatus::kExited; }
void HandMadeJob::Hide(int rank) { ranks_.at(rank).hidden = true; }

HostSample& HandMadeJob::Host(int rank) {
  auto& host = ranks_.at(rank).host;
  if (!host) {
    host.emplace();
    host->state = 'S';
  }
  return *host;
}

void HandMadeJob::Cycle(const std::vector<Cost>& costs, int comm) {
  const auto& members = plans_.at(comm).ranks;
  const size_t n = members.size();
  Require(costs.size() == n, "one cost for each rank of the communicator");
  double latest = 0, longest = 0;
  for (const Cost& c : costs) {
    latest = std::max(latest, c.host_ms);
    longest = std::max(longest, c.gpu_ms + c.flush_ms + c.net_ms);
  }
  const uint64_t begin = now_ns_;
  const uint64_t end = begin + Ns(latest + longest + 1);
  const uint32_t steps = kSteps * static_cast<uint32_t>(options_.channels);
  std::vector<uint64_t> posted(n), offered(n), received(n);
  std::vector<OpSample*> ops(n);
  for (size_t i = 0; i < n; ++i) {
    now_ns_ = begin + Ns(costs[i].host_ms);
    ops[i] = &Enter(members[i], comm);
    posted[i] = now_ns_ + Ns(costs[i].gpu_ms);
    offered[i] = now_ns_ + 100'000;
  }
  for (size_t i = 0; i < n; ++i) {  // the edge from i to the next
    const size_t to = (i + 1) % n;
    received[to] = std::max(posted[i], offered[to]) + Ns(costs[i].net_ms);
    const uint64_t done = costs[i].leaves_slowly ? received[to] : posted[i] + 50'000;
    ops[i]->send_steps = steps;
    ops[i]->send_posted_sum_ns = posted[i] * steps;
    ops[i]->send_done_sum_ns = done * steps;
    ops[to]->recv_steps = steps;
    ops[to]->recv_posted_sum_ns = offered[to] * steps;
    ops[to]->recv_data_sum_ns = received[to] * steps;
  }
  now_ns_ = end;
  const auto channels = static_cast<uint64_t>(options_.channels);
  for (size_t i = 0; i < n; ++i) {
    OpSample& op = *ops[i];
    const Cost& c = costs[i];
    const double head = static_cast<double>(end - op.start_ns) / 1e6;
    const double net = c.leaves_slowly ? c.net_ms : std::min(c.net_ms, 0.3);
    const double remote = std::max(0.0, head - c.gpu_ms - c.flush_ms);
    op.wait_ns[MC_WAIT_SEND_NET] = channels * Ns(net);
    op.wait_ns[MC_WAIT_RECV_REMOTE] = channels * Ns(remote);
    op.wait_ns[MC_WAIT_RECV_FLUSH] = channels * Ns(c.flush_ms);
    op.wait_ns[MC_WAIT_RECV_GPU] = channels * Ns(c.gpu_ms);
    op.max_wait_ns[MC_MAX_SEND_NET] = Ns(net);
    op.max_wait_ns[MC_MAX_RECV_FLUSH] = Ns(c.flush_ms);
    op.max_wait_ns[MC_MAX_RECV_GPU] = Ns(c.gpu_ms);
    op.bytes_sent = op.bytes_received = uint64_t{steps} * (512 << 10);
    Finish(members[i], op);
  }
}

std::vector<Snapshot> HandMadeJob::Take() {
  std::vector<Snapshot> snapshots;
  const int per_host = options_.ranks_per_host > 0 ? options_.ranks_per_host : options_.ranks;
  for (int first = 0; first < options_.ranks; first += per_host) {
    Snapshot snapshot;
    snapshot.host = "node" + std::to_string(first / per_host);
    snapshot.host_id = "id-" + snapshot.host;
    snapshot.t_ns = now_ns_;
    snapshot.wall_ns = now_ns_ + 1'700'000'000'000'000'000;
    snapshot.interval_ns = 100'000'000;
    for (int rank = first; rank < std::min(first + per_host, options_.ranks); ++rank) {
      Rank& r = ranks_[rank];
      if (r.hidden || r.gone) continue;
      ProcessSample sample = r.process;
      if (r.announced) sample.name.clear();
      r.announced = true;
      sample.host = r.host;
      for (const auto& [number, comm] : r.comms) {
        if (auto it = r.sent_comms.find(number); it != r.sent_comms.end() && it->second == comm) {
          continue;
        }
        sample.comms.push_back(comm);
        r.sent_comms[number] = comm;
      }
      for (auto it = r.ops.begin(); it != r.ops.end();) {
        const auto sent = r.sent_ops.find(it->first);
        const bool fresh = sent == r.sent_ops.end() || sent->second != it->second;
        if (fresh) {
          sample.ops.push_back(it->second);
          r.sent_ops[it->first] = it->second;
        }
        // Keep the last few for Newest(); old complete ones never change again.
        const bool done =
            it->second.proxy_started > 0 && it->second.proxy_done == it->second.proxy_started;
        if (!fresh && done && it->first + 64 < r.next_id) {
          r.sent_ops.erase(it->first);
          it = r.ops.erase(it);
        } else {
          ++it;
        }
      }
      for (const auto& [key, flow] : r.flows) {
        if (auto it = r.sent_flows.find(flow.index);
            it != r.sent_flows.end() && it->second == flow) {
          continue;
        }
        sample.flows.push_back(flow);
        r.sent_flows[flow.index] = flow;
      }
      r.gone = r.process.status == ProcessStatus::kExited;
      snapshot.processes.push_back(std::move(sample));
    }
    snapshots.push_back(std::move(snapshot));
  }
  return snapshots;
}

}  // namespace mycroft
