// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/job/truth.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>

namespace mycroft::lab {
namespace {

std::string Hex(uint64_t value) {
  char text[32];
  snprintf(text, sizeof(text), "%" PRIx64, value);
  return text;
}

uint64_t Planned(uint64_t t0_ns, double at_s) {
  return t0_ns == 0 ? 0 : t0_ns + static_cast<uint64_t>(at_s * 1e9);
}

}  // namespace

nlohmann::json Expected(const JobConfig& config) {
  // The word for the whole job is that of the gravest fault.
  static const char* kOrder[] = {"healthy", "slow", "absent", "hang", "mismatch", "dead"};
  size_t worst = 0;
  nlohmann::json culprits = nlohmann::json::array();
  for (const FaultSpec& fault : config.faults) {
    const FaultInfo& info = Info(fault.kind);
    for (size_t i = 0; i < std::size(kOrder); ++i) {
      if (strcmp(info.verdict, kOrder[i]) == 0) worst = std::max(worst, i);
    }
    const nlohmann::json culprit = {{"rank", fault.rank}, {"component", info.component}};
    if (std::find(culprits.begin(), culprits.end(), culprit) == culprits.end()) {
      culprits.push_back(culprit);
    }
  }
  return {{"verdict", kOrder[worst]}, {"culprits", culprits}};
}

nlohmann::json ToJson(const JobConfig& config, const JobTruth& truth) {
  nlohmann::json comms = nlohmann::json::object();
  for (const CommPlan& plan : PlanComms(config)) {
    std::vector<int> channels(config.channels);
    for (int c = 0; c < config.channels; ++c) channels[c] = c;
    comms[Hex(plan.id)] = {{"name", plan.name},
                           {"nranks", plan.members.size()},
                           {"ranks", plan.members},
                           {"channels", channels}};
  }
  std::string ops;
  for (OpKind op : config.ops) {
    ops +=
        (ops.empty() ? "" : ",") + std::string(ToString(op)) + ":" + std::to_string(config.bytes);
  }
  nlohmann::json faults = nlohmann::json::array();
  auto add = [&](nlohmann::json fault, const FaultTruth& seen, double at_s, double for_s) {
    fault["planned_onset"] = Planned(truth.t0_ns, at_s);
    fault["planned_clear"] = for_s > 0 ? Planned(truth.t0_ns, at_s + for_s) : 0;
    fault["onset"] = seen.onset_ns;
    fault["clear"] = seen.clear_ns;
    nlohmann::json windows = nlohmann::json::array();
    if (seen.onset_ns != 0) windows.push_back({seen.onset_ns, seen.clear_ns});
    fault["windows"] = windows;
    faults.push_back(fault);
  };
  for (size_t i = 0; i < config.faults.size(); ++i) {
    const FaultSpec& spec = config.faults[i];
    const FaultInfo& info = Info(spec.kind);
    add({{"kind", info.name},
         {"rank", spec.rank},
         {"component", info.component},
         {"verdict", info.verdict},
         {"amount", spec.amount},
         {"unit", info.unit}},
        truth.faults[i], spec.at_s, spec.for_s.value_or(0));
  }
  for (size_t i = 0; i < config.events.size(); ++i) {
    const EventSpec& spec = config.events[i];
    add({{"kind", spec.kind},
         {"rank", -1},
         {"component", "none"},
         {"amount", spec.for_s * 1e6},
         {"unit", "us"}},
        truth.events[i], spec.at_s, spec.for_s);
  }
  nlohmann::json ranks = nlohmann::json::array();
  for (int r = 0; r < static_cast<int>(truth.ranks.size()); ++r) {
    const RankTruth& rank = truth.ranks[r];
    const Role role = RoleOf(config, r);
    nlohmann::json place = nlohmann::json::object();
    if (role.dp >= 0) place["dp"] = role.dp;
    if (role.pp >= 0) place["pp"] = role.pp;
    if (role.tp >= 0) place["tp"] = role.tp;
    ranks.push_back(
        {{"rank", r},
         {"pid", rank.pid},
         {"device", DeviceOf(config, r)},
         {"role", place},
         {"result", rank.result},
         {"abort", rank.abort_ns},
         {"ready", rank.ready_ns},
         {"gpu_clock", {{"offset_ns", rank.gpu_offset_ns}, {"drift_ppm", rank.gpu_drift_ppm}}},
         {"iters", rank.iters}});
  }
  const bool pipeline = config.layout == Layout::kDpPp;
  const bool tensor = config.layout == Layout::kDpTp;
  return {{"case", "lab"},
          {"nccl", "lab"},
          {"api", truth.api},
          {"note", truth.note},
          {"expected", Expected(config)},
          {"comms", comms},
          {"nranks", config.ranks},
          {"layout", ToString(config.layout)},
          {"transport", ToString(config.transport)},
          {"iters", config.iters},
          {"compute_us", config.compute_us},
          {"noise_percent", config.noise_percent},
          {"ops", ops},
          {"microbatches", config.microbatches},
          {"p2p_bytes", pipeline ? config.p2p_bytes : 0},
          {"tp_bytes", tensor ? config.tp_bytes : 0},
          {"world_bytes", pipeline || tensor ? config.world_bytes : 0},
          {"t0", truth.t0_ns},
          {"faults", faults},
          {"ranks", ranks}};
}

absl::Status WriteTruth(const std::string& path, const JobConfig& config, const JobTruth& truth) {
  const std::string text = ToJson(config, truth).dump(1) + "\n";
  const std::string temporary = path + ".tmp" + std::to_string(getpid());
  auto fail = [&](const char* what) {
    absl::Status status =
        absl::UnavailableError(std::string(what) + " " + temporary + ": " + strerror(errno));
    unlink(temporary.c_str());
    return status;
  };
  FILE* file = fopen(temporary.c_str(), "we");
  if (file == nullptr) return fail("cannot create");
  const bool written = fwrite(text.data(), 1, text.size(), file) == text.size();
  if (fclose(file) != 0 || !written) return fail("cannot write");
  if (rename(temporary.c_str(), path.c_str()) != 0) return fail("cannot rename");
  return absl::OkStatus();
}

}  // namespace mycroft::lab
