// SPDX-License-Identifier: Apache-2.0
//
// For tests: a small job with an incident, made by hand so that every column of
// the screen has something to show.
#ifndef MYCROFT_USERSPACE_REPORT_TOP_TESTING_H_
#define MYCROFT_USERSPACE_REPORT_TOP_TESTING_H_

#include <string>

#include "userspace/report/top/state.h"

namespace mycroft {

inline RankView SampleRank(int32_t rank, int32_t job_rank, const std::string& host, uint32_t pid) {
  RankView view;
  view.rank = rank;
  view.job_rank = job_rank;
  view.host = host;
  view.process = {pid, 1000 + pid};
  view.process_name = "python3";
  view.process_state = 'S';
  view.func = MC_FUNC_ALLREDUCE;
  view.ordinal = 411;
  view.op_bytes = 64 << 20;
  view.age_ns = 35'000'000;
  view.bytes_per_s = 11.9e9;
  view.baseline_bytes_per_s = 12.1e9;
  return view;
}

// Four ranks on two hosts, "world" and two pairs; rank 2 does not fill its buffers.
inline TopData StuckSample() {
  constexpr uint64_t kMs = 1'000'000;
  TopData data;
  data.job.t_ns = 5'012'300 * kMs;
  data.job.wall_ns = 0;
  data.job.processes = 4;
  data.job.level = MC_LEVEL_STEPS;
  data.job.lost[MC_LOSS_STALE_HANDLE] = 2;
  data.job.lost[MC_LOSS_DUPLICATE_STEP] = 17;  // not a loss
  CommView world;
  world.comm_id = 0x9a40ddbf57b04e;
  world.name = "world";
  world.nranks = 4;
  for (int32_t i = 0; i < 4; ++i) {
    RankView rank = SampleRank(i, i, i < 2 ? "node-a" : "node-b", 4711 + static_cast<uint32_t>(i));
    rank.ordinal = 412;
    rank.in_flight = true;
    rank.progress = i == 2 ? 0.31 : 0.44;
    rank.age_ns = 12'340 * kMs;
    rank.wait = i == 2 ? MC_FLOW_SEND_GPU : MC_FLOW_RECV_REMOTE;
    rank.wait_age_ns = 12'300 * kMs;
    for (uint8_t channel = 0; channel < 2; ++channel) {
      for (mc_direction direction : {MC_SEND, MC_RECV}) {
        FlowView flow;
        flow.channel = channel;
        flow.direction = direction;
        flow.peer = direction == MC_SEND ? (i + 1) % 4 : (i + 3) % 4;
        flow.state = direction == MC_SEND ? MC_FLOW_SEND_GPU : MC_FLOW_RECV_REMOTE;
        flow.state_age_ns = 12'300 * kMs;
        flow.total = 48;
        flow.done = 15;
        flow.posted = 19;
        flow.bytes = 3ull << 30;
        flow.wait_ns = {1'200 * kMs, 4 * kMs, 310 * kMs};
        rank.flows.push_back(flow);
      }
    }
    world.ranks.push_back(rank);
  }
  data.job.comms.push_back(world);
  for (int32_t pair = 0; pair < 2; ++pair) {
    CommView comm;
    comm.comm_id = 0x100 + static_cast<uint64_t>(pair);
    comm.name = pair == 0 ? "tp0" : "";
    comm.nranks = 2;
    for (int32_t i = 0; i < 2; ++i) {
      const int32_t job = pair * 2 + i;
      RankView rank =
          SampleRank(i, job, pair == 0 ? "node-a" : "node-b", 4711 + static_cast<uint32_t>(job));
      rank.func = MC_FUNC_REDUCESCATTER;
      rank.ordinal = 2047;
      rank.bytes_per_s = pair == 0 ? 420e6 : 180e6;
      rank.baseline_bytes_per_s = 425e6;
      comm.ranks.push_back(rank);
    }
    data.job.comms.push_back(comm);
  }
  Incident slow;
  slow.id = 1;
  slow.kind = IncidentKind::kSlow;
  slow.onset_ns = data.job.t_ns - 70'000 * kMs;
  slow.detected_ns = slow.verdict_ns = slow.onset_ns + 400 * kMs;
  slow.cleared_ns = data.job.t_ns - 50'000 * kMs;
  slow.comm_id = world.comm_id;
  slow.summary = "rank 1 was slow";
  Culprit unsure;
  unsure.rank = 1;
  unsure.host = "node-a";
  unsure.candidates = {Component::kGpu, Component::kPcie};
  unsure.confidence = 0.55;
  slow.culprits = {unsure};
  data.incidents.push_back(slow);
  Incident stuck;
  stuck.id = 2;
  stuck.kind = IncidentKind::kStuck;
  stuck.onset_ns = data.job.t_ns - 12'300 * kMs;
  stuck.detected_ns = stuck.onset_ns + 1'100 * kMs;
  stuck.verdict_ns = stuck.detected_ns;
  stuck.comm_id = world.comm_id;
  stuck.comm_name = "world";
  stuck.summary = "ranks 0, 1, 3 wait in AllReduce 412 of \"world\" for the GPU of rank 2";
  Culprit gpu;
  gpu.rank = 2;
  gpu.host = "node-b";
  gpu.pid = 4713;
  gpu.component = Component::kGpu;
  gpu.confidence = 0.92;
  gpu.gpu_seconds_lost = 36.9;
  gpu.where = "channel 0, send to rank 3";
  stuck.culprits = {gpu};
  stuck.victims = {0, 1, 3};
  stuck.chain = {{3, 2, "receive on channel 0: waits for the sender"}};
  stuck.evidence = {"rank 2: 4 sends wait for the GPU, nothing received is missing"};
  stuck.rejected = {{"network between rank 2 and rank 3", "nothing is posted and unacknowledged"}};
  data.incidents.push_back(stuck);
  data.blind_spots = {{"process 99 has no board", "its operations are not visible", "set X"}};
  return data;
}

// The same job; rank 0 has a GPU on a narrow link and a NIC whose port is down, and a
// deep probe is armed.
inline TopData HardwareSample4() {
  TopData data = StuckSample();
  const ProcessKey process = data.job.comms[0].ranks[0].process;
  HopView root;
  root.address = "0000:3a:00.0";
  root.kind = PciKind::kRootPort;
  root.link = root.best = "32 GT/s x16";
  root.speed_gts = 32, root.width = 16;
  DeviceView gpu;
  gpu.host = "node-a";
  gpu.address = "0000:3b:00.0";
  gpu.kind = PciKind::kGpu;
  gpu.bytes_per_s = 31.5e9;
  gpu.narrowest = gpu.address;
  gpu.aer_correctable = 3;
  gpu.processes = {process};
  HopView hop = root;
  hop.address = gpu.address;
  hop.kind = PciKind::kGpu;
  hop.link = "32 GT/s x8";
  hop.width = 8;
  hop.degraded = true;
  gpu.path = {hop, root};
  gpu.problems = {"the link of GPU 0000:3b:00.0 runs at 32 GT/s x8, both ends could do 32 GT/s x16"};
  DeviceView nic;
  nic.host = "node-a";
  nic.address = "0000:3c:00.0";
  nic.kind = PciKind::kNic;
  nic.processes = {process};
  hop = root;
  hop.address = nic.address;
  hop.kind = PciKind::kNic;
  nic.path = {hop, root};
  nic.ports = {{"mlx5_0", 1, "DOWN", "Polling", "eth0", 400, false},
               {"mlx5_1", 1, "", "", "", 0, false}};
  nic.problems = {"port 1 of mlx5_0 is DOWN"};
  data.job.devices = {gpu, nic};
  ProbeSample deep, always;
  deep.name = "verbs.completions";
  deep.level = ProbeLevel::kDeep;
  deep.armed = true;
  deep.attached = "uprobe";
  always.name = "host.runq";
  always.problem = "no BTF";
  data.job.probes = {always, deep};
  return data;
}

inline TopSource LiveSample() {
  TopSource source;
  source.live = true;
  source.name = "live";
  source.interval_ns = 100'000'000;
  return source;
}

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_REPORT_TOP_TESTING_H_
