// SPDX-License-Identifier: Apache-2.0
#include "userspace/report/top/rows.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "userspace/report/text.h"

namespace mycroft {
namespace {

using HostProcess = std::pair<std::string, ProcessKey>;

// Job ranks count per job, and one host may run several jobs: an incident blames
// only processes that are linked to its communicator, through communicators.
class BlameMap {
 public:
  explicit BlameMap(const TopData& data) {
    const std::vector<const Incident*> open = OpenIncidents(data);
    if (open.empty()) return;
    for (const CommView& comm : data.job.comms) {
      int first = -1;
      for (const RankView& rank : comm.ranks) {
        const int node = Node({rank.host, rank.process});
        if (first < 0) first = node;
        parents_[Root(node)] = Root(first);
      }
      if (first >= 0) comm_node_[comm.comm_id] = first;
    }
    for (const Incident* incident : open) {
      const auto at = comm_node_.find(incident->comm_id);
      const int job = at == comm_node_.end() ? -1 : Root(at->second);
      for (int32_t victim : incident->victims) Mark(job, victim, RowBlame::kVictim);
      for (const Culprit& culprit : incident->culprits) Mark(job, culprit.rank, RowBlame::kCulprit);
    }
  }

  RowBlame Of(const RankView& rank) const {
    if (marks_.empty()) return RowBlame::kNone;
    const auto node = nodes_.find({rank.host, rank.process});
    const int job = node == nodes_.end() ? -1 : Root(node->second);
    RowBlame blame = RowBlame::kNone;
    for (int of : {job, -1}) {
      const auto mark = marks_.find({of, rank.job_rank});
      if (mark != marks_.end()) blame = std::max(blame, mark->second);
    }
    return blame;
  }

 private:
  int Node(const HostProcess& process) {
    const auto [it, fresh] = nodes_.try_emplace(process, static_cast<int>(parents_.size()));
    if (fresh) parents_.push_back(it->second);
    return it->second;
  }
  int Root(int node) const {
    while (parents_[node] != node) node = parents_[node];
    return node;
  }
  void Mark(int job, int32_t rank, RowBlame blame) {
    if (rank < 0) return;
    RowBlame& mark = marks_[{job, rank}];
    mark = std::max(mark, blame);
  }

  std::map<HostProcess, int> nodes_;
  std::vector<int> parents_;
  std::map<uint64_t, int> comm_node_;
  std::map<std::pair<int, int32_t>, RowBlame> marks_;
};

std::string Lower(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

std::vector<std::string> Words(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  for (char c : Lower(text) + " ") {
    if (c != ' ') {
      word += c;
    } else if (!word.empty()) {
      words.push_back(word);
      word.clear();
    }
  }
  return words;
}

bool Matches(const std::string& text, const std::vector<std::string>& words) {
  if (words.empty()) return true;
  const std::string lower = Lower(text);
  return std::all_of(words.begin(), words.end(), [&](const std::string& word) {
    return lower.find(word) != std::string::npos;
  });
}

std::string SearchText(const CommView& comm, const RankView& rank, RowBlame blame) {
  std::string text = CommunicatorName(comm.comm_id, comm.name) + " rank " +
                     std::to_string(rank.job_rank) + " " + rank.host + " pid " +
                     std::to_string(rank.process.pid) + " " + rank.process_name + " " +
                     ToString(rank.func) + " " + ShortState(rank.wait);
  if (blame == RowBlame::kCulprit) text += " culprit";
  if (blame == RowBlame::kVictim) text += " victim";
  if (rank.in_flight) text += " in-flight";
  return text;
}

// Larger is first for all but rank and host: what hurts comes to the top.
bool Before(const TopRow& a, const TopRow& b, TopSort sort) {
  const RankView &x = *a.rank, &y = *b.rank;
  const auto tie = [&] {
    return std::tie(x.job_rank, a.comm->comm_id, x.rank) <
           std::tie(y.job_rank, b.comm->comm_id, y.rank);
  };
  switch (sort) {
    case TopSort::kRank:
      return tie();
    case TopSort::kAge: {
      const auto p = std::make_pair(x.in_flight, x.age_ns),
                 q = std::make_pair(y.in_flight, y.age_ns);
      return p != q ? p > q : tie();
    }
    case TopSort::kWait:
      return x.wait_age_ns != y.wait_age_ns ? x.wait_age_ns > y.wait_age_ns : tie();
    case TopSort::kProgress: {
      const double p = x.in_flight ? x.progress : 2, q = y.in_flight ? y.progress : 2;
      return p != q ? p < q : tie();
    }
    case TopSort::kRate: {
      const auto share = [](const RankView& r) {
        return r.baseline_bytes_per_s > 0 ? r.bytes_per_s / r.baseline_bytes_per_s : 1e9;
      };
      const double p = share(x), q = share(y);
      return p != q ? p < q : tie();
    }
    case TopSort::kHost:
      return x.host != y.host ? x.host < y.host : tie();
  }
  return false;
}

void Sort(std::vector<TopRow>& rows, const TopState& state) {
  std::sort(rows.begin(), rows.end(), [&](const TopRow& a, const TopRow& b) {
    return state.reverse ? Before(b, a, state.sort) : Before(a, b, state.sort);
  });
}

}  // namespace

bool IsOpen(const Incident& incident, uint64_t now_ns) {
  return !incident.cleared_ns || *incident.cleared_ns > now_ns;
}

std::vector<const Incident*> OpenIncidents(const TopData& data) {
  std::vector<const Incident*> open;
  for (const Incident& incident : data.incidents) {
    if (IsOpen(incident, data.job.t_ns)) open.push_back(&incident);
  }
  std::sort(open.begin(), open.end(), [](const Incident* a, const Incident* b) {
    const bool slow_a = a->kind == IncidentKind::kSlow, slow_b = b->kind == IncidentKind::kSlow;
    return std::tie(slow_a, a->onset_ns, a->id) < std::tie(slow_b, b->onset_ns, b->id);
  });
  return open;
}

std::vector<TopRow> BuildRows(const TopData& data, const TopState& state) {
  constexpr size_t kClearedShown = 3;
  const BlameMap blames(data);
  const std::vector<std::string> words = Words(state.filter);
  std::vector<TopRow> rows;
  if (state.show_incidents) {
    for (const Incident* incident : OpenIncidents(data)) {
      TopRow row;
      row.id = {RowId::Kind::kIncident, incident->id, 0};
      row.incident = incident;
      rows.push_back(row);
    }
    size_t cleared = 0;
    for (auto it = data.incidents.rbegin(); it != data.incidents.rend(); ++it) {
      if (IsOpen(*it, data.job.t_ns)) continue;
      if (++cleared > kClearedShown) break;
      TopRow row;
      row.id = {RowId::Kind::kIncident, it->id, 0};
      row.incident = &*it;
      rows.push_back(row);
    }
  }
  std::vector<TopRow> flat;
  for (const CommView& comm : data.job.comms) {
    if (comm.finalized && !state.show_finalized) continue;
    std::vector<TopRow> ranks;
    for (const RankView& rank : comm.ranks) {
      TopRow row;
      row.id = {RowId::Kind::kRank, comm.comm_id, rank.rank};
      row.comm = &comm;
      row.rank = &rank;
      row.blame = blames.Of(rank);
      if (state.only_troubled && row.blame == RowBlame::kNone && !rank.in_flight) continue;
      if (!Matches(SearchText(comm, rank, row.blame), words)) continue;
      ranks.push_back(row);
    }
    if (ranks.empty() && (!words.empty() || state.only_troubled)) continue;
    if (!state.tree) {
      flat.insert(flat.end(), ranks.begin(), ranks.end());
      continue;
    }
    TopRow head;
    head.id = {RowId::Kind::kComm, comm.comm_id, 0};
    head.comm = &comm;
    rows.push_back(head);
    if (state.collapsed.count(comm.comm_id) != 0) continue;
    Sort(ranks, state);
    if (!ranks.empty()) ranks.back().last_of_comm = true;
    rows.insert(rows.end(), ranks.begin(), ranks.end());
  }
  Sort(flat, state);
  rows.insert(rows.end(), flat.begin(), flat.end());
  return rows;
}

std::string ComponentName(Component component) {
  switch (component) {
    case Component::kUnknown:
      return "unknown";
    case Component::kGpu:
      return "GPU";
    case Component::kNvlink:
      return "NVLink";
    case Component::kPcie:
      return "PCIe";
    case Component::kNic:
      return "NIC";
    case Component::kFabric:
      return "network";
    case Component::kHost:
      return "host";
    case Component::kApp:
      return "application";
    case Component::kCcl:
      return "NCCL";
  }
  return "unknown";
}

std::string CulpritName(const Culprit& culprit) {
  std::string text = culprit.rank >= 0 ? "rank " + std::to_string(culprit.rank)
                                       : "pid " + std::to_string(culprit.pid);
  if (culprit.component != Component::kUnknown) {
    return text + " " + ComponentName(culprit.component);
  }
  for (size_t i = 0; i < culprit.candidates.size(); ++i) {
    const bool last = i + 1 == culprit.candidates.size();
    text += (i == 0 ? " " : last ? " or " : ", ") + ComponentName(culprit.candidates[i]);
  }
  return culprit.candidates.empty() ? text + " (cause unknown)" : text;
}

std::string CommunicatorName(uint64_t id, const std::string& name) {
  return name.empty() ? HexText(id) : PrintableText(name);
}

const char* ShortState(mc_flow_state state) {
  switch (state) {
    case MC_FLOW_IDLE:
      return "-";
    case MC_FLOW_QUEUED:
      return "queued";
    case MC_FLOW_PROGRESS:
      return "starting";
    case MC_FLOW_SEND_GPU:
      return "send GPU";
    case MC_FLOW_SEND_PEER:
      return "send peer";
    case MC_FLOW_SEND_NET:
      return "send net";
    case MC_FLOW_RECV_REMOTE:
      return "recv peer";
    case MC_FLOW_RECV_FLUSH:
      return "recv bus";
    case MC_FLOW_RECV_GPU:
      return "recv GPU";
  }
  return "?";
}

}  // namespace mycroft
