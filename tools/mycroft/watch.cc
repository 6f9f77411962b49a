// SPDX-License-Identifier: Apache-2.0
#include "tools/mycroft/watch.h"

#include <linux/capability.h>
#include <signal.h>

#include <atomic>
#include <ctime>
#include <nlohmann/json.hpp>

#include "userspace/base/log.h"
#include "userspace/base/units.h"
#include "userspace/decode/async_kernel_probes.h"
#include "userspace/decode/bpf_kernel_probes.h"
#include "userspace/model/devices.h"
#include "userspace/report/text.h"
#include "userspace/report/top/rows.h"
#include "userspace/report/verdict.h"
#include "userspace/source/nvml.h"
#include "userspace/source/probes/capabilities.h"

namespace mycroft {
namespace {

std::atomic<LiveSource*> g_source{nullptr};

void OnSignal(int number) {
  if (LiveSource* source = g_source.load()) source->Interrupt();
  ::signal(number, SIG_DFL);
}

bool SameVerdict(const Incident& a, const Incident& b) {
  if (a.kind != b.kind || a.culprits.size() != b.culprits.size()) return false;
  for (size_t i = 0; i < a.culprits.size(); ++i) {
    const Culprit &x = a.culprits[i], &y = b.culprits[i];
    if (x.rank != y.rank || x.component != y.component || x.candidates != y.candidates)
      return false;
  }
  return true;
}

std::string Culprits(const Incident& incident) {
  if (incident.culprits.empty()) return "culprit not known: not enough evidence";
  std::string text;
  for (const Culprit& culprit : incident.culprits) {
    if (!text.empty()) text += ", ";
    text += CulpritName(culprit);
    if (!culprit.host.empty()) text += " on " + PrintableText(culprit.host);
    text += " (" + std::to_string(static_cast<int>(culprit.confidence * 100)) + "%)";
  }
  return text;
}

std::string TimeOfDay(uint64_t wall_ns) {
  const time_t seconds = static_cast<time_t>(wall_ns / 1'000'000'000);
  struct tm local {};
  char text[32] = "";
  if (wall_ns == 0 || ::localtime_r(&seconds, &local) == nullptr) return "";
  std::strftime(text, sizeof text, "%H:%M:%S ", &local);
  return text;
}

// `admin`: set when the probes need CAP_SYS_ADMIN later on.
absl::StatusOr<std::unique_ptr<KernelProbes>> OpenProbes(bool strict, bool* admin) {
  absl::StatusOr<std::unique_ptr<BpfKernelProbes>> probes = BpfKernelProbes::Create({});
  if (!probes.ok()) return probes.status();
  std::string missing;
  for (const ProbeRow& row : (*probes)->set().Rows()) {
    const ProbeSample sample = ProbeSampleOf(row);
    if (Degraded(sample)) missing += "\n  " + sample.name + ": " + sample.problem;
  }
  if (strict && !missing.empty()) {
    return absl::FailedPreconditionError("--strict: not every probe could be attached:" + missing);
  }
  *admin = (*probes)->set().AttachesByPerfEvent();
  return std::unique_ptr<KernelProbes>(std::make_unique<AsyncKernelProbes>(*std::move(probes)));
}

// Files of other users, among them the folder of a recording, are still written.
absl::Status GiveUpRights(bool admin) {
  std::vector<int> keep = CapabilitiesWhileRunning(admin);
  keep.push_back(CAP_DAC_OVERRIDE);
  return DropCapabilities(keep);
}

}  // namespace

PipelineOptions MakePipelineOptions(const Config& config) {
  PipelineOptions options;
  options.stuck_min_ns = config.stuck_after_ns;
  options.slow_factor = config.slow_factor;
  return options;
}

absl::StatusOr<Live> OpenLive(const Config& config, const Options& options) {
  Live out;
  bool admin = false;
  if (config.probes) {
    absl::StatusOr<std::unique_ptr<KernelProbes>> probes = OpenProbes(options.strict, &admin);
    if (!probes.ok()) return probes.status();
    out.probes = *std::move(probes);
  }
  LiveOptions live;
  live.probes = out.probes.get();
  live.gpu_health.nvml_library = DefaultNvmlLibrary();
  live.gpu_health.kernel_log = "/dev/kmsg";
  live.interval_ns = config.interval_ns;
  live.gpu_sampling_ns = config.gpu_sampling_ns;
  live.pids.insert(options.pids.begin(), options.pids.end());
  absl::StatusOr<std::unique_ptr<LiveSource>> source = LiveSource::Create(live);
  if (!source.ok()) return source.status();
  out.source = *std::move(source);
  if (config.level != MC_LEVEL_UNSET) out.source->RequestLevel(config.level);
  out.source->ReadAhead();
  if (const absl::Status given_up = GiveUpRights(admin); !given_up.ok()) {
    LogWarning(StatusText(given_up) + "; going on with more rights than needed");
  }
  return out;
}

InterruptOnSignal::InterruptOnSignal(LiveSource& source) {
  g_source = &source;
  struct sigaction action {};
  action.sa_handler = OnSignal;
  for (int number : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(number, &action, nullptr);
}

InterruptOnSignal::~InterruptOnSignal() {
  for (int number : {SIGINT, SIGTERM, SIGHUP}) ::signal(number, SIG_DFL);
  g_source = nullptr;
}

const char* ToString(IncidentEvent::Kind kind) {
  switch (kind) {
    case IncidentEvent::Kind::kOpened:
      return "opened";
    case IncidentEvent::Kind::kChanged:
      return "changed";
    case IncidentEvent::Kind::kCleared:
      return "cleared";
  }
  return "opened";
}

std::vector<IncidentEvent> IncidentTracker::Update(const std::vector<Incident>& incidents) {
  std::vector<IncidentEvent> events;
  for (const Incident& incident : incidents) {
    const auto [it, fresh] = told_.try_emplace(incident.id, incident);
    Incident& told = it->second;
    if (fresh) events.push_back({IncidentEvent::Kind::kOpened, incident});
    if (!fresh && !SameVerdict(told, incident)) {
      events.push_back({IncidentEvent::Kind::kChanged, incident});
    }
    const bool was_open = fresh || !told.cleared_ns;
    if (was_open && incident.cleared_ns) {
      events.push_back({IncidentEvent::Kind::kCleared, incident});
    } else if (!was_open && !incident.cleared_ns) {
      events.push_back({IncidentEvent::Kind::kOpened, incident});  // it came back
    }
    told = incident;
  }
  return events;
}

std::vector<Incident> IncidentTracker::Changed(const std::vector<Incident>& incidents,
                                               uint64_t now_ns, uint64_t interval_ns) {
  std::vector<Incident> changed;
  for (const Incident& incident : incidents) {
    const auto it = stored_.find(incident.id);
    if (it != stored_.end()) {
      if (it->second.incident == incident) continue;
      const bool event = !SameVerdict(it->second.incident, incident) ||
                         it->second.incident.cleared_ns != incident.cleared_ns;
      if (!event && now_ns < it->second.at_ns + interval_ns) continue;
    }
    stored_[incident.id] = {incident, now_ns};
    changed.push_back(incident);
  }
  return changed;
}

std::string EventText(const IncidentEvent& event, uint64_t wall_ns) {
  const Incident& incident = event.incident;
  std::string text = TimeOfDay(wall_ns);
  switch (event.kind) {
    case IncidentEvent::Kind::kOpened:
      text += std::string(KindName(incident.kind)) + " #" + std::to_string(incident.id) + ": " +
              Culprits(incident);
      break;
    case IncidentEvent::Kind::kChanged:
      text += std::string(KindName(incident.kind)) + " #" + std::to_string(incident.id) +
              ", verdict now: " + Culprits(incident);
      break;
    case IncidentEvent::Kind::kCleared: {
      const uint64_t cleared = incident.cleared_ns.value_or(incident.onset_ns);
      return text + "CLEARED #" + std::to_string(incident.id) + " after " +
             ShortDuration(cleared > incident.onset_ns ? cleared - incident.onset_ns : 0) + ": " +
             Culprits(incident);
    }
  }
  if (!incident.summary.empty()) text += "; " + PrintableText(incident.summary);
  return text;
}

std::string EventJson(const IncidentEvent& event, uint64_t t_ns, uint64_t wall_ns) {
  using Json = nlohmann::ordered_json;
  const Json verdict = Json::parse(VerdictJson({event.incident}, {}, -1), nullptr, false);
  Json line = {{"schema_version", kVerdictSchemaVersion},
               {"event", ToString(event.kind)},
               {"t_ns", t_ns},
               {"clock", "CLOCK_MONOTONIC"},
               {"wall_ns", wall_ns}};
  line["incident"] = verdict.is_object() ? verdict["incidents"][0] : Json();
  return line.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool Observed(const JobView& view) { return view.processes > 0 || !view.comms.empty(); }

}  // namespace mycroft
