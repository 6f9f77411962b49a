// SPDX-License-Identifier: Apache-2.0
//
// Snapshots as hostile processes and broken recordings could make them, through the
// whole pipeline. Identities come from small sets, so that they collide: lines that
// are used again, two processes that claim one rank, operations that change what
// they are. Incidents must keep what incident.h says of them.
#include <cstdlib>
#include <set>
#include <string>

#include "tests/fuzz/board/bytes.h"
#include "userspace/attribute/pipeline.h"

namespace mycroft {
namespace {

constexpr uint64_t kMs = 1'000'000;

void Require(bool ok) {
  if (!ok) abort();
}

CommSample AnyComm(Bytes& in, uint64_t now) {
  CommSample comm;
  comm.index = in.Below(4);
  comm.generation = in.Below(3);
  comm.comm_id = 0xc0 + in.Below(3);
  comm.nranks = static_cast<int32_t>(1 + in.Below(5));
  comm.rank = static_cast<int32_t>(in.Below(5));
  comm.state = static_cast<mc_comm_state>(in.Below(3));
  const uint8_t more = in.U8();
  if (more % 8 == 0) comm.nranks = static_cast<int32_t>(in.Any(0));
  if (more % 8 == 1) comm.rank = static_cast<int32_t>(in.Any(0));
  if (more % 8 == 2) comm.comm_id = in.Any(0);
  if (more % 8 == 3) comm.name = "world";
  comm.in_api = more % 16 == 4;
  comm.finalize_ns = comm.state == MC_COMM_FINALIZED ? now : 0;
  return comm;
}

OpSample AnyOp(Bytes& in, uint64_t now) {
  OpSample op;
  const uint8_t shape = in.U8();
  op.id = shape % 16 == 0 ? in.Any(0) : 1 + in.U8();
  op.comm = in.Below(4);
  op.comm_generation = in.Below(3);
  op.kind = static_cast<mc_op_kind>(shape / 16 % 4);
  op.func = static_cast<mc_func>(in.Below(MC_FUNC_SENDRECV + 1));
  op.root_or_peer = static_cast<int32_t>(in.Below(5)) - (shape % 16 == 1 ? 2 : 0);
  op.ordinal = shape % 16 == 2 ? in.Any(0) : in.Below(16);
  op.count = in.Below(4) * 1000;
  op.start_ns = in.Any(now);
  op.stop_ns = shape % 16 == 3 ? 0 : op.start_ns + 1000;
  op.proxy_started = static_cast<uint16_t>(in.Below(4));
  op.proxy_done = static_cast<uint16_t>(in.Below(4));
  op.proxy_last_ns = in.Any(now);
  if (shape % 16 == 4) {
    op.kernel_started = 2;
    op.kernel_stopped = static_cast<uint16_t>(in.Below(3));
    op.kernel_stop_seen_ns = in.Any(now);
  }
  if (shape % 16 >= 8) {
    for (uint64_t& wait : op.wait_ns) wait = in.Any(0);
    for (uint64_t& wait : op.max_wait_ns) wait = in.Any(0);
    op.send_steps = static_cast<uint32_t>(in.Any(0));
    op.recv_steps = shape % 16 == 8 ? static_cast<uint32_t>(in.Any(0)) : op.send_steps;
    op.send_posted_sum_ns = in.Any(now);
    op.send_done_sum_ns = in.Any(now);
    op.recv_posted_sum_ns = in.Any(now);
    op.recv_data_sum_ns = in.Any(now);
    op.bytes_sent = in.Any(0);
  }
  return op;
}

FlowSample AnyFlow(Bytes& in, uint64_t now) {
  FlowSample flow;
  const uint8_t shape = in.U8();
  flow.index = shape % 8 == 0 ? static_cast<uint32_t>(in.Any(0)) : in.Below(8);
  flow.comm = in.Below(4);
  flow.comm_generation = in.Below(3);
  flow.channel = static_cast<uint8_t>(in.Below(2));
  flow.direction = shape % 2 == 0 ? MC_SEND : MC_RECV;
  flow.peer = static_cast<int32_t>(in.Below(5)) - (shape % 8 == 1 ? 2 : 0);
  flow.owner_pid = shape % 8 == 2 ? 7 : 0;
  flow.state = static_cast<mc_flow_state>(in.Below(MC_FLOW_RECV_GPU + 1));
  flow.open_ops = shape % 8 == 3 ? 0 : 1;
  flow.op_id = 1 + in.U8();
  flow.total = 16;
  flow.posted = in.Below(17);
  flow.ready = in.Below(flow.posted + 1);
  flow.transmitted = in.Below(flow.ready + 1);
  flow.done = in.Below(flow.transmitted + 1);
  flow.state_ns = in.Any(now);
  flow.moved_ns = in.Any(now);
  return flow;
}

HostSample AnyHost(Bytes& in) {
  HostSample host;
  host.state = "RSDTtZX?"[in.Below(8)];
  host.throttled_ns = in.Any(0);
  for (uint32_t i = in.Below(3); i > 0; --i) {
    ThreadSample thread;
    thread.tid = i;
    thread.run_ns = in.Any(0);
    thread.runq_wait_ns = in.Any(0);
    host.threads.push_back(thread);
  }
  return host;
}

void Check(const Pipeline& pipeline, uint64_t* seen) {
  const auto& incidents = pipeline.incidents();
  Require(incidents.size() >= *seen);  // none is taken back
  *seen = incidents.size();
  for (size_t i = 0; i < incidents.size(); ++i) {
    const Incident& incident = incidents[i];
    Require(incident.id == i + 1);
    Require(incident.kind <= IncidentKind::kDead);
    Require(!incident.summary.empty());
    for (const Culprit& culprit : incident.culprits) {
      Require(culprit.component <= Component::kCcl);
      Require(culprit.confidence >= 0 && culprit.confidence <= 1);
      Require(culprit.gpu_seconds_lost >= 0);
    }
  }
}

}  // namespace
}  // namespace mycroft

extern "C" int MycroftSnapshotPipelineFuzz(const uint8_t* data, size_t size) {
  using namespace mycroft;  // NOLINT
  Bytes in(data, size);
  Pipeline pipeline;
  uint64_t now = 1'000'000 * kMs;
  uint64_t seen = 0;
  for (int ticks = 0; !in.empty() && ticks < 400; ++ticks) {
    const uint8_t shape = in.U8();
    Snapshot snapshot;
    snapshot.host = shape % 2 == 0 ? "a" : "b";
    now += uint64_t{shape} / 4 * 50 * kMs;
    snapshot.t_ns = shape % 32 == 31 ? in.Any(now) : now;
    snapshot.interval_ns = 100 * kMs;
    snapshot.blind_spots_changed = shape % 16 == 3;
    for (uint32_t p = in.Below(4); p > 0; --p) {
      ProcessSample process;
      process.key = {1 + in.Below(4), in.Below(8) == 0 ? 2u : 1u};
      process.name = "train";
      const uint8_t what = in.U8();
      if (what % 16 == 0) process.status = ProcessStatus::kExited;
      if (what % 16 == 1) process.status = ProcessStatus::kUnreadable;
      if (what % 16 == 2) process.lost[in.Below(MC_LOSS_COUNT)] = in.Any(0);
      if (what / 16 % 4 == 0) process.host = AnyHost(in);
      for (uint32_t i = in.Below(3); i > 0; --i) process.comms.push_back(AnyComm(in, now));
      for (uint32_t i = in.Below(12); i > 0; --i) process.ops.push_back(AnyOp(in, now));
      for (uint32_t i = in.Below(5); i > 0; --i) process.flows.push_back(AnyFlow(in, now));
      snapshot.processes.push_back(std::move(process));
    }
    pipeline.Feed(snapshot);
    Check(pipeline, &seen);
    if (shape % 8 == 5) (void)pipeline.View();
  }
  pipeline.Finish();
  Check(pipeline, &seen);
  (void)pipeline.View();
  (void)pipeline.BlindSpots();
  return 0;
}

#ifdef MYCROFT_FUZZER
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return MycroftSnapshotPipelineFuzz(data, size);
}
#endif
