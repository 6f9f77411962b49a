// SPDX-License-Identifier: Apache-2.0
#include "userspace/align/host_aligner.h"

#include <algorithm>
#include <deque>

#include "userspace/align/step_mean.h"

namespace mycroft {
namespace {

constexpr size_t kMaxOpen = 1 << 16;  // sides that wait for their counterpart
// Clocks that are disciplined by NTP do not run straight for long.
constexpr uint64_t kWindowNs = 600'000'000'000;
constexpr uint64_t kWanderNs = 5000;
constexpr size_t kMostSegments = 4096;  // a month

ClockOptions OptionsOf(const std::string& remote, const std::string& local) {
  ClockOptions options;
  options.window_ns = kWindowNs;
  options.wander_ns = kWanderNs;
  options.most_segments = kMostSegments;
  options.remote = remote + "'s clock";
  options.local = local + "'s clock";
  return options;
}

void Shift(int64_t by, uint64_t* t) {
  if (*t != 0) *t = static_cast<uint64_t>(static_cast<int64_t>(*t) + by);
}

}  // namespace

void ShiftSnapshot(int64_t by, Snapshot* snapshot) {
  if (by == 0) return;
  Shift(by, &snapshot->t_ns);
  for (ProcessSample& process : snapshot->processes) {
    Shift(by, &process.last_callback_ns);
    for (CommSample& comm : process.comms) {
      for (uint64_t* t :
           {&comm.init_ns, &comm.finalize_ns, &comm.api_enter_ns, &comm.api_leave_ns}) {
        Shift(by, t);
      }
    }
    for (OpSample& op : process.ops) {
      for (uint64_t* t :
           {&op.api_ns, &op.start_ns, &op.stop_ns, &op.proxy_first_ns, &op.proxy_progress_ns,
            &op.proxy_last_ns, &op.kernel_start_seen_ns, &op.kernel_stop_seen_ns}) {
        Shift(by, t);
      }
      uint64_t send = static_cast<uint64_t>(by) * op.send_steps;
      uint64_t recv = static_cast<uint64_t>(by) * op.recv_steps;
      op.send_posted_sum_ns += send;
      op.send_done_sum_ns += send;
      op.recv_posted_sum_ns += recv;
      op.recv_data_sum_ns += recv;
    }
    for (FlowSample& flow : process.flows) {
      for (uint64_t* t :
           {&flow.state_ns, &flow.moved_ns, &flow.posted_ns, &flow.ready_ns, &flow.transmitted_ns,
            &flow.done_ns, &flow.last_first_ns, &flow.last_final_ns}) {
        Shift(by, t);
      }
    }
    if (!process.hardware) continue;
    for (QpSample& qp : process.hardware->qps) {
      for (uint64_t* t : {&qp.created_ns, &qp.state_ns, &qp.last_post_ns, &qp.last_receive_ns,
                          &qp.last_completion_ns, &qp.first_bad_ns}) {
        Shift(by, t);
      }
    }
    for (MrSample& mr : process.hardware->mrs) Shift(by, &mr.last_failure_ns);
  }
  if (!snapshot->hardware) return;
  for (HardwareEvent& event : snapshot->hardware->events) Shift(by, &event.t_ns);
}

size_t HostAligner::IndexOf(const Snapshot& snapshot) const {
  const std::pair<std::string, std::string> id{snapshot.host, snapshot.host_id};
  return static_cast<size_t>(std::find(ids_.begin(), ids_.end(), id) - ids_.begin());
}

void HostAligner::Observe(const Snapshot& snapshot) {
  const size_t host = IndexOf(snapshot);
  if (host == ids_.size()) {
    ids_.emplace_back(snapshot.host, snapshot.host_id);
    hosts_.push_back(snapshot.host);
    last_ns_.push_back(0);
  }
  last_ns_[host] = std::max(last_ns_[host], snapshot.t_ns);
  for (const ProcessSample& process : snapshot.processes) {
    for (const CommSample& comm : process.comms) {
      CommInfo& info = comms_[{process.key, host, comm.index}];
      if (info.comm_id != comm.comm_id) info = CommInfo{};
      info.comm_id = comm.comm_id;
      info.rank = comm.rank;
      info.nranks = comm.nranks;
    }
    for (const FlowSample& flow : process.flows) {
      auto it = comms_.find({process.key, host, flow.comm});
      if (it == comms_.end() || flow.owner_pid != 0) continue;
      ++(flow.direction == MC_SEND ? it->second.send_peers : it->second.recv_peers)[flow.peer];
    }
    for (const OpSample& op : process.ops) {
      auto it = comms_.find({process.key, host, op.comm});
      if (it == comms_.end() || op.proxy_started == 0 || op.proxy_done < op.proxy_started) continue;
      const CommInfo& comm = it->second;
      bool coll = op.kind == MC_OP_COLL;
      uint64_t reference = op.proxy_last_ns;
      if (op.send_steps > 0 && op.kind != MC_OP_RECV) {
        int32_t peer = op.root_or_peer;
        if (coll) {
          if (comm.send_peers.size() != 1) continue;
          peer = comm.send_peers.begin()->first;
        }
        Match({comm.comm_id, coll ? 0 : 1, op.ordinal, comm.rank, peer}, true,
              {host, MeanOf(op.send_posted_sum_ns, op.send_steps, reference),
               op.send_steps});
      }
      if (op.recv_steps > 0 && op.kind != MC_OP_SEND) {
        int32_t peer = op.root_or_peer;
        if (coll) {
          if (comm.recv_peers.size() != 1) continue;
          peer = comm.recv_peers.begin()->first;
        }
        Match(
            {comm.comm_id, coll ? 0 : 1, op.ordinal, peer, comm.rank}, false,
            {host, MeanOf(op.recv_data_sum_ns, op.recv_steps, reference), op.recv_steps});
      }
    }
  }
}

void HostAligner::Match(const EdgeKey& key, bool send, const Side& side) {
  auto [it, fresh] = open_.try_emplace(key);
  (send ? it->second.first : it->second.second) = side;
  const auto& [first, second] = it->second;
  if (first.steps != 0 && second.steps != 0) {
    if (first.steps == second.steps) Relate(first, second);
    open_.erase(it);
  } else if (open_.size() > kMaxOpen) {
    open_.erase(open_.begin());
  }
}

void HostAligner::Relate(const Side& send, const Side& recv) {
  if (send.host == recv.host) return;
  const size_t from = send.host, to = recv.host;
  ++pairs_;
  auto [it, fresh] =
      clocks_.try_emplace({std::min(from, to), std::max(from, to)},
                          OptionsOf(hosts_[std::max(from, to)], hosts_[std::min(from, to)]));
  if (from < to) {
    it->second.RemoteAfterLocal(recv.mean_ns, send.mean_ns);
  } else {
    it->second.RemoteBeforeLocal(send.mean_ns, recv.mean_ns);
  }
}

absl::StatusOr<CausalClock::Offset> HostAligner::OffsetOf(const std::string& host,
                                                          uint64_t t_ns) const {
  const auto found = std::find(hosts_.rbegin(), hosts_.rend(), host);
  if (found == hosts_.rend()) return absl::NotFoundError("host " + host + " was never seen");
  return OffsetOf(static_cast<size_t>(hosts_.rend() - found - 1), t_ns);
}

absl::StatusOr<CausalClock::Offset> HostAligner::OffsetOf(size_t target, uint64_t t_ns) const {
  if (target == 0) return CausalClock::Offset{};
  // From the host back to the first one, over the fewest pairs.
  std::map<size_t, CausalClock::Offset> known{{target, {}}};
  std::deque<size_t> queue{target};
  std::string reason = "no operation is shared with a host that is aligned";
  while (!queue.empty()) {
    size_t at = queue.front();
    queue.pop_front();
    for (const auto& [pair, clock] : clocks_) {
      if (pair.first != at && pair.second != at) continue;
      size_t next = pair.first == at ? pair.second : pair.first;
      if (known.count(next) != 0) continue;
      // Time on the clock of `at`, and the offset of that clock to the next one's.
      uint64_t here = static_cast<uint64_t>(static_cast<int64_t>(t_ns) - known[at].offset_ns);
      CausalClock::Offset step;
      if (pair.second == at) {  // `at` is remote, `next` is local
        auto local = clock.ToLocal(here);
        if (!local.ok()) {
          reason = std::string(local.status().message());
          continue;
        }
        step.offset_ns = static_cast<int64_t>(here - local->ns);
        step.error_ns = local->error_ns;
      } else {
        auto offset = clock.At(here);
        if (!offset.ok()) {
          reason = std::string(offset.status().message());
          continue;
        }
        step.offset_ns = -offset->offset_ns;
        step.error_ns = offset->error_ns;
      }
      known[next] = {known[at].offset_ns + step.offset_ns, known[at].error_ns + step.error_ns};
      if (next == 0) return known[next];
      queue.push_back(next);
    }
  }
  return absl::FailedPreconditionError("the clock of host " + hosts_[target] + " cannot be aligned with " +
                                       hosts_[0] + "'s: " + reason);
}

std::vector<HostClockState> HostAligner::Clocks() const {
  std::vector<HostClockState> out;
  for (size_t i = 1; i < hosts_.size(); ++i) {
    HostClockState state;
    state.host = hosts_[i];
    state.reference = hosts_[0];
    const auto offset = OffsetOf(i, last_ns_[i]);
    if (offset.ok()) {
      state.offset_ns = offset->offset_ns;
      state.error_ns = offset->error_ns;
    } else {
      state.problem = std::string(offset.status().message());
    }
    out.push_back(std::move(state));
  }
  return out;
}

absl::Status HostAligner::Align(Snapshot* snapshot) const {
  const size_t host = IndexOf(*snapshot);
  if (host == ids_.size()) {
    return absl::NotFoundError("host " + snapshot->host + " was never seen");
  }
  auto offset = OffsetOf(host, snapshot->t_ns);
  if (!offset.ok()) return offset.status();
  ShiftSnapshot(-offset->offset_ns, snapshot);
  return absl::OkStatus();
}

}  // namespace mycroft
