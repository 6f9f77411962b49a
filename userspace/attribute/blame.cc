// SPDX-License-Identifier: Apache-2.0
#include "userspace/attribute/blame.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <tuple>

#include "userspace/attribute/wait_graph.h"

namespace mycroft {
namespace {

constexpr size_t kNormalOps = 256;     // operations per edge for the normal transit
constexpr double kShareOfLoss = 0.35;  // an excess below this share of the loss is not a cause
constexpr double kPausedTogether = 0.6;
constexpr double kLate = 10;  // times the usual transit: an operation that was held up
constexpr double kLateNs = 1e6;
constexpr double kLeavesWithArrival = 0.05;  // lag as a share of the transit time

double Mean(const std::vector<double>& values) {
  double total = 0;
  for (double value : values) total += value;
  return values.empty() ? 0 : total / static_cast<double>(values.size());
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  auto middle = values.begin() + values.size() / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string Ms(double ns) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f ms", ns / 1e6);
  return text;
}

// The one peer of this member in collectives and direction; nullptr when there are several.
const Member* OnlyPeer(const Member& member, mc_direction direction) {
  int32_t peer = -1;
  for (const auto& [line, flow] : member.flows) {
    if (flow.direction != direction || flow.owner_pid != 0) continue;
    if (peer >= 0 && peer != flow.peer) return nullptr;
    peer = flow.peer;
  }
  auto it = member.comm->members.find(peer);
  return it == member.comm->members.end() ? nullptr : it->second;
}

struct StepTimes {
  const Settled* send = nullptr;
  const Settled* recv = nullptr;
};

// Sums modulo 2^64 of the same number of steps: their difference is small.
double MeanDifference(uint64_t later_sum, uint64_t earlier_sum, uint32_t steps) {
  return static_cast<double>(static_cast<int64_t>(later_sum - earlier_sum)) / steps;
}

std::vector<EdgeTransit> Transits(const std::vector<Worker*>& job, uint64_t since_ns,
                                  uint64_t until_ns, double cycles) {
  // Sends by (member, kind, ordinal, peer) to be found from the receiver's side.
  using SendKey = std::tuple<const Member*, int, uint64_t, int32_t>;
  std::map<SendKey, const Settled*> sends;
  for (const Worker* worker : job) {
    for (const Settled& s : worker->history) {
      if (s.send_steps == 0) continue;
      sends[{s.member, s.kind == MC_OP_COLL ? 0 : 1, s.ordinal, s.peer}] = &s;
    }
  }
  struct Sum {
    std::vector<double> normal, now, lag;
    double total = 0;
    uint64_t comm_id = 0;
  };
  EdgeMap<Sum> sums;
  for (const Worker* worker : job) {
    std::map<const Member*, const Member*> peer_of;
    for (const Settled& s : worker->history) {
      if (s.recv_steps == 0) continue;
      const Settled* send = nullptr;
      const Member* peer = nullptr;
      if (s.kind == MC_OP_COLL) {
        auto [it, fresh] = peer_of.try_emplace(s.member, nullptr);
        if (fresh) it->second = OnlyPeer(*s.member, MC_RECV);
        peer = it->second;
        if (peer == nullptr || OnlyPeer(*peer, MC_SEND) != s.member) continue;
        auto found = sends.find({peer, 0, s.ordinal, -1});
        if (found != sends.end()) send = found->second;
      } else if (s.kind == MC_OP_RECV) {
        auto it = s.member->comm->members.find(s.peer);
        if (it == s.member->comm->members.end()) continue;
        peer = it->second;
        auto found = sends.find({peer, 1, s.ordinal, s.member->info.rank});
        if (found != sends.end()) send = found->second;
      }
      if (send == nullptr || send->send_steps != s.recv_steps) continue;
      double latency = MeanDifference(s.recv_data_sum_ns, send->send_posted_sum_ns, s.recv_steps);
      double posted = MeanDifference(s.recv_data_sum_ns, s.recv_posted_sum_ns, s.recv_steps);
      double lag = MeanDifference(s.recv_data_sum_ns, send->send_done_sum_ns, s.recv_steps);
      double transit = std::max(0.0, std::min(latency, posted));
      Sum& sum = sums[{peer->worker, worker}];
      sum.comm_id = s.member->comm->id;
      if (s.end_ns <= since_ns) {
        sum.normal.push_back(transit);
        if (sum.normal.size() > kNormalOps) sum.normal.erase(sum.normal.begin());
      } else if (s.end_ns <= until_ns) {
        sum.now.push_back(transit);
        sum.lag.push_back(lag);
        sum.total += transit * s.recv_steps;
      }
    }
  }
  std::vector<EdgeTransit> edges;
  for (auto& [pair, sum] : sums) {
    EdgeTransit edge;
    edge.from = pair.first;
    edge.to = pair.second;
    edge.comm_id = sum.comm_id;
    edge.normal_ops = sum.normal.size();
    edge.now_ops = sum.now.size();
    edge.normal_ns = Median(sum.normal);
    edge.now_ns = Median(sum.now);
    edge.lag_ns = Median(sum.lag);
    edge.normal_mean_ns = Mean(sum.normal);
    edge.now_mean_ns = Mean(sum.now);
    edge.late_ops =
        static_cast<size_t>(std::count_if(sum.now.begin(), sum.now.end(), [&](double transit) {
          return transit >= std::max(kLateNs, kLate * edge.normal_ns);
        }));
    edge.now_total_ns = cycles > 0 ? sum.total / cycles : 0;
    edges.push_back(edge);
  }
  return edges;
}

}  // namespace

BlameResult FindBlame(const std::vector<Worker*>& job,
                      const std::map<size_t, CycleDetector>& detectors, uint64_t since_ns,
                      uint64_t until_ns) {
  BlameResult result;
  std::vector<double> lost, normal, cycles;
  for (const Worker* worker : job) {
    auto it = detectors.find(worker->index);
    if (it == detectors.end() || !it->second.ready()) continue;
    const CycleDetector& detector = it->second;
    WorkerShares shares;
    shares.worker = worker;
    shares.normal = detector.baseline_share();
    size_t ops = 0;
    uint64_t first = 0, last = 0;
    for (const Settled& s : worker->history) {
      if (s.end_ns <= since_ns || s.end_ns > until_ns) continue;
      if (ops == 0) first = s.end_ns - s.head_ns - static_cast<uint64_t>(s.share[kHostGap]);
      last = s.end_ns;
      ++ops;
      for (int k = 0; k < kShareCount; ++k) shares.now[k] += s.share[k];
    }
    double n = detector.CountCycles(*worker, since_ns, until_ns);
    if (n < 0.5) continue;
    shares.noise = detector.share_noise();
    for (double& share : shares.now) share /= n;
    shares.cycles = static_cast<size_t>(n);
    lost.push_back(static_cast<double>(last - first) / n - detector.baseline_ns());
    normal.push_back(detector.baseline_ns());
    cycles.push_back(n);
    result.shares.push_back(shares);
  }
  if (result.shares.empty()) return result;
  result.lost_ns = Median(lost);
  result.normal_ns = Median(normal);
  if (result.lost_ns <= 0) return result;
  double threshold = kShareOfLoss * result.lost_ns;

  bool complete = true;
  for (const Worker* worker : job) {
    for (const auto& [line, member] : worker->members) {
      complete &= static_cast<int32_t>(member->comm->members.size()) >= member->comm->nranks;
    }
  }

  // All workers without work at the same time: the program paused as a whole.
  double most_gap = 0, least_gap = 1e300;
  for (const WorkerShares& s : result.shares) {
    most_gap = std::max(most_gap, s.excess(kHostGap));
    least_gap = std::min(least_gap, s.excess(kHostGap));
  }
  if (result.shares.size() > 1 && most_gap >= threshold &&
      least_gap >= kPausedTogether * most_gap) {
    result.whole_job_paused = true;
    return result;
  }

  result.edges = Transits(job, since_ns, until_ns, Median(cycles));
  auto shares_of = [&](const Worker* worker) -> const WorkerShares* {
    for (const WorkerShares& s : result.shares) {
      if (s.worker == worker) return &s;
    }
    return nullptr;
  };

  // Edges that are slower by a factor, and enough to matter for the cycle. What a
  // receiver spends on its own account (late host, late GPU) makes its buffers late
  // too: an edge into it proves nothing.
  std::vector<const EdgeTransit*> bad;
  double worst = 0;
  std::vector<const EdgeTransit*> at_times;
  for (const EdgeTransit& edge : result.edges) {
    if (edge.now_ops < 2 || edge.normal_ops < 4) continue;
    const WorkerShares* receiver = shares_of(edge.to);
    if (receiver != nullptr && std::max({receiver->excess(kHostGap), receiver->excess(kOwnGpu),
                                         receiver->excess(kFlush)}) >= threshold) {
      continue;
    }
    double excess = edge.now_ns - edge.normal_ns;
    bool slow = edge.now_ns >= 3 * edge.normal_ns && excess >= 0.02 * result.lost_ns &&
                edge.now_total_ns >= threshold;
    if (!slow) {
      const double mean_excess = edge.now_mean_ns - edge.normal_mean_ns;
      if (edge.late_ops > 0 && edge.now_mean_ns >= 3 * edge.normal_mean_ns &&
          mean_excess >= 0.02 * result.lost_ns) {
        at_times.push_back(&edge);
      }
      continue;
    }
    bad.push_back(&edge);
    worst = std::max(worst, excess);
  }
  std::erase_if(bad, [&](const EdgeTransit* e) { return e->now_ns - e->normal_ns < 0.3 * worst; });

  // Network first: a blocked send side makes its GPU look slow.
  WorkerSet culprit;
  auto text_of = [](const EdgeTransit& edge) {
    return "a step from " + NameOf(*edge.from) + " to " + NameOf(*edge.to) + " takes " +
           Ms(edge.now_ns) + " in transit (usually " + Ms(edge.normal_ns) + ")";
  };
  // Acknowledgements that come back slowly look the same from the sender: only when
  // all other edges of the receiver are seen to be fine, it is the sender.
  auto leaves_slowly = [&](const EdgeTransit& edge) {
    if (!complete) return false;
    const WorkerShares* sender = shares_of(edge.from);
    return sender != nullptr && sender->excess(kSendNet) >= threshold &&
           edge.lag_ns < kLeavesWithArrival * edge.now_ns;
  };
  EdgeSet edges;
  for (const EdgeTransit* edge : bad) edges.insert({edge->from, edge->to});
  const std::vector<const EdgeTransit*> all_bad = bad;
  for (const EdgeSet& group : ConnectedEdges(edges)) {
    bad.clear();
    for (const EdgeTransit* edge : all_bad) {
      if (group.count({edge->from, edge->to}) != 0) bad.push_back(edge);
    }
    while (!bad.empty()) {
      // The worker that most of the slow edges share is where they are slow.
      WorkerMap<int> touches;
      for (const EdgeTransit* edge : bad) {
        ++touches[edge->from];
        ++touches[edge->to];
      }
      int most = 0, holders = 0;
      const Worker* node = nullptr;
      for (const auto& [worker, count] : touches) {
        if (count > most) {
          most = count;
          holders = 1;
          node = worker;
        } else if (count == most) {
          ++holders;
        }
      }
      Blame blame;
      if (most >= 2 && holders == 1) {
        blame.kind = BlameKind::kNetNode;
        blame.worker = node;
      } else {
        // One edge, or edges that do not agree: the side where the data leaves slowly.
        const EdgeTransit* first = bad[0];
        size_t slow_senders = 0;
        for (const EdgeTransit* edge : bad) {
          if (!leaves_slowly(*edge)) continue;
          ++slow_senders;
          first = edge;
        }
        blame.kind = slow_senders == 1 ? BlameKind::kNetSender : BlameKind::kNetEdge;
        blame.worker = first->from;
        blame.other = first->to;
        node = slow_senders == 1 || bad.size() == 1 ? first->from : nullptr;
      }
      for (const EdgeTransit* edge : bad) {
        if (node != nullptr && edge->from != node && edge->to != node) continue;
        blame.why += (blame.why.empty() ? "" : "; ") + text_of(*edge);
        const WorkerShares* sender = shares_of(edge->from);
        double cost = sender != nullptr && sender->excess(kSendNet) >= threshold
                          ? sender->excess(kSendNet)
                          : std::min(edge->now_total_ns, result.lost_ns);
        blame.excess_ns = std::max(blame.excess_ns, cost);
        culprit.insert(edge->from);
        blame.edges.push_back({edge->from, edge->to});
      }
      if (blame.kind == BlameKind::kNetSender) {
        blame.why += ", and leaves the sender no faster than it arrives";
      }
      result.blames.push_back(std::move(blame));
      std::erase_if(bad, [&](const EdgeTransit* edge) {
        return node == nullptr || edge->from == node || edge->to == node;
      });
    }
  }

  // Held up at times only: which end it was does not show in so few operations.
  // Now this one, now that: together they must explain the loss.
  auto held_up = [&](const EdgeTransit& edge) {
    const WorkerShares* sender = shares_of(edge.from);
    return sender == nullptr ? 0 : std::min(edge.now_total_ns, sender->excess(kSendNet));
  };
  double together = 0, most_held_up = 0;
  for (const EdgeTransit* edge : at_times) {
    together += held_up(*edge);
    most_held_up = std::max(most_held_up, held_up(*edge));
  }
  if (!all_bad.empty() || together < threshold) at_times.clear();
  for (const EdgeTransit* edge : at_times) {
    const double cost = held_up(*edge);
    if (cost < 0.4 * most_held_up) continue;
    char text[160];
    std::snprintf(text, sizeof text, "%zu of %zu operations held up in transit from ",
                  edge->late_ops, edge->now_ops);
    result.blames.push_back({BlameKind::kNetEdge,
                             edge->from,
                             edge->to,
                             cost,
                             text + NameOf(*edge->from) + " to " + NameOf(*edge->to) + ": " +
                                 Ms(edge->now_mean_ns) + " a step in the mean (usually " +
                                 Ms(edge->normal_mean_ns) + ")",
                             {{edge->from, edge->to}}});
    culprit.insert(edge->from);
  }

  for (const WorkerShares& s : result.shares) {
    struct Local {
      Share share;
      BlameKind kind;
      const char* text;
    };
    for (const Local& local :
         {Local{kHostGap, BlameKind::kHost, "with nothing enqueued"},
          Local{kFlush, BlameKind::kFlush, "in the flush from the NIC to the GPU"},
          Local{kOwnGpu, BlameKind::kGpu, "with data there that its GPU does not take"}}) {
      double excess = s.excess(local.share);
      if (excess < threshold || excess < 3 * s.noise[local.share]) continue;
      // When a peer that is not seen runs ahead, the usual compute phase shows as time
      // in which data waits for the GPU: it must be more than that.
      if (!complete && local.kind == BlameKind::kGpu && excess < 1.2 * result.normal_ns) continue;
      std::string why = NameOf(*s.worker) + " spends " + Ms(s.now[local.share]) + " per cycle " +
                        local.text + " (usually " + Ms(s.normal[local.share]) + ")";
      // A slow copy path holds up the GPU that waits for it.
      if (local.kind == BlameKind::kGpu && s.excess(kFlush) >= threshold &&
          s.excess(kOwnGpu) < 2 * s.excess(kFlush)) {
        result.rejected.push_back({"gpu of " + NameOf(*s.worker),
                                   why + ", but its flush from the NIC is slow as well: the path "
                                         "to the GPU explains both"});
        continue;
      }
      bool network_explains = local.kind == BlameKind::kGpu && culprit.count(s.worker) != 0;
      if (network_explains) {
        result.rejected.push_back(
            {"gpu of " + NameOf(*s.worker),
             why + ", but its sends are blocked: a GPU that cannot send cannot receive"});
        continue;
      }
      result.blames.push_back({local.kind, s.worker, nullptr, excess, why, {}});
    }
  }

  std::sort(result.blames.begin(), result.blames.end(),
            [](const Blame& a, const Blame& b) { return a.excess_ns > b.excess_ns; });
  // Own excesses far below the largest are side effects.
  if (!result.blames.empty()) {
    double largest = result.blames[0].excess_ns;
    std::erase_if(result.blames, [&](const Blame& b) {
      if (b.excess_ns >= 0.4 * largest) return false;
      result.rejected.push_back({NameOf(*b.worker), b.why + ": too little to explain the loss"});
      return true;
    });
  }
  WorkerSet named;
  for (const Blame& blame : result.blames) {
    result.evidence.push_back(blame.why);
    named.insert(blame.worker);
  }
  for (const WorkerShares& s : result.shares) {
    if (named.count(s.worker) != 0) continue;
    double waited = s.excess(kRemote) + s.excess(kSendPeer);
    if (waited > 0.2 * result.lost_ns) result.victims.push_back(s.worker);
    if (result.rejected.size() < 12 && !result.blames.empty()) {
      double own = std::max({s.excess(kHostGap), s.excess(kOwnGpu), s.excess(kFlush), 0.0});
      result.rejected.push_back(
          {NameOf(*s.worker), "only " + Ms(own) + " per cycle are its own, of " +
                                  Ms(result.lost_ns) + " lost; it waits for its peers"});
    }
  }
  if (!result.blames.empty()) {
    const bool edges_first = result.blames[0].kind == BlameKind::kNetEdge;
    for (const Blame& blame : result.blames) {
      const bool counts =
          &blame == &result.blames[0] || (edges_first && blame.kind == BlameKind::kNetEdge);
      if (counts) result.explained_ns += blame.excess_ns;
    }
    double explained = std::min(1.0, result.blames[0].excess_ns / result.lost_ns);
    result.confidence = 0.5 + 0.45 * explained;
    if (result.blames[0].kind == BlameKind::kNetEdge) result.confidence = 0.4;
  }
  return result;
}

}  // namespace mycroft
