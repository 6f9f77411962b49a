// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/job/config.h"

#include <sstream>

namespace mycroft::lab {
namespace {

// SplitMix64: well-spread communicator ids from seed and index.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

absl::Status Bad(const std::string& text) { return absl::InvalidArgumentError(text); }

absl::Status CheckRange(const char* option, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();
  std::ostringstream out;
  out << option << " " << value << " is out of range (" << low << " to " << high << ")";
  return Bad(out.str());
}

}  // namespace

const char* ToString(Layout layout) {
  switch (layout) {
    case Layout::kFlat:
      return "flat";
    case Layout::kDpPp:
      return "dpxpp";
    case Layout::kDpTp:
      return "dpxtp";
  }
  return "?";
}

const char* ToString(OpKind op) {
  switch (op) {
    case OpKind::kAllReduce:
      return "ar";
    case OpKind::kReduceScatter:
      return "rs";
    case OpKind::kAllGather:
      return "ag";
    case OpKind::kBroadcast:
      return "bc";
    case OpKind::kSendRecv:
      return "sr";
    case OpKind::kAllToAll:
      return "aa";
  }
  return "?";
}

const char* ToString(Transport transport) {
  switch (transport) {
    case Transport::kTcp:
      return "tcp";
    case Transport::kVerbs:
      return "verbs";
  }
  return "?";
}

absl::StatusOr<Transport> ParseTransport(const std::string& text) {
  for (Transport transport : {Transport::kTcp, Transport::kVerbs}) {
    if (text == ToString(transport)) return transport;
  }
  return Bad("--transport \"" + text + "\" is not known; use tcp or verbs");
}

absl::StatusOr<std::vector<std::string>> ParseDevices(const std::string& text) {
  std::vector<std::string> names;
  std::istringstream in(text);
  std::string name;
  while (std::getline(in, name, ',')) {
    if (name.empty() || name.size() > 63) {
      return Bad("--ib-devices \"" + text + "\": not a list of names");
    }
    names.push_back(name);
  }
  return names;
}

absl::Status CheckFaults(const JobConfig& config) {
  for (const FaultSpec& fault : config.faults) {
    const FaultInfo& info = Info(fault.kind);
    const std::string name = info.name;
    if (info.needs == FaultNeeds::kTcp && config.transport != Transport::kTcp) {
      return Bad("--fault " + name +
                 " acts on sockets; over verbs the network is disturbed from "
                 "outside (tc qdisc add dev DEV root netem ...)");
    }
    if (info.needs == FaultNeeds::kVerbs && config.transport != Transport::kVerbs) {
      return Bad("--fault " + name + " needs --transport verbs");
    }
  }
  return absl::OkStatus();
}

std::string DeviceOf(const JobConfig& config, int job_rank) {
  if (config.transport != Transport::kVerbs || config.ib_devices.empty()) return "";
  return config.ib_devices[static_cast<size_t>(job_rank) % config.ib_devices.size()];
}

absl::StatusOr<Layout> ParseLayout(const std::string& text) {
  for (Layout layout : {Layout::kFlat, Layout::kDpPp, Layout::kDpTp}) {
    if (text == ToString(layout)) return layout;
  }
  return Bad("--layout \"" + text + "\" is not known; use flat, dpxpp or dpxtp");
}

absl::StatusOr<std::vector<OpKind>> ParseOps(const std::string& text) {
  std::vector<OpKind> ops;
  std::istringstream in(text);
  std::string word;
  while (std::getline(in, word, ',')) {
    bool found = false;
    for (OpKind op : {OpKind::kAllReduce, OpKind::kReduceScatter, OpKind::kAllGather,
                      OpKind::kBroadcast, OpKind::kSendRecv, OpKind::kAllToAll}) {
      if (word == ToString(op)) {
        ops.push_back(op);
        found = true;
      }
    }
    if (!found) {
      return Bad("--ops \"" + text + "\": \"" + word +
                 "\" is not known; use a list of ar, rs, ag, "
                 "bc, sr, aa");
    }
  }
  if (ops.empty() || ops.size() > 16) return Bad("--ops needs 1 to 16 operations");
  return ops;
}

absl::Status Complete(JobConfig* config) {
  JobConfig& c = *config;
  absl::Status range;
  for (const absl::Status& s : {
           CheckRange("--ranks", c.ranks, 2, 64),
           CheckRange("--channels", c.channels, 1, 32),
           CheckRange("--bytes", static_cast<double>(c.bytes), 4, 256 << 20),
           CheckRange("--compute-us", static_cast<double>(c.compute_us), 0, 1e9),
           CheckRange("--first-us", static_cast<double>(c.first_us), 0, 1e9),
           CheckRange("--noise", c.noise_percent, 0, 95),
           CheckRange("--microbatches", c.microbatches, 1, 64),
           CheckRange("--p2p-bytes", static_cast<double>(c.p2p_bytes), 4, 64 << 20),
           CheckRange("--tp-bytes", static_cast<double>(c.tp_bytes), 4, 64 << 20),
           CheckRange("--world-bytes", static_cast<double>(c.world_bytes), 0, 64 << 20),
           CheckRange("--iters", static_cast<double>(c.iters), 0, 1e12),
           CheckRange("--duration", c.duration_s, 0, 1e7),
           CheckRange("--socket-buffer", static_cast<double>(c.socket_buffer), 0, 64 << 20),
           CheckRange("--abort-after", c.abort_after_s, 0, 1e6),
           CheckRange("--ib-gid-index", c.ib.gid_index, -1, 255),
           CheckRange("--ib-timeout", c.ib.timeout, 0, 31),
           CheckRange("--ib-retry", c.ib.retry, 0, 7),
           CheckRange("--ib-rnr-retry", c.ib.rnr_retry, 0, 7),
           CheckRange("--ib-min-rnr-timer", c.ib.min_rnr_timer, 0, 31),
           CheckRange("--ib-mtu", c.ib.mtu_bytes, 0, 4096),
       }) {
    range.Update(s);
  }
  if (!range.ok()) return range;
  if (c.bytes % 4 != 0 || c.p2p_bytes % 4 != 0 || c.tp_bytes % 4 != 0 || c.world_bytes % 4 != 0) {
    return Bad("sizes must be multiples of 4 bytes (float32)");
  }
  const int mtu = c.ib.mtu_bytes;
  if (mtu != 0 && (mtu < 256 || (mtu & (mtu - 1)) != 0)) {
    return Bad("--ib-mtu must be 256, 512, 1024, 2048 or 4096");
  }
  if (c.profiler_api != 0 && (c.profiler_api < 4 || c.profiler_api > 6)) {
    return Bad("--profiler-api must be 4, 5 or 6");
  }
  if (c.iters == 0 && c.duration_s == 0) c.iters = 100;
  const std::string ranks = std::to_string(c.ranks);
  switch (c.layout) {
    case Layout::kFlat:
      if (c.dp != 0 || c.pp != 0 || c.tp != 0) {
        return Bad("--dp, --pp and --tp need --layout dpxpp or dpxtp");
      }
      return absl::OkStatus();
    case Layout::kDpPp:
      if (c.tp != 0) return Bad("--layout dpxpp takes --dp and --pp, not --tp");
      if (c.pp == 0 && c.dp == 0) c.pp = 2;
      if (c.pp == 0) c.pp = c.ranks / c.dp;
      if (c.dp == 0) c.dp = c.ranks / c.pp;
      if (c.dp < 1 || c.pp < 1 || c.dp * c.pp != c.ranks) {
        return Bad("--dp " + std::to_string(c.dp) + " x --pp " + std::to_string(c.pp) +
                   " is not --ranks " + ranks);
      }
      return absl::OkStatus();
    case Layout::kDpTp:
      if (c.pp != 0) return Bad("--layout dpxtp takes --dp and --tp, not --pp");
      if (c.tp == 0 && c.dp == 0) c.tp = 2;
      if (c.tp == 0) c.tp = c.ranks / c.dp;
      if (c.dp == 0) c.dp = c.ranks / c.tp;
      if (c.dp < 1 || c.tp < 1 || c.dp * c.tp != c.ranks) {
        return Bad("--dp " + std::to_string(c.dp) + " x --tp " + std::to_string(c.tp) +
                   " is not --ranks " + ranks);
      }
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

Role RoleOf(const JobConfig& config, int job_rank) {
  Role role;
  switch (config.layout) {
    case Layout::kFlat:
      role.dp = job_rank;
      break;
    case Layout::kDpPp:
      role.dp = job_rank % config.dp;
      role.pp = job_rank / config.dp;
      break;
    case Layout::kDpTp:
      role.dp = job_rank / config.tp;
      role.tp = job_rank % config.tp;
      break;
  }
  return role;
}

// Who of a communicator of `ops` exchanges messages.
static void PlanMessages(const JobConfig& config, CommPlan* plan) {
  for (OpKind op : config.ops) {
    plan->p2p_wraps |= op == OpKind::kSendRecv;
    plan->p2p_all |= op == OpKind::kAllToAll;
  }
  plan->p2p = plan->p2p_wraps || plan->p2p_all;
}

std::vector<CommPlan> PlanComms(const JobConfig& config) {
  std::vector<CommPlan> plans;
  auto add = [&](const std::string& name, std::vector<int> members) -> CommPlan* {
    const uint64_t id = Mix(config.seed * 1000003 + plans.size() + 1);
    if (members.size() < 2) return nullptr;
    plans.push_back({name, id, std::move(members)});
    return &plans.back();
  };
  std::vector<int> all(config.ranks);
  for (int r = 0; r < config.ranks; ++r) all[r] = r;
  CommPlan* world = add("world", all);
  world->ring = true;
  switch (config.layout) {
    case Layout::kFlat:
      PlanMessages(config, world);
      break;
    case Layout::kDpPp:
      for (int stage = 0; stage < config.pp; ++stage) {
        std::vector<int> members;
        for (int d = 0; d < config.dp; ++d) members.push_back(stage * config.dp + d);
        if (CommPlan* plan = add("dp" + std::to_string(stage), members)) {
          plan->ring = true;
          PlanMessages(config, plan);
        }
      }
      for (int d = 0; d < config.dp; ++d) {
        std::vector<int> members;
        for (int stage = 0; stage < config.pp; ++stage) members.push_back(stage * config.dp + d);
        if (CommPlan* plan = add("pp" + std::to_string(d), members)) plan->p2p = true;
      }
      break;
    case Layout::kDpTp:
      for (int d = 0; d < config.dp; ++d) {
        std::vector<int> members;
        for (int t = 0; t < config.tp; ++t) members.push_back(d * config.tp + t);
        if (CommPlan* plan = add("tp" + std::to_string(d), members)) plan->ring = true;
      }
      for (int t = 0; t < config.tp; ++t) {
        std::vector<int> members;
        for (int d = 0; d < config.dp; ++d) members.push_back(d * config.tp + t);
        if (CommPlan* plan = add("dp" + std::to_string(t), members)) {
          plan->ring = true;
          PlanMessages(config, plan);
        }
      }
      break;
  }
  return plans;
}

nlohmann::json ToJson(const JobConfig& c) {
  nlohmann::json faults = nlohmann::json::array();
  for (const FaultSpec& f : c.faults) {
    nlohmann::json j = {
        {"kind", static_cast<int>(f.kind)}, {"rank", f.rank}, {"at", f.at_s}, {"amount", f.amount}};
    if (f.for_s) j["for"] = *f.for_s;
    faults.push_back(j);
  }
  nlohmann::json ops = nlohmann::json::array();
  for (OpKind op : c.ops) ops.push_back(static_cast<int>(op));
  return {{"ranks", c.ranks},
          {"layout", static_cast<int>(c.layout)},
          {"dp", c.dp},
          {"pp", c.pp},
          {"tp", c.tp},
          {"iters", c.iters},
          {"duration", c.duration_s},
          {"channels", c.channels},
          {"bytes", c.bytes},
          {"ops", ops},
          {"compute_us", c.compute_us},
          {"first_us", c.first_us},
          {"noise", c.noise_percent},
          {"microbatches", c.microbatches},
          {"p2p_bytes", c.p2p_bytes},
          {"tp_bytes", c.tp_bytes},
          {"world_bytes", c.world_bytes},
          {"uneven", c.uneven_p2p},
          {"faults", faults},
          {"plugin", c.plugin},
          {"plugin_given", c.plugin_given},
          {"api", c.profiler_api},
          {"seed", c.seed},
          {"socket_buffer", c.socket_buffer},
          {"keep_open", c.keep_open},
          {"connect_after", c.connect_after_s},
          {"transport", static_cast<int>(c.transport)},
          {"ib",
           {{"devices", c.ib_devices},
            {"gid_index", c.ib.gid_index},
            {"timeout", c.ib.timeout},
            {"retry", c.ib.retry},
            {"rnr_retry", c.ib.rnr_retry},
            {"min_rnr_timer", c.ib.min_rnr_timer},
            {"mtu", c.ib.mtu_bytes},
            {"flush", c.ib_flush},
            {"spin", c.ib_spin}}}};
}

absl::StatusOr<JobConfig> ConfigFromJson(const nlohmann::json& j) {
  // Our own launcher wrote it; a wrong type is our bug or a foreign process, so the
  // exception of the JSON library ends here.
  try {
    JobConfig c;
    c.ranks = j.at("ranks");
    c.layout = static_cast<Layout>(j.at("layout").get<int>());
    c.dp = j.at("dp");
    c.pp = j.at("pp");
    c.tp = j.at("tp");
    c.iters = j.at("iters");
    c.duration_s = j.at("duration");
    c.channels = j.at("channels");
    c.bytes = j.at("bytes");
    c.ops.clear();
    for (const auto& op : j.at("ops")) c.ops.push_back(static_cast<OpKind>(op.get<int>()));
    c.compute_us = j.at("compute_us");
    c.first_us = j.at("first_us");
    c.noise_percent = j.at("noise");
    c.microbatches = j.at("microbatches");
    c.p2p_bytes = j.at("p2p_bytes");
    c.tp_bytes = j.at("tp_bytes");
    c.world_bytes = j.at("world_bytes");
    c.uneven_p2p = j.at("uneven");
    for (const auto& f : j.at("faults")) {
      FaultSpec spec;
      const int kind = f.at("kind");
      if (kind < 0 || kind >= static_cast<int>(FaultKind::kCount)) return Bad("bad fault kind");
      spec.kind = static_cast<FaultKind>(kind);
      spec.rank = f.at("rank");
      spec.at_s = f.at("at");
      spec.amount = f.at("amount");
      if (f.contains("for")) spec.for_s = f.at("for").get<double>();
      c.faults.push_back(spec);
    }
    c.plugin = j.at("plugin");
    c.plugin_given = j.at("plugin_given");
    c.profiler_api = j.at("api");
    c.seed = j.at("seed");
    c.socket_buffer = j.at("socket_buffer");
    c.keep_open = j.at("keep_open");
    c.connect_after_s = j.at("connect_after");
    c.transport = static_cast<Transport>(j.at("transport").get<int>());
    const nlohmann::json& ib = j.at("ib");
    c.ib_devices = ib.at("devices").get<std::vector<std::string>>();
    c.ib.gid_index = ib.at("gid_index");
    c.ib.timeout = ib.at("timeout");
    c.ib.retry = ib.at("retry");
    c.ib.rnr_retry = ib.at("rnr_retry");
    c.ib.min_rnr_timer = ib.at("min_rnr_timer");
    c.ib.mtu_bytes = ib.at("mtu");
    c.ib_flush = ib.at("flush");
    c.ib_spin = ib.at("spin");
    return c;
  } catch (const nlohmann::json::exception& e) {
    return Bad(std::string("job description: ") + e.what());
  }
}

}  // namespace mycroft::lab
