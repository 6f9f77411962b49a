// SPDX-License-Identifier: Apache-2.0
#include "userspace/attribute/pipeline.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <utility>

#include "userspace/attribute/blame.h"
#include "userspace/attribute/evidence.h"
#include "userspace/attribute/facts.h"
#include "userspace/attribute/wait_graph.h"
#include "userspace/detect/cycle.h"
#include "userspace/detect/mismatch.h"
#include "userspace/model/hardware.h"
#include "userspace/model/job.h"

namespace mycroft {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kUnknownRhythmNs = 10 * kSecond;  // until usual waits are known
constexpr uint64_t kDeadNs = kSecond / 2;
constexpr uint64_t kNoVerdictNs = 2 * kSecond;  // open without a culprit after that
// A slow job that stands still for so many of its cycles hangs; at most the time.
constexpr double kSlowAndStuckCycles = 10;
constexpr uint64_t kSlowAndStuckNs = 5 * kSecond;
constexpr uint64_t kReopenNs = 10 * kSecond;
// Share of the loss that waiting for a CPU must explain to be its cause, or a candidate.
constexpr double kStarvedSure = 0.5, kStarvedMaybe = 0.3;

enum class Origin { kStuck, kSlow, kMismatch };

// What the pipeline remembers of an incident beside the incident itself.
struct Case {
  size_t index = 0;  // in incidents_
  Origin origin = Origin::kStuck;
  WorkerSet workers;  // of the job
  bool open = true;
  bool has_verdict = false;
  bool frozen = false;  // the job breaks up: what comes now are after-effects
  uint64_t still_since_ns = 0;
  WorkerMap<uint64_t> waiting;  // head operation ids when it opened
  uint64_t last_review_ns = 0;
  uint64_t slow_since_ns = 0;  // what the verdict was found from
  std::set<std::pair<int32_t, Component>> signature;
};

std::string Seconds(uint64_t ns) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f s", static_cast<double>(ns) / 1e9);
  return text;
}

std::string Waits(const Worker& from, const Worker* to, const std::string& why) {
  return NameOf(from) + " waits for " + (to != nullptr ? NameOf(*to) : "a rank that is not seen") +
         ": " + why;
}

std::set<std::pair<int32_t, Component>> Signature(const Incident& incident) {
  std::set<std::pair<int32_t, Component>> signature;
  for (const Culprit& c : incident.culprits) signature.insert({c.rank, c.component});
  return signature;
}

}  // namespace

class Pipeline::Impl {
 public:
  explicit Impl(const PipelineOptions& options) : options_(options) {}

  void Feed(const Snapshot& snapshot) {
    model_.Apply(snapshot);
    hardware_.Apply(snapshot);
    for (const auto& worker : model_.workers()) {
      auto [it, fresh] = detectors_.try_emplace(worker->index, options_.slow_factor);
      it->second.Update(*worker);
    }
    size_t shape = model_.workers().size() + model_.comms().size() * 1000003;
    for (const auto& [id, comm] : model_.comms()) shape = shape * 31 + comm->members.size();
    if (shape != job_shape_) {
      jobs_ = model_.Jobs();
      job_shape_ = shape;
    }
    for (const Mismatch& mismatch : mismatches_.Update(model_)) OpenMismatch(mismatch);
    for (const auto& job : jobs_) {
      CheckStuck(job);
      CheckSlow(job);
    }
  }

  void Finish() {}

  std::vector<BlindSpot> BlindSpots() const;
  std::map<std::string, DeepProbes> Suspicions() {
    return suspicion_.Update(model_, hardware_, detectors_);
  }

  PipelineOptions options_;
  JobModel model_;
  HardwareModel hardware_;
  std::vector<Incident> incidents_;

 private:
  uint64_t now() const { return model_.now_ns(); }

  Case* OpenCase(const std::vector<Worker*>& job) {
    for (Case& c : cases_) {
      if (!c.open) continue;
      for (const Worker* worker : job) {
        if (c.workers.count(worker) != 0) return &c;
      }
    }
    return nullptr;
  }

  Incident& IncidentOf(const Case& c) { return incidents_[c.index]; }

  Case& NewCase(Origin origin, const std::vector<Worker*>& job, IncidentKind kind,
                uint64_t onset_ns, const Comm* comm) {
    Incident incident;
    incident.id = incidents_.size() + 1;
    incident.kind = kind;
    incident.onset_ns = onset_ns;
    incident.detected_ns = now();
    incident.verdict_ns = now();
    if (comm != nullptr) {
      incident.comm_id = comm->id;
      incident.comm_name = comm->name;
    }
    incidents_.push_back(std::move(incident));
    Case c;
    c.index = incidents_.size() - 1;
    c.origin = origin;
    c.workers.insert(job.begin(), job.end());
    cases_.push_back(std::move(c));
    return cases_.back();
  }

  Culprit MakeCulprit(const Worker& worker, Component component, double confidence) const {
    Culprit culprit;
    culprit.rank = worker.job_rank;
    culprit.host = worker.host;
    culprit.pid = worker.key.pid;
    culprit.component = component;
    culprit.confidence = confidence;
    for (const auto& [line, member] : worker.members) {
      culprit.comms.push_back(
          {member->comm->id, member->comm->name, member->info.rank, member->comm->nranks});
    }
    return culprit;
  }

  // A finished incident of the same job with the same culprits goes on.
  Case* Reopen(const std::vector<Worker*>& job, const Incident& draft, uint64_t cycle_ns) {
    auto signature = Signature(draft);
    for (auto it = cases_.rbegin(); it != cases_.rend(); ++it) {
      if (it->open || it->signature != signature) continue;
      const Incident& old = incidents_[it->index];
      if (!old.cleared_ns || now() > *old.cleared_ns + std::max(kReopenNs, 20 * cycle_ns)) continue;
      bool same_job = false;
      for (const Worker* worker : job) same_job |= it->workers.count(worker) != 0;
      if (!same_job) continue;
      it->open = true;
      incidents_[it->index].cleared_ns.reset();
      return &*it;
    }
    return nullptr;
  }

  void OpenMismatch(const Mismatch& mismatch) {
    if (mismatch.comm->members.empty()) return;  // all its lines are used for others by now
    const Worker* any = mismatch.comm->members.begin()->second->worker;
    for (const auto& job : jobs_) {
      if (std::find(job.begin(), job.end(), any) == job.end()) continue;
      Case* old = OpenCase(job);
      if (old != nullptr && old->origin == Origin::kMismatch) return;
      if (old != nullptr && old->has_verdict && !IncidentOf(*old).culprits.empty()) return;
      Case& c = old != nullptr ? *old
                               : NewCase(Origin::kMismatch, job, IncidentKind::kMismatch,
                                         mismatch.onset_ns, mismatch.comm);
      c.origin = Origin::kMismatch;
      c.has_verdict = true;
      Incident& incident = IncidentOf(c);
      incident.kind = IncidentKind::kMismatch;
      incident.onset_ns = mismatch.onset_ns;
      incident.verdict_ns = now();
      incident.culprits.clear();
      incident.evidence.clear();
      std::string who;
      for (const Worker* worker : mismatch.deviating) {
        incident.culprits.push_back(MakeCulprit(*worker, Component::kApp, 0.95));
        who += (who.empty() ? "" : ", ") + NameOf(*worker);
      }
      std::string place = "collective #" + std::to_string(mismatch.ordinal) + " of " +
                          (mismatch.comm->name.empty() ? "a communicator" : mismatch.comm->name);
      incident.summary = who.empty() ? "ranks call different operations as " + place +
                                           "; which of them is wrong is not known"
                                     : who + " calls another operation than the others as " + place;
      incident.evidence = mismatch.calls;
      for (const Worker* worker : job) {
        bool deviates = std::find(mismatch.deviating.begin(), mismatch.deviating.end(), worker) !=
                        mismatch.deviating.end();
        if (!deviates) incident.victims.push_back(worker->job_rank);
      }
      incident.rejected.push_back(
          {"hardware of all ranks", "the calls themselves differ; no device can cause that"});
      c.signature = Signature(incident);
      return;
    }
  }

  // ---- stuck, absent, dead -------------------------------------------------

  static bool Live(const Worker& worker) { return worker.alive(); }

  uint64_t StuckThreshold(const Worker& worker, bool someone_died) const {
    if (someone_died) return kDeadNs;
    const std::optional<uint64_t> usual = UsualHead(worker, 256);
    return std::max(options_.stuck_min_ns, usual ? 3 * *usual : kUnknownRhythmNs);
  }

  uint64_t SlowAndStuckNs(const std::vector<Worker*>& job) const {
    double cycle_ns = 0;
    for (const Worker* worker : job) {
      const auto it = detectors_.find(worker->index);
      if (it == detectors_.end() || !it->second.slow()) continue;
      cycle_ns = std::max(cycle_ns, it->second.baseline_ns() + it->second.lost_per_cycle_ns());
    }
    if (cycle_ns <= 0) return kSlowAndStuckNs;
    const double limit = std::min(kSlowAndStuckCycles * cycle_ns, double{kSlowAndStuckNs});
    return std::max(options_.stuck_min_ns, static_cast<uint64_t>(limit));
  }

  void CheckStuck(const std::vector<Worker*>& job) {
    Case* open = OpenCase(job);
    if (open != nullptr && open->origin != Origin::kStuck) {
      CloseWhenGone(job, *open);
      if (open->origin == Origin::kMismatch || !open->open) return;
    }
    bool died = false, breaking_up = false;
    for (const Worker* worker : job) {
      if (worker->status == ProcessStatus::kExited) {
        breaking_up = true;
        for (const auto& [line, member] : worker->members) {
          died |= member->info.state == MC_COMM_ACTIVE && !member->comm->finalized;
        }
      }
      for (const auto& [line, member] : worker->members) {
        breaking_up |= member->info.state == MC_COMM_FINALIZED && HasOpenOps(*worker, *member);
      }
    }
    if (open != nullptr && open->origin == Origin::kStuck) {
      ReviewStuck(job, *open, breaking_up);
      return;
    }

    const Worker* first = nullptr;
    uint64_t since = 0;
    for (const Worker* worker : job) {
      if (!Live(*worker)) continue;
      const Op* head = worker->HeadOp();
      if (head == nullptr || head->member->info.state == MC_COMM_FINALIZED) continue;
      uint64_t moved = LastMovement(*worker, *head);
      if (now() < moved + StuckThreshold(*worker, died)) continue;
      if (first == nullptr || moved < since) {
        first = worker;
        since = moved;
      }
    }
    if (first == nullptr) return;
    if (open != nullptr && open->origin == Origin::kSlow) {
      // A slow job that stands still for long: the same case gets worse.
      if (!open->has_verdict) {
        open->origin = Origin::kStuck;
        ReviewStuck(job, *open, false);
        return;
      }
      // Its operations are long; what holds for much longer is a hang, maybe another one.
      if (!died && now() < since + SlowAndStuckNs(job)) return;
    }
    Incident draft;
    if (!Explain(job, since, died, &draft)) {
      if (now() < since + StuckThreshold(*first, died) + kNoVerdictNs) return;
    }
    if (open != nullptr) {
      open->open = false;
      IncidentOf(*open).cleared_ns = since;
    }
    uint64_t cycle = 0;
    if (auto it = detectors_.find(first->index); it != detectors_.end()) {
      cycle = static_cast<uint64_t>(it->second.baseline_ns());
    }
    Case* c = Reopen(job, draft, cycle);
    if (c != nullptr) {
      c->origin = Origin::kStuck;
      Incident& incident = IncidentOf(*c);
      incident.kind = draft.kind;
      incident.summary = draft.summary;
      incident.evidence = draft.evidence;
      incident.chain = draft.chain;
    } else {
      c = &NewCase(Origin::kStuck, job, draft.kind, draft.onset_ns, first->HeadOp()->member->comm);
      Incident& incident = IncidentOf(*c);
      uint64_t id = incident.id;
      uint64_t comm_id = incident.comm_id;
      std::string comm_name = incident.comm_name;
      draft.detected_ns = incident.detected_ns;
      draft.verdict_ns = incident.verdict_ns;
      incident = draft;
      incident.id = id;
      incident.comm_id = comm_id;
      incident.comm_name = comm_name;
    }
    c->has_verdict = !draft.culprits.empty();
    c->still_since_ns = since;
    c->waiting.clear();
    for (const Worker* worker : job) {
      const Op* head = Live(*worker) ? worker->HeadOp() : nullptr;
      if (head != nullptr) c->waiting[worker] = head->s.id;
    }
    c->signature = Signature(IncidentOf(*c));
    Lose(*c, job);
  }

  static bool HasOpenOps(const Worker& worker, const Member& member) {
    for (const auto& [id, op] : worker.ops) {
      if (op.member == &member && !op.settled && !op.complete) return true;
    }
    return false;
  }

  // GPU-seconds lost so far by a job that stands still.
  void Lose(Case& c, const std::vector<Worker*>& job) {
    Incident& incident = IncidentOf(c);
    if (incident.culprits.empty()) return;
    uint64_t end = incident.cleared_ns.value_or(now());
    double seconds =
        end > incident.onset_ns ? static_cast<double>(end - incident.onset_ns) / 1e9 : 0;
    double lost = seconds * static_cast<double>(job.size());
    for (Culprit& culprit : incident.culprits) {
      culprit.gpu_seconds_lost = lost / static_cast<double>(incident.culprits.size());
    }
  }

  void ReviewStuck(const std::vector<Worker*>& job, Case& c, bool breaking_up) {
    Incident& incident = IncidentOf(c);
    if (breaking_up && incident.kind != IncidentKind::kDead) c.frozen = true;
    // Has anything moved on that was waiting?
    uint64_t moved = 0;
    bool any_waiting = false, any_alive = false;
    for (const Worker* worker : job) {
      if (!Live(*worker)) continue;
      any_alive = true;
      auto it = c.waiting.find(worker);
      if (it == c.waiting.end()) continue;
      auto op = worker->ops.find(it->second);
      bool done = op == worker->ops.end() || op->second.complete || op->second.settled;
      bool finalized =
          op != worker->ops.end() && op->second.member->info.state == MC_COMM_FINALIZED;
      if (done && !finalized) {
        moved = std::max(moved, op == worker->ops.end() ? now() : op->second.end_ns);
      } else if (!finalized) {
        any_waiting = true;
      }
    }
    if (!any_alive || (!any_waiting && moved == 0)) {
      c.open = false;
      incident.cleared_ns = now();
      Lose(c, job);
      return;
    }
    if (moved != 0 && !any_waiting) {
      c.open = false;
      incident.cleared_ns = moved;
      // It stood still and went on: a delay, not a hang.
      if (incident.kind == IncidentKind::kStuck || incident.kind == IncidentKind::kAbsent) {
        incident.kind = IncidentKind::kSlow;
        incident.summary +=
            "; went on after " + Seconds(moved - std::min(moved, incident.onset_ns));
      }
      Lose(c, job);
      return;
    }
    Lose(c, job);
    if (c.frozen || moved != 0) return;
    // New evidence may name another culprit while it lasts.
    if (now() < c.last_review_ns + kSecond / 2) return;
    c.last_review_ns = now();
    Incident draft;
    if (!Explain(job, c.still_since_ns, false, &draft) && !incident.culprits.empty()) return;
    bool changed = Signature(draft) != Signature(incident);
    const bool more_rejected = hardware_.any() && draft.rejected != incident.rejected;
    if (!changed && draft.evidence == incident.evidence && !more_rejected) return;
    if (changed && !draft.culprits.empty() && !c.has_verdict) {
      incident.verdict_ns = now();
      c.has_verdict = true;
    }
    if (draft.culprits.empty()) return;
    incident.kind = draft.kind;
    incident.culprits = draft.culprits;
    incident.summary = draft.summary;
    incident.evidence = draft.evidence;
    incident.chain = draft.chain;
    incident.rejected = draft.rejected;
    incident.victims = draft.victims;
    c.signature = Signature(incident);
    Lose(c, job);
  }

  void CloseWhenGone(const std::vector<Worker*>& job, Case& c) {
    for (const Worker* worker : job) {
      if (Live(*worker)) return;
    }
    c.open = false;
    IncidentOf(c).cleared_ns = now();
  }

  // With ranks that are not seen, a place without a component is a guess: none is named.
  // Nor where one process drives several GPUs in nested communicators: which of its
  // communicators belong to which GPU is not known.
  static void DropGuesses(const std::vector<Worker*>& job, std::vector<Culprit>* culprits) {
    std::set<std::pair<std::string, ProcessKey>> processes;
    bool shared = false, nested = false;
    for (const Worker* worker : job) {
      shared |= !processes.insert({worker->host, worker->key}).second;
      nested |= worker->members.size() > 1;
    }
    if (shared && nested) culprits->clear();
    for (const Worker* worker : job) {
      for (const auto& [line, member] : worker->members) {
        if (static_cast<int32_t>(member->comm->members.size()) >= member->comm->nranks) continue;
        std::erase_if(*culprits,
                      [](const Culprit& c) { return c.component == Component::kUnknown; });
        return;
      }
    }
  }

  // Fills kind, culprits, victims, chain, evidence. False: no culprit.
  bool Explain(const std::vector<Worker*>& job, uint64_t since, bool died, Incident* out) {
    const WorkerSet not_starved = NotStarved(job);
    WaitGraph graph = BuildWaitGraph(model_, job, died ? kDeadNs / 2 : kSecond / 2, not_starved);
    out->kind = IncidentKind::kStuck;
    // Everything stopped when the last thing moved.
    uint64_t last_moved = since;
    for (const Worker* worker : job) {
      const Op* head = Live(*worker) ? worker->HeadOp() : nullptr;
      if (head == nullptr || head->member->info.state == MC_COMM_FINALIZED) continue;
      uint64_t moved = LastMovement(*worker, *head);
      if (now() >= moved + kDeadNs / 2) last_moved = std::max(last_moved, moved);
    }
    out->onset_ns = last_moved;
    for (const Worker* victim : graph.victims) out->victims.push_back(victim->job_rank);
    for (const WaitStep& step : graph.chain) {
      out->chain.push_back({step.from->job_rank, step.to != nullptr ? step.to->job_rank : -1,
                            Waits(*step.from, step.to, step.why)});
    }

    WorkerMap<std::vector<const Sink*>> own;
    std::vector<const Sink*> paths, unseen;
    for (const Sink& sink : graph.sinks) {
      if (sink.kind == SinkKind::kPath) {
        paths.push_back(&sink);
      } else if (sink.kind == SinkKind::kUnseen) {
        unseen.push_back(&sink);
      } else {
        own[sink.worker].push_back(&sink);
      }
    }
    bool dead_sink = false, ended_sink = false;
    for (const auto& [worker, sinks] : own) {
      dead_sink |= sinks[0]->kind == SinkKind::kDead;
      ended_sink |= sinks[0]->kind == SinkKind::kProxyEnded;
    }
    size_t absent = 0, dead = 0;
    std::vector<std::string> phrases;  // of the summary; as many as culprits, until hardware judged
    auto say = [&](const std::string& text) { phrases.push_back(text); };
    std::vector<Suspect> suspects;  // one for each culprit
    for (const auto& [worker, sinks] : own) {
      // A peer that is gone explains what its neighbours show.
      if (dead_sink && sinks[0]->kind != SinkKind::kDead) continue;
      // Who gets too little CPU goes on; who has lost its progress thread does not.
      if (ended_sink && sinks[0]->kind == SinkKind::kHostStarved) continue;
      const Sink& sink = *sinks[0];
      Culprit culprit;
      switch (sink.kind) {
        case SinkKind::kGpu:
          culprit = MakeCulprit(*worker, Component::kGpu, 0.85);
          say("everybody waits for the GPU of " + NameOf(*worker));
          break;
        case SinkKind::kFlush:
          culprit = MakeCulprit(*worker, Component::kPcie, 0.85);
          say("everybody waits for the NIC-PCIe-GPU path of " + NameOf(*worker));
          break;
        case SinkKind::kHostStopped:
          culprit = MakeCulprit(*worker, Component::kHost, 0.95);
          say("everybody waits for " + NameOf(*worker) + ", whose process is stopped");
          break;
        case SinkKind::kHostStarved:
          culprit = MakeCulprit(*worker, Component::kHost, 0.8);
          say("everybody waits for " + NameOf(*worker) + ", whose threads get no CPU");
          break;
        case SinkKind::kHostProxy:
          culprit = MakeCulprit(*worker, Component::kHost, 0.6);
          say("everybody waits for the proxy thread of " + NameOf(*worker));
          break;
        case SinkKind::kProxyEnded:
          culprit = MakeCulprit(*worker, Component::kUnknown, 0.4);
          culprit.candidates = {Component::kNic, Component::kFabric, Component::kApp};
          say("everybody waits for " + NameOf(*worker) + ", whose progress thread has ended");
          break;
        case SinkKind::kNotEntered:
          culprit = MakeCulprit(*worker, Component::kHost, 0.8);
          say("everybody waits for " + NameOf(*worker) + ", which has not called the operation");
          ++absent;
          if (sink.since_ns != 0) {
            uint64_t first_entry = UINT64_MAX;
            for (const Worker* other : job) {
              const Op* head = Live(*other) ? other->HeadOp() : nullptr;
              if (head != nullptr) first_entry = std::min(first_entry, head->s.start_ns);
            }
            if (first_entry != UINT64_MAX) {
              out->onset_ns = std::min(out->onset_ns, std::max(first_entry, sink.since_ns));
            }
          }
          break;
        case SinkKind::kLeft:
          culprit = MakeCulprit(*worker, Component::kUnknown, 0.4);
          culprit.candidates = {Component::kApp, Component::kHost};
          say(NameOf(*worker) + " has left the communicator, its peers still wait for it");
          break;
        case SinkKind::kDead:
          culprit = MakeCulprit(*worker, Component::kHost, 0.95);
          say("the process of " + NameOf(*worker) + " is gone, its peers still wait for it");
          ++dead;
          out->onset_ns = std::min(out->onset_ns, worker->exited_ns);
          break;
        case SinkKind::kPath:
        case SinkKind::kUnseen:
          continue;
      }
      culprit.where = sink.where;
      suspects.push_back({ShapeOf(sink.kind), worker, nullptr, {}, culprit.component});
      for (const Sink* s : sinks) {
        std::string line =
            NameOf(*worker) + (s->where.empty() ? "" : ", " + s->where) + ": " + s->why;
        if (out->evidence.size() < 16) out->evidence.push_back(line);
      }
      out->culprits.push_back(std::move(culprit));
    }
    if (!dead_sink) ExplainPaths(paths, own, out, &suspects, say);
    ExplainBroken(job, graph.sinks, out, &suspects, &phrases);
    if (hardware_.any() && (!suspects.empty() || !unseen.empty())) {
      EvidenceInput input;
      input.stuck = true;
      input.onset_ns = out->onset_ns;
      input.suspects = suspects;
      JudgeByHardware(job, std::move(input), "everybody waits for ", out, &phrases);
    }
    if (dead > 0) {
      out->kind = IncidentKind::kDead;
    } else if (absent > 0 && absent == out->culprits.size()) {
      out->kind = IncidentKind::kAbsent;
    }
    if (out->culprits.empty() && !unseen.empty()) {
      for (const Sink* sink : unseen) {
        say("the chain of waiting ends at rank " + std::to_string(sink->rank) + " of " +
            (sink->comm->name.empty() ? "a communicator" : sink->comm->name) +
            ", which is not seen here");
        out->evidence.push_back("not enough evidence: rank " + std::to_string(sink->rank) +
                                " is not visible (" + sink->why + ")");
        if (out->evidence.size() > 8) break;
      }
    }
    if (out->culprits.empty() && graph.sinks.empty() && !graph.cycle.empty()) {
      ExplainDeadlock(graph, out, say);
    }
    if (phrases.empty()) say("the job stands still; not enough evidence for a culprit");
    out->summary.clear();
    for (const std::string& phrase : phrases) {
      out->summary += (out->summary.empty() ? "" : "; ") + phrase;
    }
    for (const Worker* victim : graph.victims) {
      if (out->rejected.size() >= 12) break;
      std::string why = "it waits for its peers";
      for (const WaitStep& step : graph.chain) {
        if (step.from == victim && step.to != nullptr) {
          why = "it waits for " + NameOf(*step.to) + ": " + step.why;
        }
      }
      out->rejected.push_back({NameOf(*victim), why});
    }
    DropGuesses(job, &out->culprits);
    return !out->culprits.empty();
  }

  // Workers whose threads had a CPU since they stand still, by the probes of the scheduler.
  WorkerSet NotStarved(const std::vector<Worker*>& job) const {
    constexpr uint64_t kLeastNs = 7 * kSecond / 10;
    WorkerSet well;
    if (!hardware_.any()) return well;
    for (const Worker* worker : job) {
      const ProcessState* process = hardware_.FindProcess(worker->host, worker->key);
      const Op* head = Live(*worker) ? worker->HeadOp() : nullptr;
      if (process == nullptr || head == nullptr || process->delays.empty()) continue;
      const uint64_t moved = LastMovement(*worker, *head);
      if (process->seen_ns < moved + kLeastNs) continue;
      const double elapsed = static_cast<double>(process->seen_ns - moved);
      bool starved = false;
      for (const auto& [tid, thread] : process->delays) {
        const auto waited = thread.runq_ns.Increase(moved, process->seen_ns);
        starved |= static_cast<double>(waited.value_or(0)) >= 0.5 * elapsed;
      }
      if (!starved) well.insert(worker);
    }
    return well;
  }

  // A connection that is broken comes before what the flows show: the progress thread that
  // met the error has ended, and left its flows in whatever state they were.
  void ExplainBroken(const std::vector<Worker*>& job, const std::vector<Sink>& sinks, Incident* out,
                     std::vector<Suspect>* suspects, std::vector<std::string>* phrases) const {
    if (!hardware_.any()) return;
    for (const Sink& sink : sinks) {
      // What is seen of the process itself explains its connections, too.
      if (sink.kind == SinkKind::kHostStopped || sink.kind == SinkKind::kDead) return;
    }
    const std::vector<BrokenEdge> broken = BrokenEdges(hardware_, job);
    if (broken.empty()) return;
    for (size_t i = 0; i < suspects->size(); ++i) {
      const Suspect& s = (*suspects)[i];
      const bool path = s.shape == SuspectShape::kEdge || s.shape == SuspectShape::kNode;
      const Component component = path ? Component::kNic : s.component;
      if (component == Component::kUnknown) continue;
      out->rejected.push_back(
          {std::string(ToString(component)) + " of " + NameOf(*s.worker),
           "what its flows show is the last that was seen of them: a connection had failed"});
    }
    suspects->clear();
    out->culprits.clear();
    out->evidence.clear();
    phrases->clear();
    for (const BrokenEdge& edge : broken) {
      Culprit culprit = MakeCulprit(*edge.from, Component::kUnknown, 0.4);
      culprit.candidates = {Component::kNic, Component::kFabric};
      if (!edge.named) culprit.candidates.push_back(Component::kApp);
      culprit.where = NameOf(*edge.from) + " to " + NameOf(*edge.to);
      out->culprits.push_back(std::move(culprit));
      suspects->push_back(
          {SuspectShape::kEdge, edge.from, edge.to, {{edge.from, edge.to}}, Component::kUnknown});
      phrases->push_back("everybody waits for the broken connection from " + NameOf(*edge.from) +
                         " to " + NameOf(*edge.to));
    }
  }

  static SuspectShape ShapeOf(SinkKind kind) {
    switch (kind) {
      case SinkKind::kGpu:
        return SuspectShape::kGpu;
      case SinkKind::kFlush:
        return SuspectShape::kFlush;
      case SinkKind::kPath:
        return SuspectShape::kEdge;
      case SinkKind::kHostStopped:
      case SinkKind::kHostStarved:
      case SinkKind::kHostProxy:
        return SuspectShape::kHost;
      case SinkKind::kProxyEnded:
        return SuspectShape::kEnded;
      case SinkKind::kNotEntered:
        return SuspectShape::kAbsent;
      case SinkKind::kDead:
      case SinkKind::kLeft:
      case SinkKind::kUnseen:
        return SuspectShape::kDead;
    }
    return SuspectShape::kDead;
  }

  // What the hosts know of their hardware may confirm, change or add to what the
  // callbacks say. `phrases`: one for each culprit, or empty.
  void JudgeByHardware(const std::vector<Worker*>& job, EvidenceInput input,
                       const std::string& prefix, Incident* out,
                       std::vector<std::string>* phrases) const {
    input.hardware = &hardware_;
    input.job = &job;
    input.now_ns = now();
    EvidenceResult judged = JudgeHardware(input);
    std::vector<Culprit> culprits;
    std::vector<std::string> said;
    auto culprit_of = [&](const Opinion& opinion) {
      Culprit culprit = MakeCulprit(*opinion.worker, opinion.component, opinion.confidence);
      culprit.candidates = opinion.candidates;
      culprit.where = opinion.where;
      return culprit;
    };
    for (size_t i = 0; i < judged.opinions.size(); ++i) {
      const Opinion& opinion = judged.opinions[i];
      if (!opinion.changed) {
        culprits.push_back(out->culprits[i]);
        if (i < phrases->size()) said.push_back((*phrases)[i]);
        continue;
      }
      if (opinion.after_effect) {
        // Of one place that several suspects share: what is waited for them is waited for it.
        for (Culprit& culprit : culprits) {
          if (opinion.where.empty() || culprit.where != opinion.where) continue;
          culprit.gpu_seconds_lost += out->culprits[i].gpu_seconds_lost;
          break;
        }
        continue;
      }
      Culprit culprit = culprit_of(opinion);
      const Culprit& before = out->culprits[i];
      culprit.gpu_seconds_lost = before.gpu_seconds_lost;
      const bool same = before.component == culprit.component && before.rank == culprit.rank;
      if (same) culprit.confidence = std::max(culprit.confidence, before.confidence);
      if (culprit.where.empty()) culprit.where = before.where;
      culprits.push_back(std::move(culprit));
      said.push_back(prefix + opinion.what);
    }
    for (const Opinion& opinion : judged.unasked) {
      culprits.push_back(culprit_of(opinion));
      said.push_back(prefix + opinion.what);
    }
    out->culprits = std::move(culprits);
    *phrases = std::move(said);
    // The hardware's first: it is what decided.
    judged.evidence.insert(judged.evidence.end(), out->evidence.begin(), out->evidence.end());
    out->evidence = std::move(judged.evidence);
    judged.rejected.insert(judged.rejected.end(), out->rejected.begin(), out->rejected.end());
    out->rejected = std::move(judged.rejected);
  }

  template <typename Say>
  void ExplainPaths(const std::vector<const Sink*>& paths,
                    const WorkerMap<std::vector<const Sink*>>& own, Incident* out,
                    std::vector<Suspect>* suspects, Say say) {
    // A path next to a culprit of another kind is its after-effect.
    EdgeSet all_edges;
    EdgeMap<const Sink*> sample;
    for (const Sink* sink : paths) {
      if (own.count(sink->worker) != 0 || own.count(sink->other) != 0) continue;
      all_edges.insert({sink->worker, sink->other});
      sample.emplace(std::make_pair(sink->worker, sink->other), sink);
    }
    for (EdgeSet edges : ConnectedEdges(all_edges)) {
      // Edges that nobody dominates are edges: what is left when some were taken away says
      // nothing of their ends.
      bool divided = false;
      while (!edges.empty()) {
        WorkerMap<int> touches;
        for (const auto& edge : edges) {
          ++touches[edge.first];
          ++touches[edge.second];
        }
        const Worker* most = nullptr;
        int second = 0;
        for (const auto& [worker, count] : touches) {
          if (most == nullptr || count > touches[most]) {
            if (most != nullptr) second = std::max(second, touches[most]);
            most = worker;
          } else {
            second = std::max(second, count);
          }
        }
        if (!divided && touches[most] >= 2 && touches[most] > second) {
          out->culprits.push_back(MakeCulprit(*most, Component::kNic, 0.75));
          say("everybody waits for the network of " + NameOf(*most));
          suspects->push_back({SuspectShape::kNode, most, nullptr, {}, Component::kNic});
          for (const auto& edge : edges) {
            if (edge.first == most || edge.second == most) {
              suspects->back().edges.push_back(edge);
              out->evidence.push_back(sample[edge]->where + ": " + sample[edge]->why);
            }
          }
          std::erase_if(edges, [&](const auto& e) { return e.first == most || e.second == most; });
          continue;
        }
        divided = true;
        auto edge = *edges.begin();
        edges.erase(edges.begin());
        const Sink& sink = *sample[edge];
        bool watched = edge.first->host_now() != nullptr && edge.second->host_now() != nullptr;
        Culprit culprit;
        if (sink.nothing_in_flight && watched) {
          culprit = MakeCulprit(*edge.first, Component::kNic, 0.6);
          say("everybody waits for what " + NameOf(*edge.first) + " sends to " +
              NameOf(*edge.second));
        } else if (sink.nothing_in_flight) {
          culprit = MakeCulprit(*edge.first, Component::kUnknown, 0.4);
          culprit.candidates = {Component::kNic, Component::kFabric, Component::kHost};
          say("everybody waits for the path from " + NameOf(*edge.first) + " to " +
              NameOf(*edge.second));
        } else {
          culprit = MakeCulprit(*edge.second, Component::kUnknown, 0.4);
          culprit.candidates = watched ? std::vector<Component>{Component::kNic, Component::kFabric}
                                       : std::vector<Component>{Component::kHost, Component::kNic,
                                                                Component::kFabric};
          say("everybody waits for what is on its way from " + NameOf(*edge.first) + " to " +
              NameOf(*edge.second));
        }
        culprit.where = sink.where;
        suspects->push_back(
            {SuspectShape::kEdge, edge.first, edge.second, {edge}, culprit.component});
        out->evidence.push_back(sink.where + ": " + sink.why);
        out->culprits.push_back(std::move(culprit));
      }
    }
  }

  template <typename Say>
  void ExplainDeadlock(const WaitGraph& graph, Incident* out, Say say) {
    std::string names;
    for (const WaitStep& step : graph.cycle_steps) {
      names += (names.empty() ? "" : " -> ") + NameOf(*step.from);
      out->chain.push_back(
          {step.from->job_rank, step.to->job_rank, Waits(*step.from, step.to, step.why)});
      out->evidence.push_back(NameOf(*step.from) + " waits for " + NameOf(*step.to) + ": " +
                              step.why);
    }
    say("deadlock: " + names + " wait for each other");
    // Who left its own rhythm?
    std::vector<const Worker*> changed;
    for (const Worker* worker : graph.cycle) {
      const Op* head = worker->HeadOp();
      auto it = detectors_.find(worker->index);
      if (head == nullptr || it == detectors_.end() || it->second.period() == 0) continue;
      size_t p = it->second.period();
      size_t n = worker->history.size();
      if (n < p) continue;
      if (worker->history[n - p].key != OpKey(*head, true)) changed.push_back(worker);
    }
    if (!changed.empty() && changed.size() < graph.cycle.size()) {
      for (const Worker* worker : changed) {
        out->culprits.push_back(MakeCulprit(*worker, Component::kApp, 0.8));
        out->evidence.push_back(NameOf(*worker) +
                                " calls its operations in another order than before");
      }
      return;
    }
    for (const Worker* worker : graph.cycle) {
      Culprit culprit = MakeCulprit(*worker, Component::kUnknown, 0.4);
      culprit.candidates = {Component::kApp, Component::kCcl};
      out->culprits.push_back(std::move(culprit));
    }
  }

  // ---- slow ------------------------------------------------------------------

  void CheckSlow(const std::vector<Worker*>& job) {
    size_t ready = 0, slow = 0, most_cycles = 0;
    uint64_t since = UINT64_MAX, recovered = 0, latest_cycle = 0;
    bool by_change = true;
    double cycle_ns = 0;
    const CycleDetector* worse = nullptr;  // the one that became so last
    for (const Worker* worker : job) {
      auto it = detectors_.find(worker->index);
      if (it == detectors_.end() || !it->second.ready()) continue;
      const CycleDetector& d = it->second;
      ++ready;
      cycle_ns = std::max(cycle_ns, d.baseline_ns());
      recovered = std::max(recovered, d.recovered_ns());
      if (!d.slow()) continue;
      ++slow;
      by_change &= d.by_change();
      since = std::min(since, d.slow_since_ns());
      if (d.became_worse() && (worse == nullptr || d.slow_since_ns() > worse->slow_since_ns())) {
        worse = &d;
      }
      most_cycles = std::max(most_cycles, d.slow_cycles().size());
      if (!d.slow_cycles().empty()) {
        latest_cycle = std::max(latest_cycle, d.slow_cycles().back().end_ns);
      }
    }
    // A job whose ranks computed on different data has no rhythm to be judged by.
    for (const Case& c : cases_) {
      if (c.origin == Origin::kMismatch && c.workers.count(job[0]) != 0) return;
    }
    Case* open = OpenCase(job);
    if (open != nullptr && open->origin != Origin::kSlow) return;
    if (slow == 0) {
      quiet_until_.erase(job[0]);
      if (open != nullptr) {
        open->open = false;
        IncidentOf(*open).cleared_ns = recovered != 0 ? recovered : now();
      }
      return;
    }
    bool enough = 2 * slow >= ready || most_cycles >= 4;
    if (!enough) return;
    // The others will see in a cycle or two that it has become worse: until then they still
    // count from the beginning of the milder time.
    if (worse != nullptr && worse->slow_cycles().size() < 6) {
      const double cycle = worse->baseline_ns() + worse->lost_per_cycle_ns();
      if (since + static_cast<uint64_t>(2 * cycle) < worse->slow_since_ns()) return;
    }
    if (open != nullptr) {
      if (latest_cycle <= open->last_review_ns) return;
      open->last_review_ns = latest_cycle;
    } else {
      // Judged before and found to be nothing: wait for more cycles.
      auto it = quiet_until_.find(job[0]);
      if (it != quiet_until_.end() && it->second.since_ns == since &&
          most_cycles < it->second.cycles) {
        return;
      }
    }
    BlameResult blame = FindBlame(job, detectors_, since, now());
    if (blame.whole_job_paused && open == nullptr) {
      quiet_until_[job[0]] = {since, most_cycles + std::max<size_t>(2, most_cycles / 2)};
      return;
    }
    if (blame.lost_ns <= 0) return;
    Incident draft = SlowIncident(job, blame, since, most_cycles);
    if (draft.culprits.empty() && blame.blames.empty() && open == nullptr) {
      bool give_up = by_change || most_cycles < 6;
      quiet_until_[job[0]] = {since,
                              most_cycles + (by_change ? std::max<size_t>(4, most_cycles / 2) : 1)};
      if (give_up) return;
    }
    // A small shift without a culprit that explains most of it is the job's own noise.
    if (by_change && open == nullptr &&
        (blame.blames.empty() || blame.explained_ns < 0.6 * blame.lost_ns)) {
      quiet_until_[job[0]] = {since, most_cycles + std::max<size_t>(4, most_cycles / 2)};
      return;
    }
    // Much worse, and for another reason: another incident.
    if (open != nullptr && since > open->slow_since_ns && !draft.culprits.empty() &&
        Signature(draft) != open->signature) {
      open->open = false;
      IncidentOf(*open).cleared_ns = since;
      open = nullptr;
    }
    Case* c = open;
    if (c == nullptr) {
      c = Reopen(job, draft, static_cast<uint64_t>(cycle_ns));
      if (c != nullptr) {
        c->origin = Origin::kSlow;
        draft.onset_ns = std::min(draft.onset_ns, IncidentOf(*c).onset_ns);
      }
    }
    if (c == nullptr) {
      c = &NewCase(Origin::kSlow, job, IncidentKind::kSlow, draft.onset_ns, SlowComm(job));
    }
    c->slow_since_ns = since;
    Incident& incident = IncidentOf(*c);
    if (draft.culprits.empty() && !incident.culprits.empty()) return;
    bool first_verdict = incident.culprits.empty() && !draft.culprits.empty();
    incident.kind = IncidentKind::kSlow;
    incident.onset_ns = std::min(incident.onset_ns, draft.onset_ns);
    incident.summary = draft.summary;
    incident.culprits = draft.culprits;
    incident.victims = draft.victims;
    incident.chain = draft.chain;
    incident.evidence = draft.evidence;
    incident.rejected = draft.rejected;
    if (first_verdict && c->has_verdict == false) incident.verdict_ns = now();
    c->has_verdict = c->has_verdict || !incident.culprits.empty();
    c->last_review_ns = latest_cycle;
    c->signature = Signature(incident);
  }

  const Comm* SlowComm(const std::vector<Worker*>& job) const {
    const Comm* best = nullptr;
    for (const Worker* worker : job) {
      for (auto it = worker->history.rbegin(); it != worker->history.rend(); ++it) {
        const Comm* comm = it->member->comm;
        if (best == nullptr || comm->nranks > best->nranks) best = comm;
        if (worker->history.rend() - it > 8) break;
      }
    }
    return best;
  }

  // By how much a step over the slowest edge of this worker takes longer, ns; 0: none does.
  static double TransitExcess(const BlameResult& blame, const Worker& worker) {
    double most = 0;
    for (const EdgeTransit& edge : blame.edges) {
      if (edge.from != &worker && edge.to != &worker) continue;
      if (edge.now_ops < 2 || edge.normal_ops < 4) continue;
      most = std::max(most, edge.now_ns - edge.normal_ns);
    }
    return most;
  }

  struct Starvation {
    const Worker* worker = nullptr;
    double share = 0;      // see CpuStarvation()
    double explained = 0;  // of what is lost
    std::string figures;
  };

  Starvation StarvationOf(const Worker& worker, const BlameResult& blame, uint64_t since) {
    Starvation out;
    out.worker = &worker;
    double turn_ns = 0;
    std::optional<double> usual;
    out.share = CpuStarvation(worker, since, &out.figures, &turn_ns, &usual);
    // Samples of before the onset are not kept for as long as a slow time may last.
    UsualWait& known = usual_waits_[&worker];
    if (usual) known = {since, *usual};
    const double before = known.until_ns <= since ? known.share : 0;
    const bool turns = turn_ns == 0 || TurnsExplain(turn_ns, TransitExcess(blame, worker));
    if (blame.lost_ns > 0 && turns && out.share > before) {
      // A thread that waits the share s of the time works 1 - s as fast: of the time now,
      // (s - before) / (1 - before) is lost by waiting more than before.
      const double more = (out.share - before) / (1 - before);
      out.explained = more * (blame.normal_ns + blame.lost_ns) / blame.lost_ns;
    }
    return out;
  }

  Incident SlowIncident(const std::vector<Worker*>& job, const BlameResult& blame, uint64_t since,
                        size_t cycles) {
    Incident incident;
    incident.kind = IncidentKind::kSlow;
    incident.onset_ns = since;
    std::vector<std::string> causes;  // one for each culprit
    std::vector<Suspect> suspects;
    double total_excess = 0;
    for (const Blame& b : blame.blames) total_excess += b.excess_ns;
    double lost_total =
        blame.lost_ns * static_cast<double>(cycles) * static_cast<double>(job.size()) / 1e9;
    std::set<std::pair<const Worker*, Component>> done;
    for (const Blame& b : blame.blames) {
      Component component = Component::kUnknown;
      std::vector<Component> candidates;
      std::string text;
      const Worker* worker = b.worker;
      SuspectShape shape = SuspectShape::kEdge;
      switch (b.kind) {
        case BlameKind::kHost:
          component = Component::kHost;
          shape = SuspectShape::kHost;
          text = "the host side of " + NameOf(*worker) + " (it calls late)";
          break;
        case BlameKind::kGpu:
          component = Component::kGpu;
          shape = SuspectShape::kGpu;
          text = "the GPU of " + NameOf(*worker);
          break;
        case BlameKind::kFlush:
          component = Component::kPcie;
          shape = SuspectShape::kFlush;
          text = "the NIC-PCIe-GPU path of " + NameOf(*worker);
          break;
        case BlameKind::kNetSender:
        case BlameKind::kNetNode:
          component = Component::kNic;
          if (b.kind == BlameKind::kNetNode) shape = SuspectShape::kNode;
          text = "the network of " + NameOf(*worker);
          break;
        case BlameKind::kNetEdge:
          candidates = {Component::kNic, Component::kFabric};
          text = "the path from " + NameOf(*worker) + " to " + NameOf(*b.other);
          break;
      }
      // Threads without a CPU slow everything they do, whatever it looks like; but only as
      // much as they waited: on a busy host every thread waits a little.
      // Of an edge, either end.
      Starvation starved = StarvationOf(*worker, blame, since);
      if (b.kind == BlameKind::kNetEdge) {
        Starvation receiver = StarvationOf(*b.other, blame, since);
        if (receiver.explained > starved.explained) starved = std::move(receiver);
      }
      if (starved.share >= 0.2) {
        const std::string name = NameOf(*starved.worker);
        const bool maybe = starved.explained >= kStarvedMaybe;
        if (starved.explained >= kStarvedSure || (component == Component::kHost && maybe)) {
          component = Component::kHost;
          candidates.clear();
          worker = starved.worker;
          shape = SuspectShape::kHost;
          text = "the host of " + name + " (no CPU for its threads)";
        } else if (maybe) {
          if (candidates.empty()) candidates = {component};
          candidates.push_back(Component::kHost);
          component = Component::kUnknown;
          text += " or the host of " + name + " (too little CPU for its threads)";
        }
        if (maybe) {
          incident.evidence.push_back(name + ": " + starved.figures);
        } else if (component != Component::kHost) {
          incident.rejected.push_back(
              {"host of " + name, starved.figures + ", too little to explain what is lost"});
        }
      }
      if (!done.insert({worker, component}).second) continue;
      Culprit culprit = MakeCulprit(*worker, component, blame.confidence);
      culprit.candidates = candidates;
      if (b.kind == BlameKind::kNetEdge && shape == SuspectShape::kEdge) {
        culprit.where = NameOf(*worker) + " to " + NameOf(*b.other);
      }
      culprit.gpu_seconds_lost = total_excess > 0 ? lost_total * b.excess_ns / total_excess : 0;
      incident.culprits.push_back(std::move(culprit));
      causes.push_back(text);
      suspects.push_back(
          {shape, worker, shape == SuspectShape::kEdge ? b.other : nullptr, b.edges, component});
    }
    incident.evidence.insert(incident.evidence.end(), blame.evidence.begin(), blame.evidence.end());
    incident.rejected.insert(incident.rejected.end(), blame.rejected.begin(), blame.rejected.end());
    if (hardware_.any()) {
      EvidenceInput input;
      input.stuck = false;
      input.onset_ns = since;
      input.suspects = std::move(suspects);
      input.late_ns = 2 * static_cast<uint64_t>(blame.normal_ns + blame.lost_ns) + 3 * kSecond;
      input.lost_share = blame.lost_ns > 0 ? blame.lost_ns / (blame.normal_ns + blame.lost_ns) : 0;
      for (const Worker* worker : job) {
        input.transit_excess_ns[worker] = TransitExcess(blame, *worker);
      }
      for (const EdgeTransit& edge : blame.edges) {
        if (edge.now_ops >= 2 && edge.normal_ops >= 4 && edge.now_ns <= 1.5 * edge.normal_ns) {
          input.healthy_edges.push_back({edge.from, edge.to});
        }
      }
      JudgeByHardware(job, std::move(input), "", &incident, &causes);
    }
    std::string who;
    for (const std::string& cause : causes) who += (who.empty() ? "" : " and ") + cause;
    char figures[128];
    std::snprintf(figures, sizeof(figures), "cycles take %.1f ms instead of %.1f ms",
                  (blame.normal_ns + blame.lost_ns) / 1e6, blame.normal_ns / 1e6);
    incident.summary = who.empty() ? std::string(figures) + "; not enough evidence for a culprit"
                                   : std::string(figures) + " because of " + who;
    for (const Worker* victim : blame.victims) incident.victims.push_back(victim->job_rank);
    std::sort(incident.victims.begin(), incident.victims.end());
    if (!blame.blames.empty()) {
      for (const Worker* victim : blame.victims) {
        const Worker* cause = blame.blames[0].worker;
        incident.chain.push_back({victim->job_rank, cause->job_rank,
                                  Waits(*victim, cause, "its data comes late through it")});
        if (incident.chain.size() >= 8) break;
      }
    }
    DropGuesses(job, &incident.culprits);
    return incident;
  }

  std::map<size_t, CycleDetector> detectors_;
  MismatchDetector mismatches_;
  SuspicionPolicy suspicion_;
  std::vector<std::vector<Worker*>> jobs_;
  size_t job_shape_ = 0;
  std::vector<Case> cases_;
  // A slow spell that was judged to be nothing: how many cycles of it are worth another look.
  // Another spell, which begins when it becomes worse, is looked at anew.
  struct Quiet {
    uint64_t since_ns = 0;
    size_t cycles = 0;
  };
  struct UsualWait {
    uint64_t until_ns = 0;
    double share = 0;  // see CpuStarvation()
  };
  WorkerMap<UsualWait> usual_waits_;
  WorkerMap<Quiet> quiet_until_;  // by first worker of the job
};

std::vector<BlindSpot> Pipeline::Impl::BlindSpots() const {
  std::vector<BlindSpot> blind = model_.source_blind_spots();
  for (const auto& [id, comm] : model_.comms()) {
    if (comm->finalized || static_cast<int32_t>(comm->members.size()) >= comm->nranks) continue;
    std::string name = comm->name.empty() ? "a communicator" : "communicator " + comm->name;
    blind.push_back({name + ": " + std::to_string(comm->members.size()) + " of " +
                         std::to_string(comm->nranks) + " ranks are seen",
                     "what the other ranks do is not visible; a culprit among them cannot be named",
                     "run the agent on their hosts too, and merge the recordings"});
    if (blind.size() >= 24) break;
  }
  std::array<uint64_t, MC_LOSS_COUNT> lost{};
  uint64_t torn = 0;
  for (const auto& worker : model_.workers()) {
    for (int i = 0; i < MC_LOSS_COUNT; ++i) lost[i] += worker->lost[i];
    torn += worker->torn_reads;
  }
  struct Named {
    mc_loss cause;
    const char* text;
  };
  for (const Named& named :
       {Named{MC_LOSS_COMM_TABLE_FULL, "communicators did not fit on the board"},
        Named{MC_LOSS_THREAD_TABLE_FULL, "threads did not fit on the board"},
        Named{MC_LOSS_OP_EVICTED, "operations in flight were overwritten on the board"},
        Named{MC_LOSS_FLOW_TABLE_FULL,
              "proxy operations belong to flows that did not fit on the board"},
        Named{MC_LOSS_PROXY_OP_POOL_FULL, "proxy operations were not tracked step by step"},
        Named{MC_LOSS_FOREIGN_PARENT, "proxy operations were run for other processes (PXN)"}}) {
    if (lost[named.cause] == 0) continue;
    blind.push_back({std::to_string(lost[named.cause]) + " " + named.text,
                     "their progress is not visible", ""});
  }
  if (torn > 0) {
    blind.push_back({std::to_string(torn) +
                         (torn == 1 ? " line of a board was" : " lines of boards were") +
                         " being written at every try",
                     "single samples are missing", ""});
  }
  for (BlindSpot& spot : InvisibleTraffic(hardware_)) blind.push_back(std::move(spot));
  for (BlindSpot& spot : MissingProbes(hardware_)) blind.push_back(std::move(spot));
  if (hardware_.dropped() > 0) {
    blind.push_back({std::to_string(hardware_.dropped()) +
                         " samples of devices, ports or queue pairs did not fit",
                     "their state is not known", ""});
  }
  if (model_.malformed() > 0) {
    blind.push_back({std::to_string(model_.malformed()) + " malformed records were ignored",
                     "some operations may be missing", ""});
  }
  return blind;
}

Pipeline::Pipeline(const PipelineOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Pipeline::~Pipeline() = default;
Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;
void Pipeline::Feed(const Snapshot& snapshot) { impl_->Feed(snapshot); }
void Pipeline::Finish() { impl_->Finish(); }
const std::vector<Incident>& Pipeline::incidents() const { return impl_->incidents_; }
std::vector<BlindSpot> Pipeline::BlindSpots() const { return impl_->BlindSpots(); }
JobView Pipeline::View() const {
  JobView view = impl_->model_.View();
  view.devices = DevicesOf(impl_->hardware_);
  std::set<std::string> names;
  for (const auto& [name, host] : impl_->hardware_.hosts()) {
    for (const auto& [probe, sample] : host.probes) {
      if (names.insert(probe).second) view.probes.push_back(sample);
    }
    for (const auto& [key, process] : host.processes) {
      if (!process.gpu_work || process.exited_ns != 0) continue;
      const bool recorded = process.gpu_work->state == MC_GPU_ARMED;
      view.gpu_watched += recorded || process.gpu_work->state == MC_GPU_WATCHING ? 1 : 0;
      view.gpu_recorded += recorded ? 1 : 0;
    }
  }
  return view;
}
const HardwareModel& Pipeline::hardware() const { return impl_->hardware_; }
std::map<std::string, DeepProbes> Pipeline::Suspicions() { return impl_->Suspicions(); }

void ArmSuspected(Pipeline& pipeline, const std::string& host, LiveSource& source) {
  const std::map<std::string, DeepProbes> suspicions = pipeline.Suspicions();
  const auto found = suspicions.find(host);
  std::set<ProcessKey> processes;
  uint64_t until_ns = 0;
  if (found != suspicions.end()) {
    for (const auto& [process, tid] : found->second.threads) processes.insert(process);
    for (const DeepProbes::Qp& qp : found->second.qps) processes.insert(qp.process);
    until_ns = found->second.until_ns;
  }
  source.ArmDeep({processes.begin(), processes.end()}, until_ns);
}

}  // namespace mycroft
