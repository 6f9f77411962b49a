// SPDX-License-Identifier: Apache-2.0
//
// Attribution at scale: a ring of N ranks with 8 channels (16 flows each) that
// stands still because of one GPU. Measured: the tick that gives the verdict
// (model, detection, wait-for graph, text), and a tick in which nothing happens.
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "userspace/align/causal_clock.h"
#include "userspace/attribute/pipeline.h"

namespace mycroft {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr int kChannels = 8;
constexpr uint64_t kCycle = 50 * kMs;

struct World {
  int ranks;
  uint64_t start = 1'000'000 * kMs;

  Snapshot Tick(uint64_t t) const {
    Snapshot s;
    s.host = "bench";
    s.t_ns = t;
    s.interval_ns = 100 * kMs;
    return s;
  }
  OpSample Op(uint64_t ordinal, bool complete) const {
    OpSample op;
    op.id = ordinal + 1;
    op.kind = MC_OP_COLL;
    op.func = MC_FUNC_ALLREDUCE;
    op.datatype = MC_TYPE_FLOAT32;
    op.count = 1 << 20;
    op.ordinal = ordinal;
    op.start_ns = start + ordinal * kCycle;
    op.stop_ns = op.start_ns + 1000;
    op.proxy_started = 2 * kChannels;
    op.proxy_first_ns = op.proxy_progress_ns = op.stop_ns;
    op.steps_total = 64 * kChannels;
    if (complete) {
      op.proxy_progress = op.proxy_done = op.proxy_started;
      op.proxy_last_ns = op.start_ns + kCycle - kMs;
      op.steps_done = op.steps_total;
    }
    return op;
  }
  Snapshot Begin(uint64_t operations) const {
    Snapshot s = Tick(start + operations * kCycle);
    for (int r = 0; r < ranks; ++r) {
      ProcessSample p;
      p.key = {static_cast<uint32_t>(r + 1), 1};
      p.name = "train";
      CommSample c;
      c.comm_id = 42;
      c.rank = r;
      c.nranks = ranks;
      c.state = MC_COMM_ACTIVE;
      c.name = "world";
      p.comms.push_back(c);
      for (uint64_t i = 0; i < operations; ++i) p.ops.push_back(Op(i, true));
      s.processes.push_back(std::move(p));
    }
    return s;
  }
  // All ranks in operation `ordinal`; the GPU of `culprit` takes nothing.
  Snapshot Stuck(uint64_t ordinal, int culprit) const {
    uint64_t moved = start + ordinal * kCycle + 5 * kMs;
    Snapshot s = Tick(moved + 500 * kMs);
    for (int r = 0; r < ranks; ++r) {
      ProcessSample p;
      p.key = {static_cast<uint32_t>(r + 1), 1};
      OpSample op = Op(ordinal, false);
      op.proxy_progress = op.proxy_started;
      p.ops.push_back(op);
      for (int i = 0; i < 2 * kChannels; ++i) {
        FlowSample f;
        f.index = i;
        f.channel = i / 2;
        f.direction = i % 2 == 0 ? MC_SEND : MC_RECV;
        f.peer = (r + (f.direction == MC_SEND ? 1 : ranks - 1)) % ranks;
        f.open_ops = 1;
        f.op_id = op.id;
        f.total = 32;
        f.posted = 8;
        f.ready = f.transmitted = f.done = 4;
        if (f.direction == MC_SEND) {
          f.state = MC_FLOW_SEND_GPU;
        } else if (r == culprit) {
          f.state = MC_FLOW_RECV_GPU;
          f.ready = f.transmitted = 8;
        } else {
          f.state = MC_FLOW_RECV_REMOTE;
        }
        f.state_ns = f.moved_ns = moved;
        p.flows.push_back(f);
      }
      s.processes.push_back(std::move(p));
    }
    return s;
  }
};

void BM_StuckVerdict(benchmark::State& state) {
  World world{static_cast<int>(state.range(0))};
  const Snapshot begin = world.Begin(20), stuck = world.Stuck(20, world.ranks / 3);
  for (auto _ : state) {
    state.PauseTiming();
    Pipeline pipeline;
    pipeline.Feed(begin);
    pipeline.Feed(stuck);
    Snapshot tick = world.Tick(stuck.t_ns + 600 * kMs);
    state.ResumeTiming();
    pipeline.Feed(tick);
    state.PauseTiming();
    const auto& incidents = pipeline.incidents();
    if (incidents.size() != 1 || incidents[0].culprits.size() != 1 ||
        incidents[0].culprits[0].rank != world.ranks / 3) {
      state.SkipWithError("wrong verdict");
    }
    state.ResumeTiming();
  }
}
BENCHMARK(BM_StuckVerdict)->Arg(64)->Arg(512)->Arg(4096)->Unit(benchmark::kMillisecond);

void BM_IdleTick(benchmark::State& state) {
  World world{static_cast<int>(state.range(0))};
  Pipeline pipeline;
  pipeline.Feed(world.Begin(20));
  uint64_t t = world.start + 21 * kCycle;
  for (auto _ : state) pipeline.Feed(world.Tick(t += kMs));
}
BENCHMARK(BM_IdleTick)->Arg(64)->Arg(4096)->Unit(benchmark::kMillisecond);

void BM_ClockConversion(benchmark::State& state) {
  CausalClock clock;
  for (uint64_t i = 0; i < 10000; ++i) {
    uint64_t local = (1 + i) * kMs;
    clock.RemoteAfterLocal(local + 500 + i * 7919 % 5000, local);
    clock.RemoteBeforeLocal(local, local + 500 + i * 104729 % 5000);
  }
  uint64_t t = 5000 * kMs;
  for (auto _ : state) benchmark::DoNotOptimize(clock.ToLocal(t += 1000));
}
BENCHMARK(BM_ClockConversion)->Unit(benchmark::kNanosecond);

}  // namespace
}  // namespace mycroft
