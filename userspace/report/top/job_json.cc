// SPDX-License-Identifier: Apache-2.0
#include "userspace/report/top/job_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "userspace/base/loss.h"
#include "userspace/report/text.h"
#include "userspace/report/verdict.h"

namespace mycroft {
namespace {

using Json = nlohmann::ordered_json;

double Finite(double value) { return std::isfinite(value) ? value : 0; }

const char* StateName(mc_flow_state state) {
  switch (state) {
    case MC_FLOW_IDLE:
      return "idle";
    case MC_FLOW_QUEUED:
      return "queued";
    case MC_FLOW_PROGRESS:
      return "starting";
    case MC_FLOW_SEND_GPU:
      return "send_gpu";
    case MC_FLOW_SEND_PEER:
      return "send_peer";
    case MC_FLOW_SEND_NET:
      return "send_net";
    case MC_FLOW_RECV_REMOTE:
      return "recv_remote";
    case MC_FLOW_RECV_FLUSH:
      return "recv_flush";
    case MC_FLOW_RECV_GPU:
      return "recv_gpu";
  }
  return "unknown";
}

Json ToJson(const FlowView& flow) {
  return {{"channel", flow.channel},
          {"direction", flow.direction == MC_SEND ? "send" : "recv"},
          {"peer", flow.peer},
          {"state", StateName(flow.state)},
          {"state_age_ns", flow.state_age_ns},
          {"total", flow.total},
          {"posted", flow.posted},
          {"ready", flow.ready},
          {"transmitted", flow.transmitted},
          {"done", flow.done},
          {"bytes", flow.bytes},
          {"wait_ns", flow.wait_ns}};
}

Json ToJson(const RankView& rank) {
  Json flows = Json::array();
  for (const FlowView& flow : rank.flows) flows.push_back(ToJson(flow));
  return {{"rank", rank.job_rank},
          {"comm_rank", rank.rank},
          {"host", rank.host},
          {"pid", rank.process.pid},
          {"process", rank.process_name},
          {"process_state", std::string(1, rank.process_state)},
          {"op", ToString(rank.func)},
          {"seq", rank.ordinal},
          {"op_bytes", rank.op_bytes},
          {"in_flight", rank.in_flight},
          {"progress", Finite(rank.progress)},
          {"age_ns", rank.age_ns},
          {"bytes_per_s", Finite(rank.bytes_per_s)},
          {"baseline_bytes_per_s", Finite(rank.baseline_bytes_per_s)},
          {"wait", StateName(rank.wait)},
          {"wait_age_ns", rank.wait_age_ns},
          {"flows", std::move(flows)}};
}

}  // namespace

std::string TopJson(const TopData& data, int indent) {
  Json out = Json::parse(VerdictJson(data.incidents, data.blind_spots, -1), nullptr, false);
  if (!out.is_object()) out = Json::object();  // unreachable: VerdictJson writes an object
  const JobView& job = data.job;
  Json comms = Json::array();
  for (const CommView& comm : job.comms) {
    Json ranks = Json::array();
    for (const RankView& rank : comm.ranks) ranks.push_back(ToJson(rank));
    comms.push_back({{"comm_id", HexText(comm.comm_id)},
                     {"name", comm.name},
                     {"nranks", comm.nranks},
                     {"finalized", comm.finalized},
                     {"ranks", std::move(ranks)}});
  }
  Json lost = Json::object();
  for (size_t i = 0; i < job.lost.size(); ++i) {
    lost[LossName(static_cast<mc_loss>(i))] = job.lost[i];
  }
  Json devices = Json::array();
  for (const DeviceView& device : job.devices) {
    Json pids = Json::array(), ports = Json::array();
    for (const ProcessKey& key : device.processes) pids.push_back(key.pid);
    for (const PortView& port : device.ports) {
      ports.push_back({{"device", port.device}, {"port", port.port}, {"state", port.state}});
    }
    devices.push_back({{"name", DeviceName(device)},
                       {"host", device.host},
                       {"pids", std::move(pids)},
                       {"bytes_per_s", Finite(device.bytes_per_s)},
                       {"path", PathText(device)},
                       {"health", HealthText(device)},
                       {"ports", std::move(ports)},
                       {"problems", device.problems}});
  }
  Json probes = Json::array();
  for (const ProbeSample& probe : job.probes) {
    probes.push_back({{"name", probe.name},
                      {"level", probe.level == ProbeLevel::kDeep ? "deep" : "always"},
                      {"armed", probe.armed},
                      {"attached", probe.attached},
                      {"problem", probe.problem}});
  }
  out["job"] = {{"t_ns", job.t_ns},
                {"clock", "CLOCK_MONOTONIC"},
                {"wall_ns", job.wall_ns},
                {"processes", job.processes},
                {"level", job.level},
                {"gpu_watched", job.gpu_watched},
                {"gpu_recorded", job.gpu_recorded},
                {"lost", std::move(lost)},
                {"torn_reads", job.torn_reads},
                {"comms", std::move(comms)},
                {"devices", std::move(devices)},
                {"probes", std::move(probes)}};
  return out.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace mycroft
