// SPDX-License-Identifier: Apache-2.0
//
// What a callback of the plugin costs the thread that makes it. Each call is timed
// alone with the time-stamp counter; the cost of an empty timer is subtracted.
// Counters: median and p99 of single calls in ns.
//
//   ProxyStepState/N   recordEventState(ProxyStep), send and receive, over N flows
//   ProxyStepStart/N, ProxyStepStop/N, ProxyOpStart/N, CollStart/N
//
// The library is loaded with dlopen, as NCCL does; MYCROFT_PLUGIN_PATH in the
// environment names another one.
#include <benchmark/benchmark.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "cupti/nccl/profiler_abi.h"

namespace mycroft::nccl {
namespace {

constexpr int kStepsPerOp = 8;
int g_mask = 0;

ProfilerV5* Plugin() {
  static ProfilerV5* plugin = [] {
    const char* path = getenv("MYCROFT_PLUGIN_PATH");
    void* lib = dlopen(path != nullptr ? path : MYCROFT_PLUGIN_PATH, RTLD_NOW | RTLD_LOCAL);
    if (lib == nullptr) {
      fprintf(stderr, "%s\n", dlerror());
      exit(1);
    }
    return static_cast<ProfilerV5*>(dlsym(lib, kSymbolV5));
  }();
  return plugin;
}

double NsPerTick() {
  static const double value = [] {
    timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    const uint64_t t0 = __rdtsc();
    do {
      clock_gettime(CLOCK_MONOTONIC, &b);
    } while ((b.tv_sec - a.tv_sec) * 1000000000L + (b.tv_nsec - a.tv_nsec) < 50000000L);
    const uint64_t t1 = __rdtsc();
    return static_cast<double>((b.tv_sec - a.tv_sec) * 1000000000L + (b.tv_nsec - a.tv_nsec)) /
           static_cast<double>(t1 - t0);
  }();
  return value;
}

inline uint64_t Ticks() {
  _mm_lfence();
  const uint64_t t = __rdtsc();
  _mm_lfence();
  return t;
}

class Histogram {
 public:
  void Add(uint64_t ticks) { ++counts_[std::min<uint64_t>(ticks, counts_.size() - 1)]; }
  uint64_t Quantile(double q) const {
    uint64_t total = 0, seen = 0;
    for (uint64_t c : counts_) total += c;
    for (size_t i = 0; i < counts_.size(); ++i) {
      seen += counts_[i];
      if (static_cast<double>(seen) >= q * static_cast<double>(total)) return i;
    }
    return counts_.size();
  }

 private:
  std::vector<uint64_t> counts_ = std::vector<uint64_t>(65536);
};

uint64_t EmptyTimer() {
  static const uint64_t value = [] {
    Histogram h;
    for (int i = 0; i < 200000; ++i) {
      const uint64_t t = Ticks();
      h.Add(Ticks() - t);
    }
    return h.Quantile(0.5);
  }();
  return value;
}

void Report(benchmark::State& state, const Histogram& h) {
  auto ns = [](uint64_t ticks) {
    return NsPerTick() * static_cast<double>(ticks > EmptyTimer() ? ticks - EmptyTimer() : 0);
  };
  state.counters["median_ns"] = ns(h.Quantile(0.5));
  state.counters["p99_ns"] = ns(h.Quantile(0.99));
  state.counters["p999_ns"] = ns(h.Quantile(0.999));
}

template <class F>
inline void Timed(Histogram& h, F call) {
  const uint64_t t = Ticks();
  call();
  h.Add(Ticks() - t);
}

// A job that runs: one communicator, `flows` flows, half of them receives, all
// operations in progress, steps interleaved over the flows.
struct Job {
  explicit Job(int flows) : flows(flows), ops(flows), steps(flows) {
    Plugin()->init(&context, 0x1234, &g_mask, "bench", 2, 2, 0, nullptr);
  }
  ~Job() { Plugin()->finalize(context); }

  void RunIteration() {
    EventDescrV5 d;
    memset(&d, 0, sizeof(d));
    void* coll = nullptr;
    d.type = kColl;
    d.coll.seq_number = seq++;
    d.coll.func = "AllReduce";
    d.coll.datatype = "ncclFloat32";
    d.coll.algo = "RING";
    d.coll.proto = "SIMPLE";
    d.coll.count = 1 << 20;
    d.coll.channels = 2;
    Timed(coll_start, [&] { Plugin()->start_event(context, &coll, &d); });
    Plugin()->stop_event(coll);
    for (int f = 0; f < flows; ++f) {
      memset(&d, 0, sizeof(d));
      d.type = kProxyOp;
      d.parent = coll;
      d.proxy_op = {getpid(), static_cast<uint8_t>(f / 2), 1, kStepsPerOp, 1 << 20, f % 2};
      Timed(op_start, [&] { Plugin()->start_event(context, &ops[f], &d); });
      Plugin()->record_event_state(ops[f], kProxyOpInProgress, nullptr);
    }
    StateArgs args = {};
    for (int step = 0; step < kStepsPerOp; ++step) {
      for (int f = 0; f < flows; ++f) {
        memset(&d, 0, sizeof(d));
        d.type = kProxyStep;
        d.parent = ops[f];
        d.proxy_step.step = step;
        Timed(step_start, [&] { Plugin()->start_event(context, &steps[f], &d); });
      }
      constexpr EventState kSend[] = {kSendGpuWait, kSendPeerWait, kSendWait};
      constexpr EventState kRecv[] = {kRecvWait, kRecvFlushWait, kRecvGpuWait};
      for (int i = 0; i < 3; ++i) {
        args.proxy_step.trans_size = 1 << 20;
        for (int f = 0; f < flows; ++f) {
          const EventState s = f % 2 != 0 ? kSend[i] : kRecv[i];
          Timed(step_state, [&] { Plugin()->record_event_state(steps[f], s, &args); });
        }
      }
      for (int f = 0; f < flows; ++f) {
        Timed(step_stop, [&] { Plugin()->stop_event(steps[f]); });
      }
    }
    for (int f = 0; f < flows; ++f) Plugin()->stop_event(ops[f]);
  }

  int flows;
  void* context = nullptr;
  uint64_t seq = 0;
  std::vector<void*> ops, steps;
  Histogram coll_start, op_start, step_start, step_state, step_stop;
};

void Run(benchmark::State& state, Histogram Job::*which) {
  EmptyTimer();
  NsPerTick();
  Job job(static_cast<int>(state.range(0)));
  for (int i = 0; i < 200; ++i) job.RunIteration();  // warm up
  job.*which = Histogram();
  for (auto _ : state) job.RunIteration();
  Report(state, job.*which);
}

void ProxyStepState(benchmark::State& s) { Run(s, &Job::step_state); }
void ProxyStepStart(benchmark::State& s) { Run(s, &Job::step_start); }
void ProxyStepStop(benchmark::State& s) { Run(s, &Job::step_stop); }
void ProxyOpStart(benchmark::State& s) { Run(s, &Job::op_start); }
void CollStart(benchmark::State& s) { Run(s, &Job::coll_start); }
BENCHMARK(ProxyStepState)->Arg(4)->Arg(64);
BENCHMARK(ProxyStepStart)->Arg(4)->Arg(64);
BENCHMARK(ProxyStepStop)->Arg(4)->Arg(64);
BENCHMARK(ProxyOpStart)->Arg(4)->Arg(64);
BENCHMARK(CollStart)->Arg(4);

}  // namespace
}  // namespace mycroft::nccl

BENCHMARK_MAIN();
