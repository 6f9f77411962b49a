// SPDX-License-Identifier: Apache-2.0
//
// The way from a program in the kernel to HostProbes, and what the scheduler probes cost
// threads that are not watched.
//
//   Drain/4096    bursts that fit the ring: records per second, none may be lost
//   Drain/0       without rest: what does not fit is lost and must be counted
//   Switch/0,1,2  a pair of threads that wake each other up: without probes, unwatched, watched
#include <benchmark/benchmark.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "skeleton/flood.skel.h"
#include "userspace/source/probes/host.h"
#include "userspace/source/probes/probe_set.h"

namespace mycroft {
namespace {

constexpr int kRecordsPerRun = 256;  // of flood.bpf.c

void PinTo(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

double CpuNs(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

// range(0): bytes of the ring in units of 1 MiB; range(1): 1: the producer waits for room.
void Drain(benchmark::State& state) {
  ProbeSet::Options options;
  options.objects = {"host"};
  options.ring_bytes = static_cast<uint32_t>(state.range(0)) << 20;
  auto set = ProbeSet::Create(options);
  flood_bpf* flood = set.ok() ? flood_bpf__open() : nullptr;
  const int events = flood == nullptr ? -1 : (*set)->MapFd("host", "mc_events");
  if (events < 0 || bpf_map__reuse_fd(flood->maps.mc_events, events) != 0 ||
      bpf_map__reuse_fd(flood->maps.mc_counters, (*set)->MapFd("host", "mc_counters")) != 0 ||
      flood_bpf__load(flood) != 0) {
    state.SkipWithError("needs root and BPF");
    if (flood != nullptr) flood_bpf__destroy(flood);
    return;
  }
  HostProbes host(set->get());
  const bool polite = state.range(1) != 0;
  const uint64_t room = (uint64_t{options.ring_bytes} / 2) / 40;  // records, with their headers
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> produced{0}, consumed{0};
  std::thread producer([&] {
    PinTo(0);
    LIBBPF_OPTS(bpf_test_run_opts, run);
    const int program = bpf_program__fd(flood->progs.flood);
    while (!stop) {
      if (polite && produced - consumed > room) continue;
      if (bpf_prog_test_run_opts(program, &run) != 0) break;
      produced += kRecordsPerRun;
    }
  });
  PinTo(1);
  uint64_t records = 0, taken = 0;
  const auto drain = [&] {
    const size_t n = (*set)->ReadEvents(
        [&](const mc_event& header, std::span<const std::byte> record) {
          taken += host.TakeRecord(header, record);
        },
        65536);
    consumed += n;
    records += n;
    host.TakeEvents();
  };
  for (auto _ : state) drain();
  stop = true;
  producer.join();
  const double before = static_cast<double>(records);
  while (records < produced) {
    const uint64_t last = records;
    drain();
    if (records == last) break;
  }
  uint64_t hits = 0, dropped = 0;
  for (const ProbeRow& row : (*set)->Rows()) {
    if (row.name != "host.exit") continue;
    hits = row.hits;
    dropped = row.dropped;
  }
  if (records != taken || hits != produced || records + dropped != hits)
    state.SkipWithError("records are missing that were not counted as lost");
  if (polite && dropped != 0) state.SkipWithError("records were lost although there was room");
  state.counters["records_per_s"] = benchmark::Counter(before, benchmark::Counter::kIsRate);
  state.counters["lost_percent"] =
      100.0 * static_cast<double>(dropped) / static_cast<double>(std::max<uint64_t>(hits, 1));
  flood_bpf__destroy(flood);
}
BENCHMARK(Drain)->Args({16, 1})->Args({1, 1})->Args({1, 0})->MinTime(2)->UseRealTime();

// Two threads on one CPU that wake each other up by pipes: two switches and two wakeups a
// round. CPU time of both, so that other load does not count.
double RoundNs(int rounds, std::atomic<uint32_t>* tid, std::atomic<bool>* go) {
  int there[2], back[2];
  if (pipe(there) != 0 || pipe(back) != 0) return 0;
  double other_ns = 0;
  std::thread other([&] {
    PinTo(0);
    tid[1] = static_cast<uint32_t>(syscall(SYS_gettid));
    char c;
    while (!*go) sched_yield();
    const double begin = CpuNs(CLOCK_THREAD_CPUTIME_ID);
    for (int i = 0; i < rounds; ++i) {
      if (read(there[0], &c, 1) != 1 || write(back[1], &c, 1) != 1) return;
    }
    other_ns = CpuNs(CLOCK_THREAD_CPUTIME_ID) - begin;
  });
  double own_ns = 0;
  std::thread own([&] {
    PinTo(0);
    tid[0] = static_cast<uint32_t>(syscall(SYS_gettid));
    char c = 'x';
    while (!*go) sched_yield();
    const double begin = CpuNs(CLOCK_THREAD_CPUTIME_ID);
    for (int i = 0; i < rounds; ++i) {
      if (write(there[1], &c, 1) != 1 || read(back[0], &c, 1) != 1) return;
    }
    own_ns = CpuNs(CLOCK_THREAD_CPUTIME_ID) - begin;
  });
  own.join();
  other.join();
  for (int fd : {there[0], there[1], back[0], back[1]}) close(fd);
  return (own_ns + other_ns) / rounds;
}

// range(0): 1: threads are watched. Pairs of measurements, with and without probes in turn.
void Switch(benchmark::State& state) {
  constexpr int kRounds = 20000;
  std::vector<double> without, with, cost;
  for (auto _ : state) {
    std::atomic<uint32_t> tid[2] = {0, 0};
    std::atomic<bool> go{true};
    without.push_back(RoundNs(kRounds, tid, &go));
    ProbeSet::Options options;
    options.objects = {"host"};
    auto set = ProbeSet::Create(options);
    if (!set.ok() || (*set)->MapFd("host", "mc_events") < 0) {
      state.SkipWithError("needs root and BPF");
      return;
    }
    HostProbes host(set->get());
    go = state.range(0) == 0;
    tid[0] = tid[1] = 0;
    std::thread watcher([&] {
      if (state.range(0) == 0) return;
      while (tid[0] == 0 || tid[1] == 0) sched_yield();
      host.Watch(std::vector<HostWatch>{
          {.pid = static_cast<uint32_t>(getpid()), .start_time = 1, .tids = {tid[0], tid[1]}}});
      go = true;
    });
    with.push_back(RoundNs(kRounds, tid, &go));
    watcher.join();
    // What the kernel measures of the same programs.
    if ((*set)->StartCostMeasurement().ok()) {
      RoundNs(kRounds, tid, &go);
      (*set)->StopCostMeasurement();
      for (const ProbeRow& row : (*set)->Rows())
        if (row.name == "host.delay" && row.cost_ns) cost.push_back(*row.cost_ns);
    }
  }
  const auto median = [](std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v.empty() ? 0 : v[v.size() / 2];
  };
  state.counters["round_ns"] = median(without);
  state.counters["added_ns_per_switch"] = (median(with) - median(without)) / 2;
  state.counters["program_ns"] = median(cost);
}
BENCHMARK(Switch)->Arg(0)->Arg(1)->Iterations(9)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace mycroft

BENCHMARK_MAIN();
