// SPDX-License-Identifier: Apache-2.0
//
// What the verbs probes add to one post. This process posts through a mock provider (a
// few ns a call), without probes and with them, in turn; `added_ns` is the difference of
// the medians and `ratio` the quotient, measured in the same run.
#include <benchmark/benchmark.h>
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "userspace/source/probes/probe_set.h"
#include "userspace/source/probes/verbs_probes.h"

namespace mycroft {
namespace {

// Time of this thread on a CPU: traps and programs run on it too, other processes do not.
double Now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

struct Verbs {
  ibv_device device = {};
  ibv_pd pd = {};
  ibv_qp* qp = nullptr;
  ibv_sge sge[4] = {};
  ibv_send_wr wr[4] = {};

  Verbs() {
    void* library = dlopen(MYCROFT_MOCK "/libibverbs.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr || dlopen(MYCROFT_MOCK "/libmock-rdmav34.so", RTLD_NOW) == nullptr) {
      std::fprintf(stderr, "%s\n", dlerror());
      std::exit(1);
    }
    std::snprintf(device.name, sizeof(device.name), "mock0");
    auto open = reinterpret_cast<ibv_context* (*)(ibv_device*)>(dlsym(library, "ibv_open_device"));
    auto create =
        reinterpret_cast<ibv_qp* (*)(ibv_pd*, ibv_qp_init_attr*)>(dlsym(library, "ibv_create_qp"));
    pd.context = open(&device);
    ibv_qp_init_attr attr = {};
    attr.qp_context = reinterpret_cast<void*>(uintptr_t{1});
    attr.cap.max_send_wr = 16;
    qp = create(&pd, &attr);
    for (int i = 0; i < 4; ++i) {
      sge[i].length = 4096;
      wr[i].sg_list = sge;
      wr[i].opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    }
  }
  // ns per call over `calls` posts of `requests` with `entries` each.
  double Post(int calls, int requests, int entries) {
    for (int i = 0; i < requests; ++i) {
      wr[i].next = i + 1 < requests ? &wr[i + 1] : nullptr;
      wr[i].num_sge = entries;
    }
    ibv_send_wr* bad;
    const double begin = Now();
    for (int i = 0; i < calls; ++i) qp->context->ops.post_send(qp, wr, &bad);
    return (Now() - begin) / calls;
  }
};

Verbs& TheVerbs() {
  static auto* verbs = new Verbs;
  return *verbs;
}

double Median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

struct Probes {
  std::unique_ptr<ProbeSet> set;
  std::unique_ptr<VerbsProbes> verbs;
  bool Start(benchmark::State& state) {
    ProbeSet::Options options;
    options.objects = {"verbs"};
    auto created = ProbeSet::Create(options);
    if (!created.ok() || !(*created)->Complete().ok()) {
      state.SkipWithError("needs root and BPF");
      return false;
    }
    set = *std::move(created);
    verbs = std::make_unique<VerbsProbes>(set.get());
    return true;
  }
};

enum Kind { kWatched, kArmed, kOther };

void AddedCost(benchmark::State& state, Kind kind, int requests, int entries) {
  Verbs& v = TheVerbs();
  Probes probes;
  if (!probes.Start(state)) return;
  constexpr int kCalls = 2000, kRounds = 5, kBatches = 21;
  std::vector<double> without, with;
  pid_t other = -1;
  if (kind == kOther) {
    // Its probes are on the same file, but not in this process.
    other = fork();
    if (other == 0) {
      pause();
      _exit(0);
    }
  }
  const auto pid = static_cast<uint32_t>(kind == kOther ? other : getpid());
  for (auto _ : state) {
    for (int round = 0; round < kRounds; ++round) {
      probes.verbs->RemoveProcess(pid);
      probes.set->FlushDetached(true);
      v.Post(1000, requests, entries);
      for (int i = 0; i < kBatches; ++i) without.push_back(v.Post(kCalls, requests, entries));
      probes.verbs->AddProcess(pid);
      if (kind == kArmed) {
        const uint64_t target = pid;
        if (!probes.set->Arm("verbs.completions", {&target, 1}, UINT64_MAX).ok()) std::abort();
      }
      v.Post(1000, requests, entries);
      probes.set->ReadEvents(
          [&](const mc_event& h, std::span<const std::byte> r) { probes.verbs->OnEvent(h, r); });
      for (int i = 0; i < kBatches; ++i) with.push_back(v.Post(kCalls, requests, entries));
    }
  }
  state.counters["without_ns"] = Median(without);
  state.counters["with_ns"] = Median(with);
  state.counters["added_ns"] = Median(with) - Median(without);
  state.counters["ratio"] = Median(with) / Median(without);
  if (const auto trap = probes.set->CalibrateUprobe()) state.counters["empty_uprobe_ns"] = *trap;
  if (other > 0) {
    kill(other, SIGKILL);
    waitpid(other, nullptr, 0);
  }
}

BENCHMARK_CAPTURE(AddedCost, one_request, kWatched, 1, 1)->Iterations(1);
BENCHMARK_CAPTURE(AddedCost, four_requests, kWatched, 4, 1)->Iterations(1);
BENCHMARK_CAPTURE(AddedCost, four_entries, kWatched, 1, 4)->Iterations(1);
BENCHMARK_CAPTURE(AddedCost, one_request_armed, kArmed, 1, 1)->Iterations(1);
BENCHMARK_CAPTURE(AddedCost, other_process, kOther, 1, 1)->Iterations(1);

void Load(benchmark::State& state) {
  for (auto _ : state) {
    Probes probes;
    if (!probes.Start(state)) return;
  }
}
BENCHMARK(Load)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace mycroft

BENCHMARK_MAIN();
