// SPDX-License-Identifier: Apache-2.0
#include "userspace/attribute/evidence.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "userspace/attribute/facts.h"
#include "userspace/attribute/wait_graph.h"
#include "userspace/model/devices.h"

namespace mycroft {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kJoinNs = 10'000'000;  // post and hand-over of the same step
constexpr size_t kMostEvidence = 12, kMostRejected = 12;

using EdgeOf = WorkerOrder::Edge;

class Judge {
 public:
  explicit Judge(const EvidenceInput& input) : in_(input), hw_(*input.hardware) {}

  EvidenceResult Run() {
    result_.opinions.resize(in_.suspects.size());
    if (!hw_.any()) return std::move(result_);
    facts_ = FindFacts(in_);
    used_.resize(facts_.size());
    roots_.resize(in_.suspects.size());
    for (size_t i = 0; i < in_.suspects.size(); ++i) {
      result_.opinions[i] = OpinionOn(in_.suspects[i], &roots_[i]);
    }
    SharedBridges();
    SharedHosts();
    SameLinks();
    SharedPorts();
    AfterEffects();
    if (in_.suspects.empty()) Unasked();
    Report();
    return std::move(result_);
  }

 private:
  static bool Touches(const Suspect& suspect, const Worker* worker) {
    if (suspect.worker == worker || suspect.other == worker) return true;
    return std::any_of(suspect.edges.begin(), suspect.edges.end(),
                       [&](const EdgeOf& e) { return e.first == worker || e.second == worker; });
  }

  // The edges of a suspect that a fact speaks of.
  static size_t Covers(const Fact& fact, const Suspect& suspect) {
    std::vector<EdgeOf> edges = suspect.edges;
    if (suspect.shape == SuspectShape::kEdge) edges = {{suspect.worker, suspect.other}};
    return std::count_if(edges.begin(), edges.end(), [&](const EdgeOf& e) {
      const bool here = e.first == fact.worker || e.second == fact.worker;
      const bool there = fact.other == nullptr || e.first == fact.other || e.second == fact.other;
      return here && there;
    });
  }

  bool Concerns(const Fact& fact, const Suspect& suspect) const {
    const uint32_t shapes = suspect.shape == SuspectShape::kEnded
                                ? ShapeBit(SuspectShape::kEdge) | ShapeBit(SuspectShape::kNode)
                                : ShapeBit(suspect.shape);
    if ((fact.shapes & shapes) == 0) return false;
    switch (suspect.shape) {
      case SuspectShape::kEnded:
        // For want of a CPU no request fails.
        return fact.component != Component::kHost &&
               (fact.worker == suspect.worker || fact.other == suspect.worker);
      case SuspectShape::kGpu:
      case SuspectShape::kFlush:
      case SuspectShape::kHost:
      case SuspectShape::kAbsent:
      case SuspectShape::kDead:
        return fact.worker == suspect.worker;
      case SuspectShape::kEdge:
        return Covers(fact, suspect) > 0;
      case SuspectShape::kNode:
        return fact.worker == suspect.worker || Covers(fact, suspect) > 0;
    }
    return false;
  }

  Opinion OpinionOf(const Fact& fact, double confidence) const {
    Opinion opinion;
    opinion.changed = true;
    opinion.worker = fact.worker;
    opinion.component = fact.component;
    opinion.confidence = confidence;
    opinion.where = fact.device;
    const char* part = "";
    switch (fact.component) {
      case Component::kGpu:
        part = "the GPU of ";
        break;
      case Component::kPcie:
        part = "the PCIe path of ";
        break;
      case Component::kNic:
        part = "the NIC of ";
        break;
      case Component::kHost:
        part = "the host of ";
        break;
      case Component::kApp:
        part = "the application on ";
        break;
      case Component::kFabric:
        part = "the network between ";
        break;
      case Component::kNvlink:
        part = "the NVLinks of ";
        break;
      case Component::kUnknown:
      case Component::kCcl:
        part = "";
        break;
    }
    opinion.what = part + NameOf(*fact.worker);
    if (fact.component == Component::kFabric && fact.other != nullptr) {
      opinion.what += " and " + NameOf(*fact.other);
    }
    opinion.what += " (" + fact.what + ")";
    return opinion;
  }

  // `decided`: the facts on which it rests.
  Opinion OpinionOn(const Suspect& suspect, std::vector<size_t>* decided) {
    std::vector<size_t> concerned;
    for (size_t i = 0; i < facts_.size(); ++i) {
      if (facts_[i].refused.empty() && Concerns(facts_[i], suspect)) concerned.push_back(i);
    }
    // What another fact at the same place makes happen is not a cause.
    std::vector<size_t> roots;
    for (size_t i : concerned) {
      const bool explained = std::any_of(concerned.begin(), concerned.end(), [&](size_t k) {
        return facts_[k].weight >= Weight::kStrong && Explains(facts_[k], facts_[i]);
      });
      if (!explained && facts_[i].weight >= Weight::kStrong) roots.push_back(i);
    }
    for (size_t i : concerned) used_[i] = true;
    const bool decisive = std::any_of(roots.begin(), roots.end(), [&](size_t i) {
      return facts_[i].weight == Weight::kDecisive;
    });
    if (decisive) {
      std::erase_if(roots, [&](size_t i) { return facts_[i].weight != Weight::kDecisive; });
    }
    // What the shared worker has itself comes before what explains some of its edges.
    if (suspect.shape == SuspectShape::kNode) {
      const bool own = std::any_of(roots.begin(), roots.end(),
                                   [&](size_t i) { return facts_[i].worker == suspect.worker; });
      if (own) {
        std::erase_if(roots, [&](size_t i) {
          return facts_[i].worker != suspect.worker &&
                 Covers(facts_[i], suspect) < suspect.edges.size();
        });
      }
    }
    if (roots.empty()) {
      return suspect.shape == SuspectShape::kFlush ? OverSoftware(suspect) : OverVerbs(suspect);
    }
    std::sort(roots.begin(), roots.end(),
              [&](size_t a, size_t b) { return facts_[a].since_ns < facts_[b].since_ns; });
    for (size_t i : roots) chosen_.insert(i);
    *decided = roots;
    std::set<std::pair<size_t, Component>> places;
    bool unknown = false, fabric = true;
    for (size_t i : roots) {
      places.insert({facts_[i].worker->index, facts_[i].component});
      unknown |= facts_[i].component == Component::kUnknown;
      fabric &= facts_[i].component == Component::kFabric;
    }
    const Fact& first = facts_[roots[0]];
    // Of several broken edges it must explain all, or be at the worker that they share.
    const bool all_edges = suspect.shape != SuspectShape::kNode || first.worker == suspect.worker ||
                           Covers(first, suspect) == suspect.edges.size();
    if ((places.size() == 1 || fabric) && !unknown && all_edges) {
      double confidence = decisive ? 0.92 : 0.75;
      if (first.component == Component::kFabric) confidence = 0.6;
      Opinion opinion = OpinionOf(first, confidence);
      if (first.component == Component::kFabric && suspect.shape == SuspectShape::kEdge) {
        opinion.worker = suspect.worker;
      }
      return opinion;
    }
    // They name different culprits: say so.
    Opinion opinion;
    opinion.changed = true;
    opinion.worker = suspect.worker;
    opinion.confidence = 0.4;
    std::set<Component> candidates;
    for (size_t i : roots) {
      if (facts_[i].component != Component::kUnknown) candidates.insert(facts_[i].component);
      if (facts_[i].kind == FactKind::kBadRequest && facts_[i].component == Component::kUnknown) {
        candidates.insert({Component::kApp, Component::kNic});
      }
      if (facts_[i].refused_request) candidates.insert({Component::kApp, Component::kNic});
      if (facts_[i].kind == FactKind::kPauses) {
        candidates.insert({Component::kNic, Component::kPcie, Component::kHost});
      }
    }
    if (!all_edges) candidates.insert({Component::kNic, Component::kFabric});
    // Both ends of a link went down: the link, or what both hang on.
    if (candidates.size() == 1 && *candidates.begin() == Component::kNic) {
      candidates.insert(Component::kFabric);
    }
    if (suspect.component != Component::kUnknown) candidates.insert(suspect.component);
    opinion.candidates.assign(candidates.begin(), candidates.end());
    opinion.what = (suspect.other != nullptr ? "the path from " + NameOf(*suspect.worker) + " to " +
                                                   NameOf(*suspect.other)
                                             : NameOf(*suspect.worker)) +
                   (std::all_of(roots.begin(), roots.end(),
                                [&](size_t i) { return facts_[i].refused_request; })
                        ? " (one end refused a request)"
                        : " (the evidence does not agree)");
    return opinion;
  }

  // A flush over a software device (Soft-RoCE) without a GPU: the kernel copies, nothing goes
  // over PCIe.
  Opinion OverSoftware(const Suspect& suspect) {
    Opinion opinion;
    const auto ports = PortsOf(hw_, *suspect.worker);
    const bool software =
        !ports.empty() && std::all_of(ports.begin(), ports.end(),
                                      [](const Port* port) { return port->now.pci.empty(); });
    if (!software || !GpuOf(hw_, *suspect.worker).empty()) return opinion;
    opinion.changed = true;
    opinion.worker = suspect.worker;
    opinion.component = Component::kHost;
    opinion.confidence = 0.6;
    opinion.what = "the host of " + NameOf(*suspect.worker) + " (its RDMA device " +
                   ports.front()->now.device + " is software: its kernel copies the data)";
    return opinion;
  }

  // The callbacks name the sender of an edge when all that it has finished has arrived:
  // right for TCP, where a step is finished when it is in the kernel's buffer. Over
  // verbs it is finished when the other end has acknowledged it, and what is missing
  // may be anywhere on the way.
  Opinion OverVerbs(const Suspect& suspect) {
    Opinion opinion;
    if (suspect.shape != SuspectShape::kEdge || suspect.component != Component::kNic)
      return opinion;
    // Its queue pairs may not be seen yet, or at all; that it uses RDMA is.
    if (QpsOfEdge(hw_, *suspect.worker, *suspect.other).empty() &&
        (!OpensRdma(*suspect.worker) || !OpensRdma(*suspect.other))) {
      return opinion;
    }
    opinion.changed = true;
    opinion.worker = suspect.worker;
    opinion.candidates = {Component::kNic, Component::kFabric};
    opinion.confidence = 0.4;
    opinion.what = "the path from " + NameOf(*suspect.worker) + " to " + NameOf(*suspect.other);
    return opinion;
  }

  bool OpensRdma(const Worker& worker) const {
    const ProcessState* process = hw_.FindProcess(worker.host, worker.key);
    return process != nullptr && !process->now.rdma_devices.empty();
  }

  // ---- tomography --------------------------------------------------------------------

  // Neither the callbacks nor the facts name a component.
  bool Unresolved(size_t i) const {
    const Opinion& opinion = result_.opinions[i];
    if (!opinion.changed) return in_.suspects[i].component == Component::kUnknown;
    return opinion.component == Component::kUnknown;
  }

  std::set<const PciDevice*> BridgesOf(const Worker& worker) const {
    std::set<const PciDevice*> bridges;
    const HostHardware* host = hw_.FindHost(worker.host);
    if (host == nullptr) return bridges;
    std::vector<std::string> ends = {GpuOf(hw_, worker)};
    for (const Port* port : PortsOf(hw_, worker)) ends.push_back(port->now.pci);
    for (const std::string& end : ends) {
      const auto path = HardwareModel::PathToRoot(*host, end);
      for (size_t i = 1; i < path.size(); ++i) bridges.insert(path[i]);
    }
    return bridges;
  }

  static bool BelowABridge(SuspectShape shape) {
    return shape == SuspectShape::kGpu || shape == SuspectShape::kFlush ||
           shape == SuspectShape::kNode;
  }

  // Several workers of one host are slow at the same time, all below one bridge, and
  // none below it is well: the bridge explains them all. GPUs alone may as well be
  // slow together (power, heat): one of them must show its path, too.
  void SharedBridges() {
    std::map<std::string, std::vector<size_t>> by_host;
    for (size_t i = 0; i < in_.suspects.size(); ++i) {
      const Suspect& s = in_.suspects[i];
      const Opinion& opinion = result_.opinions[i];
      if (!BelowABridge(s.shape)) continue;
      if (opinion.changed && opinion.component != Component::kPcie) continue;
      by_host[s.worker->host].push_back(i);
    }
    for (const auto& [name, suspects] : by_host) {
      if (suspects.size() < 2) continue;
      std::map<const PciDevice*, std::vector<size_t>> below;
      for (size_t i : suspects) {
        for (const PciDevice* bridge : BridgesOf(*in_.suspects[i].worker))
          below[bridge].push_back(i);
      }
      std::set<const PciDevice*> well;
      for (const Worker* worker : *in_.job) {
        if (worker->host != name) continue;
        const bool suspected = std::any_of(in_.suspects.begin(), in_.suspects.end(),
                                           [&](const Suspect& s) { return s.worker == worker; });
        if (suspected) continue;
        for (const PciDevice* bridge : BridgesOf(*worker)) well.insert(bridge);
      }
      const PciDevice* best = nullptr;
      size_t best_depth = 0;
      for (const auto& [bridge, members] : below) {
        if (members.size() < 2 || well.count(bridge) != 0) continue;
        const size_t depth =
            HardwareModel::PathToRoot(*hw_.FindHost(name), bridge->now.address).size();
        const bool better = best == nullptr || members.size() > below[best].size() ||
                            (members.size() == below[best].size() && depth > best_depth);
        if (better) {
          best = bridge;
          best_depth = depth;
        }
      }
      if (best == nullptr) continue;
      const auto& members = below[best];
      bool path_shown = false;
      std::string who;
      for (size_t i : members) {
        path_shown |= in_.suspects[i].shape != SuspectShape::kGpu ||
                      result_.opinions[i].component == Component::kPcie;
        who += (who.empty() ? "" : ", ") + NameOf(*in_.suspects[i].worker);
      }
      // One worker is no group, whatever it is suspected of.
      std::set<const Worker*> workers;
      for (size_t i : members) workers.insert(in_.suspects[i].worker);
      if (!path_shown || workers.size() < 2) continue;
      for (size_t i : members) {
        Opinion& opinion = result_.opinions[i];
        opinion.changed = true;
        opinion.after_effect = i != members[0];
        opinion.worker = in_.suspects[members[0]].worker;
        opinion.component = Component::kPcie;
        opinion.candidates.clear();
        opinion.confidence = 0.8;
        opinion.where = "bridge " + best->now.address + " above " + who;
        opinion.what = "the PCIe bridge " + best->now.address + " that " + who + " share";
      }
      Say("all of " + who + " are below PCIe bridge " + best->now.address +
          " and are affected at the same time; no worker below it is well");
    }
  }

  // Every rank of a host is short of the same, CPU or memory: that is one origin, the host,
  // however many of its ranks are waited for.
  void SharedHosts() {
    std::map<std::string, WorkerSet> here;
    for (const Worker* worker : *in_.job) here[worker->host].insert(worker);
    std::map<std::pair<std::string, FactKind>, WorkerSet> lacking;
    for (const Fact& fact : facts_) {
      if (!fact.refused.empty() || fact.weight < Weight::kStrong) continue;
      if (fact.kind != FactKind::kStarved && fact.kind != FactKind::kReclaim) continue;
      lacking[{fact.worker->host, fact.kind}].insert(fact.worker);
    }
    for (const auto& [place, workers] : lacking) {
      const auto& [host, kind] = place;
      if (workers.size() < 2 || workers != here[host]) continue;
      std::vector<size_t> members;
      for (size_t i = 0; i < in_.suspects.size(); ++i) {
        const Opinion& opinion = result_.opinions[i];
        const Worker* worker = opinion.changed ? opinion.worker : in_.suspects[i].worker;
        const Component component = opinion.changed ? opinion.component : in_.suspects[i].component;
        const bool its = worker->host == host && component == Component::kHost;
        // What a rank has itself comes first.
        const bool of_it =
            std::all_of(roots_[i].begin(), roots_[i].end(),
                        [&, k = kind](size_t root) { return facts_[root].kind == k; });
        if (its && of_it && !opinion.after_effect) members.push_back(i);
      }
      if (members.empty()) continue;
      const std::string all = "all of its " + std::to_string(workers.size()) + " ranks";
      const std::string lack = kind == FactKind::kStarved ? "get no CPU" : "reclaim memory";
      for (size_t i : members) {
        Opinion& opinion = result_.opinions[i];
        if (!opinion.changed) opinion.worker = in_.suspects[i].worker;
        opinion.changed = true;
        opinion.after_effect = i != members[0];
        opinion.component = Component::kHost;
        opinion.confidence = std::max(opinion.confidence, 0.8);
        opinion.where = "host " + host + ", " + all;
        opinion.what = "host " + host + " (" + all + " " + lack + ")";
      }
      Say("on host " + host + " " + all + " " + lack + ": it is the host, not one of them");
    }
  }

  struct Ends {
    std::set<std::pair<std::string, const Port*>> from, to;
  };
  Ends PortsOfEdge(const Worker& from, const Worker& to) const {
    Ends ends;
    const HostHardware* here = hw_.FindHost(from.host);
    if (here == nullptr) return ends;
    const auto qps = QpsOfEdge(hw_, from, to);
    // Which queue pairs they are is not known; where each has one port only, the way is.
    if (qps.empty()) {
      const auto mine = PortsOf(hw_, from), theirs = PortsOf(hw_, to);
      if (mine.size() != 1 || theirs.size() != 1) return ends;
      ends.from.insert({from.host, mine[0]});
      ends.to.insert({to.host, theirs[0]});
    }
    for (const Qp* qp : qps) {
      const Port* mine = hw_.FindPort(from.host, qp->now.device, qp->now.port);
      const HardwareModel::QpEnd end = hw_.Remote(*here, *qp);
      const Port* theirs =
          end.qp == nullptr ? nullptr : hw_.FindPort(to.host, end.qp->now.device, end.qp->now.port);
      if (mine == nullptr || theirs == nullptr) return {};  // half a path decides nothing
      ends.from.insert({from.host, mine});
      ends.to.insert({to.host, theirs});
    }
    return ends;
  }

  // A path between the two ports between which data is lost on another path, and nothing else
  // explains it: the same link, whichever way its data goes.
  void SameLinks() {
    std::vector<size_t> lossy, candidates;
    for (size_t i = 0; i < in_.suspects.size(); ++i) {
      if (in_.suspects[i].shape != SuspectShape::kEdge) continue;
      const Opinion& opinion = result_.opinions[i];
      const bool fabric = opinion.changed && opinion.component == Component::kFabric;
      if (fabric) lossy.push_back(i);
      if (fabric || Unresolved(i)) candidates.push_back(i);
    }
    if (lossy.empty() || candidates.size() < 2) return;
    std::map<size_t, decltype(Ends::from)> ports;
    for (size_t i : candidates) {
      Ends ends = PortsOfEdge(*in_.suspects[i].worker, *in_.suspects[i].other);
      ends.from.merge(ends.to);
      ports[i] = std::move(ends.from);
    }
    for (size_t i : lossy) {
      const Opinion& known = result_.opinions[i];
      if (known.after_effect || ports[i].empty()) continue;
      for (size_t k : candidates) {
        if (k == i || ports[k] != ports[i]) continue;
        result_.opinions[k] = known;
        result_.opinions[k].after_effect = true;
      }
    }
  }

  // Broken or slow paths between different workers: the port that all of them share,
  // if no healthy path uses it; if every port of them also serves healthy paths, what
  // lies between.
  void SharedPorts() {
    std::vector<size_t> open;
    for (size_t i = 0; i < in_.suspects.size(); ++i) {
      const bool edge = in_.suspects[i].shape == SuspectShape::kEdge;
      if (edge && Unresolved(i)) open.push_back(i);
    }
    if (open.size() < 2) return;
    std::map<std::pair<std::string, const Port*>, std::set<size_t>> uses;
    std::map<std::pair<std::string, const Port*>, const Worker*> owner;
    for (size_t i : open) {
      const Suspect& s = in_.suspects[i];
      const Ends ends = PortsOfEdge(*s.worker, *s.other);
      if (ends.from.empty()) return;
      for (const auto& port : ends.from) {
        uses[port].insert(i);
        owner.emplace(port, s.worker);
      }
      for (const auto& port : ends.to) {
        uses[port].insert(i);
        owner.emplace(port, s.other);
      }
    }
    std::set<std::pair<std::string, const Port*>> well;
    for (const auto& [from, to] : in_.healthy_edges) {
      const Ends ends = PortsOfEdge(*from, *to);
      well.insert(ends.from.begin(), ends.from.end());
      well.insert(ends.to.begin(), ends.to.end());
    }
    std::vector<std::pair<std::string, const Port*>> all;
    bool each_end_well = true;
    for (const auto& [port, edges] : uses) {
      each_end_well &= well.count(port) != 0;
      if (edges.size() == open.size() && well.count(port) == 0) all.push_back(port);
    }
    Opinion opinion;
    opinion.changed = true;
    if (all.size() == 1) {
      opinion.worker = owner[all[0]];
      opinion.component = Component::kNic;
      opinion.confidence = 0.75;
      opinion.where = PortName(*all[0].second);
      opinion.what = "port " + PortName(*all[0].second) + " of " + all[0].first;
      Say("all slow paths go through port " + PortName(*all[0].second) + " of " + all[0].first +
          ", and no healthy one does");
    } else if (each_end_well && !uses.empty()) {
      opinion.worker = in_.suspects[open[0]].worker;
      opinion.component = Component::kFabric;
      opinion.confidence = 0.6;
      opinion.what = "the network between the hosts";
      Say("several paths are slow, and every port of them also serves paths that are not: what "
          "they share lies between");
    } else if (all.size() == 2) {
      // Each of them has these two ends: one link, or what one of its ends hangs on.
      const std::string link = "port " + PortName(*all[0].second) + " of " + all[0].first +
                               " and port " + PortName(*all[1].second) + " of " + all[1].first;
      opinion.worker = in_.suspects[open[0]].worker;
      opinion.candidates = {Component::kNic, Component::kFabric};
      opinion.confidence = 0.5;
      opinion.where = PortName(*all[0].second) + " to " + PortName(*all[1].second);
      opinion.what = "the link between " + link;
      Say("all paths that are waited for go between " + link);
    } else {
      return;
    }
    for (size_t i : open) {
      result_.opinions[i] = opinion;
      result_.opinions[i].after_effect = i != open[0];
    }
  }

  // What explains one suspect may follow from what explains another: a port without a partner
  // from the one that was switched off.
  void FollowsFromAnother(size_t i) {
    if (roots_[i].empty() || !result_.opinions[i].changed || result_.opinions[i].after_effect)
      return;
    for (size_t k = 0; k < in_.suspects.size(); ++k) {
      if (k == i || !result_.opinions[k].changed || result_.opinions[k].after_effect) continue;
      const bool follows = std::all_of(roots_[i].begin(), roots_[i].end(), [&](size_t effect) {
        return std::any_of(roots_[k].begin(), roots_[k].end(),
                           [&](size_t cause) { return Explains(facts_[cause], facts_[effect]); });
      });
      if (!follows) continue;
      result_.opinions[i].after_effect = true;
      for (size_t effect : roots_[i]) chosen_.erase(effect);
      return;
    }
  }

  // A path that nothing explains, next to one that is explained: its after-effect.
  // The same origin is reported once.
  void AfterEffects() {
    for (size_t i = 0; i < in_.suspects.size(); ++i) FollowsFromAnother(i);
    for (size_t i = 0; i < in_.suspects.size(); ++i) {
      if (!result_.opinions[i].after_effect) chosen_.insert(roots_[i].begin(), roots_[i].end());
    }
    WorkerSet explained;
    for (size_t i = 0; i < in_.suspects.size(); ++i) {
      const Opinion& opinion = result_.opinions[i];
      if (!opinion.changed || opinion.component == Component::kUnknown) continue;
      explained.insert(opinion.worker);
      explained.insert(in_.suspects[i].worker);
      if (in_.suspects[i].other != nullptr) explained.insert(in_.suspects[i].other);
    }
    for (size_t i = 0; i < in_.suspects.size(); ++i) {
      Opinion& opinion = result_.opinions[i];
      const Suspect& s = in_.suspects[i];
      if (!opinion.changed && s.shape == SuspectShape::kEdge &&
          s.component == Component::kUnknown &&
          (explained.count(s.worker) != 0 || explained.count(s.other) != 0)) {
        opinion.changed = true;
        opinion.after_effect = true;
        opinion.worker = s.worker;
      }
      for (size_t k = 0; k < i && opinion.changed; ++k) {
        const Opinion& before = result_.opinions[k];
        // Or another process of the same host that uses the same port.
        const bool place = before.worker == opinion.worker ||
                           (before.worker != nullptr && opinion.worker != nullptr &&
                            !opinion.where.empty() && before.worker->host == opinion.worker->host);
        const bool same = before.changed && !before.after_effect && place &&
                          before.component == opinion.component && before.where == opinion.where;
        opinion.after_effect |= same;
      }
    }
  }

  // The chain of waiting ends at somebody who is not seen: what is broken here for
  // certain is still worth a name.
  void Unasked() {
    std::set<std::pair<size_t, Component>> done;
    std::vector<size_t> roots;
    for (size_t i = 0; i < facts_.size(); ++i) {
      const Fact& fact = facts_[i];
      if (!fact.refused.empty() || fact.weight != Weight::kDecisive) continue;
      const bool explained = std::any_of(facts_.begin(), facts_.end(), [&](const Fact& other) {
        return other.weight >= Weight::kStrong && Explains(other, fact);
      });
      if (!explained) roots.push_back(i);
    }
    for (size_t i : roots) {
      const Fact& fact = facts_[i];
      if (!done.insert({fact.worker->index, fact.component}).second) continue;
      result_.unasked.push_back(OpinionOf(fact, 0.8));
      chosen_.insert(i);
      used_[i] = true;
    }
    // More than two origins at once are no explanation.
    if (result_.unasked.size() > 2) {
      result_.unasked.clear();
      chosen_.clear();
    }
  }

  // ---- words ----------------------------------------------------------------------------

  void Say(const std::string& text) {
    auto& list = result_.evidence;
    if (list.size() >= kMostEvidence || std::find(list.begin(), list.end(), text) != list.end()) {
      return;
    }
    list.push_back(text);
  }
  void Reject(const std::string& suspect, const std::string& reason) {
    auto& list = result_.rejected;
    if (list.size() >= kMostRejected) return;
    const Rejected rejected{suspect, reason};
    if (std::find(list.begin(), list.end(), rejected) == list.end()) list.push_back(rejected);
  }

  void Report() {
    for (size_t i : chosen_) Say(facts_[i].text);
    // A GPU that is gone may have lost its slot, its power or its board.
    for (size_t i : chosen_) {
      if (facts_[i].kind != FactKind::kGpuGone && !facts_[i].suspect_path) continue;
      Say("warning: the PCIe path to GPU " + facts_[i].device +
          " is suspect as well (slot, riser, power)");
    }
    for (size_t i = 0; i < facts_.size(); ++i) {
      const Fact& fact = facts_[i];
      if (!used_[i] || chosen_.count(i) != 0 || !fact.refused.empty()) continue;
      // What would name somebody else, did it not follow from what was chosen.
      const auto cause = std::find_if(chosen_.begin(), chosen_.end(), [&](size_t c) {
        return facts_[c].worker != fact.worker && Explains(facts_[c], fact);
      });
      if (cause != chosen_.end() && fact.component != Component::kUnknown &&
          fact.weight >= Weight::kStrong) {
        Reject(std::string(ToString(fact.component)) + " of " + NameOf(*fact.worker),
               fact.text + "; but it follows from " + NameOf(*facts_[*cause].worker) + ": " +
                   facts_[*cause].what);
      } else {
        Say(fact.text);
      }
    }
    for (const Suspect& suspect : in_.suspects) Join(suspect);
    for (size_t i = 0; i < facts_.size(); ++i) {
      const Fact& fact = facts_[i];
      if (used_[i] && fact.refused.empty()) continue;
      const std::string who =
          fact.component == Component::kUnknown
              ? NameOf(*fact.worker)
              : std::string(ToString(fact.component)) + " of " + NameOf(*fact.worker);
      if (!fact.refused.empty()) {
        Reject(who, fact.text + "; but " + fact.refused);
      } else if (!in_.suspects.empty() && fact.weight >= Weight::kStrong) {
        Reject(who, fact.text + "; but it has no mechanism for what is waited for");
      }
    }
    for (size_t i = 0; i < in_.suspects.size(); ++i)
      Alternatives(in_.suspects[i], result_.opinions[i]);
  }

  // How the flow was found among the queue pairs.
  void Join(const Suspect& suspect) {
    if (suspect.shape != SuspectShape::kEdge) return;
    const HostHardware* here = hw_.FindHost(suspect.worker->host);
    if (here == nullptr) return;
    const auto qps = QpsOfEdge(hw_, *suspect.worker, *suspect.other);
    if (qps.empty()) return;
    const Qp* qp = qps[0];
    uint64_t nearest = UINT64_MAX;
    for (const Qp* candidate : qps) {
      const uint64_t distance = PostDistance(*suspect.worker, *suspect.other, *candidate);
      if (distance < nearest) {
        nearest = distance;
        qp = candidate;
      }
    }
    char text[320];
    std::snprintf(text, sizeof(text), "%s to %s is queue pair %u of %.40s",
                  NameOf(*suspect.worker).c_str(), NameOf(*suspect.other).c_str(), qp->now.number,
                  qp->now.device.c_str());
    std::string line = text;
    const HardwareModel::QpEnd end = hw_.Remote(*here, *qp);
    if (end.qp != nullptr) {
      std::snprintf(text, sizeof(text), ", connected to %u of %.40s on %.60s", end.qp->now.number,
                    end.qp->now.device.c_str(), end.host->name.c_str());
      line += text;
    }
    if (nearest <= kJoinNs) {
      std::snprintf(text, sizeof(text), "; its last post is %.1f us from the step's hand-over",
                    static_cast<double>(nearest) / 1e3);
      line += text;
    }
    if (qp->total_posts() == 0) {
      line += "; no post was seen on it: its silence says nothing";
    }
    Say(line);
  }

  static uint64_t PostDistance(const Worker& from, const Worker& to, const Qp& qp) {
    uint64_t nearest = UINT64_MAX;
    if (qp.now.last_post_ns == 0) return nearest;
    for (const auto& [line, member] : from.members) {
      for (const auto& [index, flow] : member->flows) {
        auto peer = member->comm->members.find(flow.peer);
        if (flow.direction != MC_SEND || flow.transmitted_ns == 0 || flow.owner_pid != 0 ||
            peer == member->comm->members.end() || peer->second->worker != &to) {
          continue;
        }
        const uint64_t a = qp.now.last_post_ns, b = flow.transmitted_ns;
        nearest = std::min(nearest, a > b ? a - b : b - a);
      }
    }
    return nearest;
  }

  // What was looked at and is well: the other components at the place of the verdict.
  void Alternatives(const Suspect& suspect, const Opinion& opinion) {
    const Component verdict = opinion.changed ? opinion.component : suspect.component;
    if (opinion.after_effect || !opinion.changed) return;
    if (opinion.changed && suspect.component != Component::kUnknown &&
        suspect.component != verdict && verdict != Component::kUnknown) {
      Reject(std::string(ToString(suspect.component)) + " of " + NameOf(*suspect.worker),
             "it only shows what " + opinion.what + " causes");
    }
    WorkerSet places = {suspect.worker, opinion.worker};
    if (suspect.other != nullptr) places.insert(suspect.other);
    for (const Worker* worker : places) {
      auto has = [&](Component component) {
        return std::any_of(facts_.begin(), facts_.end(), [&](const Fact& fact) {
          return fact.worker == worker && fact.component == component;
        });
      };
      const auto ports = PortsOf(hw_, *worker);
      if (verdict != Component::kNic && !ports.empty() && !has(Component::kNic)) {
        bool active = true;
        std::string names;
        for (const Port* port : ports) {
          active &= port->now.state.find("ACTIVE") != std::string::npos;
          if (names.size() < 80) names += (names.empty() ? "" : ", ") + PortName(*port);
        }
        if (active) {
          Reject("nic of " + NameOf(*worker),
                 "its ports (" + names + ") are ACTIVE and count no errors of their own");
        }
      }
      const HostHardware* host = hw_.FindHost(worker->host);
      const std::string gpu = GpuOf(hw_, *worker);
      if (host != nullptr && verdict != Component::kGpu && !has(Component::kGpu)) {
        const auto it = host->gpus.find(gpu);
        if (it != host->gpus.end() && it->second.now.silent_since_ns == 0 &&
            it->second.now.sm_mhz && it->second.now.sm_max_mhz) {
          Reject("gpu of " + NameOf(*worker),
                 "it runs at " + std::to_string(*it->second.now.sm_mhz) + " of " +
                     std::to_string(*it->second.now.sm_max_mhz) +
                     " MHz, its driver answers and reports no slowdown, no ECC error, no Xid");
        }
      }
      if (host != nullptr && !gpu.empty() && verdict != Component::kPcie &&
          !has(Component::kPcie)) {
        const auto path = HardwareModel::PathToRoot(*host, gpu);
        if (!path.empty() && path[0]->link.At(in_.now_ns) != nullptr && path[0]->gone_ns == 0 &&
            path[0]->unreachable_ns == 0) {
          Reject("pcie of " + NameOf(*worker),
                 "no link between GPU " + gpu +
                     " and the root is seen below what it allows under "
                     "load, no errors (AER)");
        }
      }
    }
  }

  const EvidenceInput& in_;
  const HardwareModel& hw_;
  EvidenceResult result_;
  std::vector<Fact> facts_;
  std::vector<bool> used_;   // has a mechanism for a suspect
  std::vector<std::vector<size_t>> roots_;  // of each suspect: the facts that decided
  std::set<size_t> chosen_;  // decided
};

}  // namespace

bool TurnsExplain(double turn_ns, double transit_excess_ns) {
  constexpr double kTurnsOfAStep = 8, kOfTheExcess = 0.5;
  return kTurnsOfAStep * turn_ns >= kOfTheExcess * transit_excess_ns;
}

EvidenceResult JudgeHardware(const EvidenceInput& input) { return Judge(input).Run(); }

std::vector<const Qp*> QpsOfEdge(const HardwareModel& hardware, const Worker& from,
                                 const Worker& to) {
  std::vector<const Qp*> exact, by_address;
  const HostHardware* here = hardware.FindHost(from.host);
  const HostHardware* there = hardware.FindHost(to.host);
  const ProcessState* process = hardware.FindProcess(from.host, from.key);
  if (here == nullptr || process == nullptr) return exact;
  std::set<uint32_t> proxies;
  if (const HostSample* host = from.host_now()) {
    for (const ThreadSample& thread : host->threads) {
      if ((thread.roles & MC_THREAD_PROGRESS) != 0 && thread.tid != 0) proxies.insert(thread.tid);
    }
  }
  for (const auto& [place, qp] : process->qps) {
    const HardwareModel::QpEnd end = hardware.Remote(*here, qp);
    if (end.qp != nullptr) {
      const bool joins = end.host->name == to.host && end.qp->process == to.key && end.qp != &qp;
      // Of the two directions between two processes: the one in which more is sent.
      if (joins && qp.now.bytes >= end.qp->now.bytes) exact.push_back(&qp);
      continue;
    }
    if (there == nullptr || qp.now.remote_gid.empty()) continue;
    // The other process is seen without its queue pairs: its address and the thread.
    if (!proxies.empty() && qp.now.post_tid != 0 && proxies.count(qp.now.post_tid) == 0) continue;
    size_t workers_there = 0;
    bool reaches = false;
    for (const auto& [key, port] : there->ports) {
      for (const GidEntry& entry : port.now.gids) reaches |= entry.gid == qp.now.remote_gid;
    }
    for (const auto& [key, other] : there->processes) workers_there += other.exited_ns == 0 ? 1 : 0;
    if (reaches && workers_there == 1) by_address.push_back(&qp);
  }
  return exact.empty() ? by_address : exact;
}

std::vector<BlindSpot> InvisibleTraffic(const HardwareModel& hardware) {
  std::vector<BlindSpot> spots;
  for (const auto& [name, host] : hardware.hosts()) {
    for (const auto& [key, process] : host.processes) {
      if (process.exited_ns != 0) continue;
      size_t silent = 0, posting = 0;
      bool sends = false;
      for (const auto& [place, qp] : process.qps) {
        if (qp.destroyed() || qp.now.state != QpState::kReadyToSend) continue;
        if (qp.total_posts() > 0) {
          ++posting;
          continue;
        }
        const Port* port = hardware.FindPort(name, qp.now.device, qp.now.port);
        if (port == nullptr) continue;
        ++silent;
        for (const char* counter : {"port_xmit_data", "sent_pkts"}) {
          auto it = port->counters.find(counter);
          if (it == port->counters.end() || host.last_ns < 10 * kSecond) continue;
          sends |=
              it->second.Increase(host.last_ns - 10 * kSecond, host.last_ns).value_or(0) > 1000;
        }
      }
      if (silent == 0 || posting > 0 || !sends) continue;
      spots.push_back({"process " + std::to_string(key.pid) + " on " + name + ": " +
                           std::to_string(silent) +
                           " connected queue pairs show no post, while their port sends",
                       "its traffic is not visible (GPU-initiated networking, or a way around "
                       "ibv_post_send); silence of these queue pairs is not idleness",
                       ""});
      if (spots.size() >= 8) return spots;
    }
  }
  return spots;
}

std::vector<BlindSpot> MissingProbes(const HardwareModel& hardware) {
  std::vector<BlindSpot> spots;
  for (const auto& [name, host] : hardware.hosts()) {
    std::string names;
    std::set<std::string> lost;
    for (const auto& [probe, sample] : host.probes) {
      if (!Degraded(sample)) continue;
      names += (names.empty() ? "" : ", ") + probe;
      if (!sample.lost.empty()) lost.insert(sample.lost);
    }
    if (names.empty()) continue;
    std::string text;
    for (const std::string& one : lost) text += (text.empty() ? "" : "; ") + one;
    spots.push_back({"probes that cannot attach on " + name + ": " + names,
                     text.empty() ? "some evidence of the hardware" : text,
                     "'mycroft doctor' says why, probe by probe"});
  }
  return spots;
}

}  // namespace mycroft
