// SPDX-License-Identifier: Apache-2.0
#include "userspace/model/job.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace mycroft {
namespace {

constexpr size_t kMaxWorkers = 65536;
constexpr size_t kMaxOpsPerWorker = 2048;  // in flight and recent
constexpr size_t kMaxHistory = 1024;       // settled
constexpr size_t kMaxComms = 65536;
constexpr size_t kKeepDone = 256;             // settled operations kept in Worker::ops
constexpr uint64_t kNoEndNs = 2'000'000'000;  // give up on the end of an operation without proxies

// A kernel event may never stop; the proxies alone say that the data has moved.
bool ProxiesDone(const OpSample& s) {
  return s.stop_ns != 0 && s.proxy_started > 0 && s.proxy_done >= s.proxy_started;
}

uint64_t EndOf(const OpSample& s) {
  if (s.proxy_started > 0) return s.proxy_last_ns;
  return s.kernel_stop_seen_ns;
}

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ull + (hash << 6) + (hash >> 2);
  return hash * 0xbf58476d1ce4e5b9ull;
}

}  // namespace

uint64_t LastMovement(const Worker& worker, const Op& op) {
  uint64_t moved = std::max({op.s.start_ns, op.s.stop_ns, op.s.proxy_first_ns,
                             op.s.proxy_progress_ns, op.s.proxy_last_ns});
  for (const auto& [line, flow] : op.member->flows) {
    if (flow.op_id == op.s.id) moved = std::max(moved, flow.moved_ns);
  }
  // It only became the head of the line when the one before it ended.
  return std::max(moved, worker.last_end_ns);
}

std::optional<uint64_t> UsualHead(const Worker& worker, size_t window) {
  constexpr size_t kUsualOps = 8;
  const size_t n = worker.history.size();
  if (n < kUsualOps) return std::nullopt;
  std::vector<uint64_t> heads;
  for (size_t i = n > window ? n - window : 0; i < n; ++i) {
    heads.push_back(worker.history[i].head_ns);
  }
  const auto second = heads.end() - 2;
  std::nth_element(heads.begin(), second, heads.end());
  return *second;
}

uint64_t OpKey(const Op& op, bool with_size) {
  uint64_t hash = op.member->comm->id;
  hash = Mix(hash, op.s.kind);
  hash = Mix(hash, op.s.func);
  if (op.s.kind != MC_OP_COLL) hash = Mix(hash, static_cast<uint32_t>(op.s.root_or_peer));
  if (with_size) hash = Mix(hash, op.s.count);
  return hash;
}

const Op* Worker::HeadOp() const {
  for (auto it = ops.lower_bound(open_from); it != ops.end(); ++it) {
    if (!it->second.settled && !it->second.complete) return &it->second;
  }
  return nullptr;
}

void JobModel::Apply(const Snapshot& snapshot) {
  now_ns_ = std::max(now_ns_, snapshot.t_ns);
  wall_ns_ = std::max(wall_ns_, snapshot.wall_ns);
  if (snapshot.interval_ns > 0) interval_ns_ = snapshot.interval_ns;
  if (snapshot.blind_spots_changed) {
    blind_by_host_[snapshot.host] = snapshot.blind_spots;
    blind_.clear();
    for (const auto& [host, spots] : blind_by_host_) {
      blind_.insert(blind_.end(), spots.begin(), spots.end());
    }
  }
  for (const ProcessSample& process : snapshot.processes) ApplyProcess(snapshot, process);
  for (auto& worker : workers_) Settle(*worker);
  RankWorkers();
}

Worker* JobModel::WorkerOf(const Snapshot& snapshot, const ProcessSample& process,
                           size_t occurrence) {
  ProcessIndex& index = processes_[{snapshot.host, process.key}];
  while (index.workers.size() <= occurrence) {
    if (workers_.size() >= kMaxWorkers) {
      ++malformed_;
      return nullptr;
    }
    auto worker = std::make_unique<Worker>();
    worker->index = workers_.size();
    worker->host = snapshot.host;
    worker->key = process.key;
    if (!index.workers.empty()) {
      worker->name = index.workers[0]->name;
      worker->container = index.workers[0]->container;
    }
    index.workers.push_back(worker.get());
    workers_.push_back(std::move(worker));
  }
  return index.workers[occurrence];
}

void JobModel::ApplyProcess(const Snapshot& snapshot, const ProcessSample& process) {
  if (WorkerOf(snapshot, process, 0) == nullptr) return;
  ProcessIndex& index = processes_[{snapshot.host, process.key}];
  for (const CommSample& sample : process.comms) {
    if (sample.state == MC_COMM_FREE || sample.nranks <= 0 || sample.rank < 0 ||
        sample.rank >= sample.nranks) {
      continue;
    }
    Worker* owner = nullptr;
    if (auto it = index.by_comm_line.find(sample.index); it != index.by_comm_line.end()) {
      Member* member = it->second->members[sample.index].get();
      // The generation alone would do, if boards could be trusted.
      if (member != nullptr && member->info.generation == sample.generation &&
          member->info.comm_id == sample.comm_id && member->info.rank == sample.rank) {
        owner = it->second;
      }
    }
    if (owner == nullptr) {
      // A new communicator: the first worker of this process that is not in it yet.
      size_t occurrence = 0;
      for (; occurrence < index.workers.size(); ++occurrence) {
        bool taken = false;
        for (auto& [line, member] : index.workers[occurrence]->members) {
          taken |= line != sample.index && member != nullptr &&
                   member->info.comm_id == sample.comm_id && member->info.state == MC_COMM_ACTIVE;
        }
        if (!taken) break;
      }
      owner = WorkerOf(snapshot, process, occurrence);
      if (owner == nullptr) return;
      if (comms_.size() >= kMaxComms && comms_.count(sample.comm_id) == 0) {
        ++malformed_;
        continue;
      }
      if (auto old = index.by_comm_line.find(sample.index); old != index.by_comm_line.end()) {
        // The line was used by an earlier communicator: its operations lose their member.
        Worker* before = old->second;
        Member* gone = before->members[sample.index].get();
        if (gone != nullptr) {
          std::erase_if(before->ops, [&](auto& item) { return item.second.member == gone; });
          before->settled_ops = std::count_if(before->ops.begin(), before->ops.end(),
                                              [](const auto& item) { return item.second.settled; });
          std::erase_if(before->history, [&](Settled& s) { return s.member == gone; });
          auto place = gone->comm->members.find(gone->info.rank);
          if (place != gone->comm->members.end() && place->second == gone) {
            gone->comm->members.erase(place);
          }
          before->members.erase(sample.index);
        }
      }
      index.by_comm_line[sample.index] = owner;
      auto& comm = comms_[sample.comm_id];
      if (comm == nullptr) {
        comm = std::make_unique<Comm>();
        comm->id = sample.comm_id;
      }
      auto member = std::make_unique<Member>();
      member->comm = comm.get();
      member->worker = owner;
      owner->members[sample.index] = std::move(member);
    }
    Member& member = *owner->members[sample.index];
    member.info = sample;
    Comm& comm = *member.comm;
    comm.nranks = std::max(comm.nranks, sample.nranks);
    if (!sample.name.empty()) comm.name = sample.name;
    comm.members[sample.rank] = &member;
    comm.finalized = sample.state == MC_COMM_FINALIZED;
  }

  for (Worker* worker : index.workers) {
    worker->last_seen_ns = snapshot.t_ns;
    worker->last_callback_ns = process.last_callback_ns;
    worker->level = process.level;
    worker->profiler_api = process.profiler_api;
    worker->lost = process.lost;
    worker->torn_reads = process.torn_reads;
    if (!process.name.empty()) worker->name = process.name;
    if (!process.container.empty()) worker->container = process.container;
    if (process.host) {
      std::deque<HostAt>& kept = worker->host_samples;
      const size_t n = kept.size();
      if (n >= 2 && kept[n - 1].t_ns < kept[n - 2].t_ns + kHostStepNs) kept.pop_back();
      kept.push_back({snapshot.t_ns, *process.host});
      while (kept.size() > 2 && kept[1].t_ns + kHostHistoryNs < snapshot.t_ns) kept.pop_front();
    }
    if (process.status != worker->status) {
      worker->status = process.status;
      if (process.status == ProcessStatus::kExited) worker->exited_ns = snapshot.t_ns;
    }
  }

  auto member_of = [&](uint32_t line, uint32_t generation) -> Member* {
    auto it = index.by_comm_line.find(line);
    if (it == index.by_comm_line.end()) return nullptr;
    auto member = it->second->members.find(line);
    if (member == it->second->members.end() || member->second == nullptr) return nullptr;
    return member->second->info.generation == generation ? member->second.get() : nullptr;
  };
  for (const OpSample& sample : process.ops) {
    Member* member = member_of(sample.comm, sample.comm_generation);
    if (member == nullptr || sample.id == 0 || sample.kind == MC_OP_NONE) {
      ++malformed_;
      continue;
    }
    Worker& worker = *member->worker;
    Op& op = worker.ops[sample.id];
    if (op.settled) continue;
    op.s = sample;
    op.member = member;
    op.seen_ns = snapshot.t_ns;
    op.complete = sample.complete();
    op.end_ns = op.complete ? EndOf(sample) : 0;
    if (sample.kind == MC_OP_COLL) {
      member->last_coll_ordinal = std::max(member->last_coll_ordinal, sample.ordinal);
      member->has_coll = true;
    }
    worker.open_from = std::min(worker.open_from, sample.id);
    if (worker.ops.size() > kMaxOpsPerWorker) {
      if (worker.ops.begin()->second.settled) --worker.settled_ops;
      worker.ops.erase(worker.ops.begin());
    }
  }
  for (const FlowSample& sample : process.flows) {
    Member* member = member_of(sample.comm, sample.comm_generation);
    if (member == nullptr) {
      if (sample.owner_pid == 0) ++malformed_;
      continue;
    }
    if (member->flows.size() >= MC_BOARD_MAX_FLOWS && member->flows.count(sample.index) == 0) {
      ++malformed_;
      continue;
    }
    member->flows[sample.index] = sample;
  }
}

// How long the collective before this one on the same connections waited for its sends while
// this one was open, ns. It is over for its GPU once its data is in the slots; the next one's
// data comes from peers that are ahead, and waits until those slots are free.
static double SlotsHeldBefore(const Worker& worker, const Op& op) {
  if (op.s.kind != MC_OP_COLL) return 0;
  constexpr size_t kFar = 64;
  size_t looked = 0;
  for (auto it = worker.history.rbegin(); it != worker.history.rend() && ++looked <= kFar; ++it) {
    if (it->end_ns <= op.s.start_ns) return 0;
    if (it->member != op.member || it->kind != MC_OP_COLL) continue;
    return std::min(it->share[kSendNet] + it->share[kSendPeer],
                    static_cast<double>(it->end_ns - op.s.start_ns));
  }
  return 0;
}

// Moves operations, in order of enqueue, into the history as they complete.
void JobModel::Settle(Worker& worker) {
  for (auto it = worker.ops.lower_bound(worker.open_from); it != worker.ops.end(); ++it) {
    auto& [id, op] = *it;
    worker.open_from = id;
    if (op.settled) continue;
    if (!op.complete && ProxiesDone(op.s) && now_ns_ - op.seen_ns > kNoEndNs) {
      op.complete = true;  // a kernel event without a stop
      op.end_ns = op.s.proxy_last_ns;
    }
    if (!op.complete) {
      // An operation without any proxy (inside a node) never shows its end: a later
      // completed one on the same communicator proves that it is over.
      bool silent = op.s.proxy_started == 0 && op.s.kernel_started == 0;
      bool overtaken = false;
      if (silent) {
        for (auto next = worker.ops.upper_bound(id); next != worker.ops.end(); ++next) {
          overtaken = next->second.member == op.member && next->second.complete;
          if (overtaken) break;
        }
      }
      if (!overtaken && !(silent && now_ns_ - op.seen_ns > kNoEndNs && op.s.stop_ns != 0)) break;
      op.settled = true;
      ++worker.settled_ops;
      continue;
    }
    Settled s;
    s.id = id;
    s.key = OpKey(op, true);
    s.shape_key = OpKey(op, false);
    s.member = op.member;
    s.kind = op.s.kind;
    s.peer = op.s.kind == MC_OP_COLL ? -1 : op.s.root_or_peer;
    s.ordinal = op.s.ordinal;
    s.start_ns = op.s.start_ns;
    uint64_t before = worker.last_end_ns != 0 ? worker.last_end_ns : op.s.start_ns;
    s.end_ns = std::max(op.end_ns, before);
    uint64_t begin = std::clamp(op.s.start_ns, before, s.end_ns);
    s.share[kHostGap] = static_cast<double>(begin - before);
    s.head_ns = s.end_ns - begin;
    // Per flow: the sums run over all flows of a direction.
    double sends = 0, receives = 0;
    for (const auto& [line, flow] : op.member->flows) {
      if (op.s.kind != MC_OP_COLL && flow.peer != op.s.root_or_peer) continue;
      (flow.direction == MC_SEND ? sends : receives) += 1;
    }
    double half = std::max(1.0, op.s.proxy_started / (op.s.kind == MC_OP_COLL ? 2.0 : 1.0));
    sends = sends > 0 ? std::min(sends, half) : half;
    receives = receives > 0 ? std::min(receives, half) : half;
    double head = static_cast<double>(s.head_ns);
    auto clip = [&](uint64_t sum, double flows) {
      return std::min(head, static_cast<double>(sum) / flows);
    };
    const auto& wait = op.s.wait_ns;
    const auto& most = op.s.max_wait_ns;
    s.share[kRemote] = clip(wait[MC_WAIT_RECV_REMOTE], receives);
    s.share[kSendPeer] = clip(wait[MC_WAIT_SEND_PEER], sends);
    // The slowest channel holds up the operation: its wait counts, not the mean.
    s.share[kFlush] = clip(most[MC_MAX_RECV_FLUSH], 1);
    s.share[kSendNet] = clip(most[MC_MAX_SEND_NET], 1);
    double gpu = op.s.kind == MC_OP_SEND ? clip(wait[MC_WAIT_SEND_GPU], sends)
                                         : clip(most[MC_MAX_RECV_GPU], 1);
    // A GPU whose send slots are all taken cannot consume: that time is not its own.
    s.share[kOwnGpu] =
        std::max(0.0, gpu - s.share[kSendNet] - s.share[kSendPeer] - SlotsHeldBefore(worker, op));
    s.send_steps = op.s.send_steps;
    s.recv_steps = op.s.recv_steps;
    s.send_posted_sum_ns = op.s.send_posted_sum_ns;
    s.send_done_sum_ns = op.s.send_done_sum_ns;
    s.recv_posted_sum_ns = op.s.recv_posted_sum_ns;
    s.recv_data_sum_ns = op.s.recv_data_sum_ns;
    s.bytes = op.s.bytes_sent + op.s.bytes_received;
    worker.last_end_ns = s.end_ns;
    worker.history.push_back(s);
    ++worker.settled_count;
    if (worker.history.size() > kMaxHistory) worker.history.pop_front();
    op.settled = true;
    ++worker.settled_ops;
  }
  while (worker.settled_ops > kKeepDone && worker.ops.begin()->second.settled) {
    worker.ops.erase(worker.ops.begin());
    --worker.settled_ops;
  }
}

void JobModel::RankWorkers() {
  for (auto& worker : workers_) {
    const Member* best = nullptr;
    for (const auto& [line, member] : worker->members) {
      if (best == nullptr || member->comm->nranks > best->comm->nranks) best = member.get();
    }
    if (best != nullptr) worker->job_rank = best->info.rank;
  }
}

const Op* JobModel::FindColl(const Member& member, uint64_t ordinal) {
  const auto& ops = member.worker->ops;
  for (auto it = ops.rbegin(); it != ops.rend(); ++it) {
    const Op& op = it->second;
    if (op.member == &member && op.s.kind == MC_OP_COLL && op.s.ordinal == ordinal) return &op;
  }
  return nullptr;
}

const Op* JobModel::FindP2p(const Member& member, mc_op_kind kind, int32_t peer, uint64_t ordinal) {
  const auto& ops = member.worker->ops;
  for (auto it = ops.rbegin(); it != ops.rend(); ++it) {
    const Op& op = it->second;
    if (op.member == &member && op.s.kind == kind && op.s.root_or_peer == peer &&
        op.s.ordinal == ordinal) {
      return &op;
    }
  }
  return nullptr;
}

std::vector<std::vector<Worker*>> JobModel::Jobs() const {
  std::vector<size_t> parent(workers_.size());
  std::iota(parent.begin(), parent.end(), size_t{0});
  std::function<size_t(size_t)> find = [&](size_t i) {
    while (parent[i] != i) i = parent[i] = parent[parent[i]];
    return i;
  };
  for (const auto& [id, comm] : comms_) {
    const Member* first = nullptr;
    for (const auto& [rank, member] : comm->members) {
      if (first == nullptr) first = member;
      parent[find(member->worker->index)] = find(first->worker->index);
    }
  }
  std::map<size_t, std::vector<Worker*>> groups;
  for (const auto& worker : workers_) {
    if (!worker->members.empty()) groups[find(worker->index)].push_back(worker.get());
  }
  std::vector<std::vector<Worker*>> jobs;
  for (auto& [root, members] : groups) jobs.push_back(std::move(members));
  return jobs;
}

JobView JobModel::View() const {
  JobView view;
  view.t_ns = now_ns_;
  view.wall_ns = wall_ns_;
  view.blind_spots = blind_;
  view.level = 0;
  std::set<std::pair<std::string, ProcessKey>> seen;
  for (const auto& worker : workers_) {
    if (!worker->alive()) continue;
    if (!seen.insert({worker->host, worker->key}).second) continue;
    ++view.processes;
    if (view.level == 0 || worker->level < view.level) view.level = worker->level;
    for (int i = 0; i < MC_LOSS_COUNT; ++i) view.lost[i] += worker->lost[i];
    view.torn_reads += worker->torn_reads;
  }
  for (const auto& [id, comm] : comms_) {
    CommView cv;
    cv.comm_id = id;
    cv.name = comm->name;
    cv.nranks = comm->nranks;
    cv.finalized = comm->finalized;
    for (const auto& [rank, member] : comm->members) {
      const Worker& worker = *member->worker;
      RankView rv;
      rv.rank = rank;
      rv.job_rank = worker.job_rank;
      rv.host = worker.host;
      rv.process = worker.key;
      rv.process_name = worker.name;
      rv.process_state = !worker.alive()                ? 'X'
                         : worker.host_now() != nullptr ? worker.host_now()->state
                                                        : '?';
      const Op* current = nullptr;
      for (auto it = worker.ops.rbegin(); it != worker.ops.rend(); ++it) {
        if (it->second.member != member) continue;
        if (current == nullptr) current = &it->second;
        if (!it->second.settled && !it->second.complete) current = &it->second;
        if (it->second.settled) break;
      }
      if (current != nullptr) {
        const OpSample& s = current->s;
        rv.func = s.func;
        rv.ordinal = s.ordinal;
        rv.op_bytes = s.count * DatatypeBytes(s.datatype);
        rv.in_flight = !current->complete && !current->settled;
        uint64_t since = rv.in_flight ? s.start_ns : std::max(current->end_ns, s.start_ns);
        rv.age_ns = now_ns_ > since ? now_ns_ - since : 0;
        uint64_t total = s.steps_total, done = s.steps_done;
        if (rv.in_flight) {
          uint64_t flow_total = 0, flow_done = 0;
          for (const auto& [line, flow] : member->flows) {
            if (flow.op_id != s.id || flow.open_ops == 0) continue;
            flow_total += flow.total;
            flow_done += flow.done;
          }
          if (flow_total > 0) {
            total = flow_total;
            done = flow_done;
          }
        }
        rv.progress = !rv.in_flight ? 1.0 : total > 0 ? static_cast<double>(done) / total : 0.0;
        // Throughput of this key now and as usual.
        uint64_t key = OpKey(*current, true);
        std::vector<double> rates;
        double last = 0;
        for (const Settled& settled : worker.history) {
          if (settled.key != key || settled.head_ns == 0) continue;
          last = static_cast<double>(settled.bytes) * 1e9 / settled.head_ns;
          rates.push_back(last);
        }
        rv.bytes_per_s = last;
        if (rates.size() >= 5) {
          std::nth_element(rates.begin(), rates.begin() + rates.size() / 2, rates.end());
          rv.baseline_bytes_per_s = rates[rates.size() / 2];
        }
      }
      for (const auto& [line, flow] : member->flows) {
        FlowView fv;
        fv.channel = flow.channel;
        fv.direction = flow.direction;
        fv.peer = flow.peer;
        fv.state = flow.state;
        fv.state_age_ns =
            now_ns_ > flow.state_ns && flow.state_ns != 0 ? now_ns_ - flow.state_ns : 0;
        fv.total = flow.total;
        fv.posted = flow.posted;
        fv.ready = flow.ready;
        fv.transmitted = flow.transmitted;
        fv.done = flow.done;
        fv.bytes = flow.bytes;
        fv.wait_ns = flow.wait_ns;
        if (flow.open_ops > 0 && fv.state != MC_FLOW_IDLE && rv.in_flight &&
            fv.state_age_ns >= rv.wait_age_ns) {
          rv.wait = fv.state;
          rv.wait_age_ns = fv.state_age_ns;
        }
        rv.flows.push_back(fv);
      }
      std::sort(rv.flows.begin(), rv.flows.end(), [](const FlowView& a, const FlowView& b) {
        return std::tie(a.channel, a.direction, a.peer) < std::tie(b.channel, b.direction, b.peer);
      });
      cv.ranks.push_back(std::move(rv));
    }
    view.comms.push_back(std::move(cv));
  }
  std::stable_sort(view.comms.begin(), view.comms.end(),
                   [](const CommView& a, const CommView& b) { return a.nranks > b.nranks; });
  return view;
}

}  // namespace mycroft
