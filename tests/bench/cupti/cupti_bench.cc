// SPDX-License-Identifier: Apache-2.0
//
// What libmycroft-cupti.so costs, beside a stand-in libcupti.
//
//   Launch/streams/name   a kernel launch: its entry and its exit callback, against an
//                         empty callback of another subscriber, one after the other.
//                         Counters in ns, medians of single calls: enter_ns, exit_ns,
//                         empty_ns (of one callback), over_empty_ns (both callbacks,
//                         less two empty ones), p99_over_empty_ns. `name`: characters of
//                         the kernel's name.
//   HandOff               activity records from CUPTI's buffers to the board, by our own
//                         thread: items_per_second is records per second of CPU time of
//                         that thread (schedstat), its sleeps and polls between included
//                         as far as they cost CPU; wall_per_second the same by the clock,
//                         from the first buffer handed over until the last record is in
//                         the board. hand_ns: what handing over one buffer costs CUPTI.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <x86intrin.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "cupti/agent/testing/fake_gpu.h"

namespace mycroft::agent {
namespace {

double NsPerTick() {
  static const double value = [] {
    timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    const uint64_t t0 = __rdtsc();
    do {
      clock_gettime(CLOCK_MONOTONIC, &b);
    } while ((b.tv_sec - a.tv_sec) * 1000000000L + (b.tv_nsec - a.tv_nsec) < 50000000L);
    return static_cast<double>((b.tv_sec - a.tv_sec) * 1000000000L + (b.tv_nsec - a.tv_nsec)) /
           static_cast<double>(__rdtsc() - t0);
  }();
  return value;
}

inline uint64_t Ticks() {
  _mm_lfence();
  const uint64_t t = __rdtsc();
  _mm_lfence();
  return t;
}

uint64_t NowNs() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(ts.tv_nsec);
}

void CUPTIAPI Empty(void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {}

// Another stand-in, whose subscriber does nothing.
StandIn* EmptySubscriber() {
  static StandIn* made = [] {
    const std::string path = CopyLibrary(MYCROFT_STAND_IN_PATH);
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    unlink(path.c_str());
    if (handle == nullptr) {
      fprintf(stderr, "%s\n", dlerror());
      exit(1);
    }
    CUpti_SubscriberHandle subscriber;
    reinterpret_cast<decltype(&cuptiSubscribe)>(dlsym(handle, "cuptiSubscribe"))(&subscriber, Empty,
                                                                                 nullptr);
    reinterpret_cast<decltype(&cuptiEnableCallback)>(dlsym(handle, "cuptiEnableCallback"))(
        1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel);
    return reinterpret_cast<StandInFn>(dlsym(handle, "mycroftStandIn"))();
  }();
  return made;
}

class Gpu : public FakeGpu {
 public:
  Gpu() : FakeGpu(MYCROFT_CUPTI_PATH, MYCROFT_STAND_IN_PATH) {
    if (!Init()) {
      fprintf(stderr, "%s\n", dlerror());
      exit(1);
    }
    const int fd = open(board_path().c_str(), O_RDWR);
    void* at = mmap(nullptr, sizeof(mc_gpu_header), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    header_ = static_cast<mc_gpu_header*>(at);
    close(fd);
  }
  template <class T>
  T Load(T mc_gpu_header::*field) const {
    return __atomic_load_n(&(header_->*field), __ATOMIC_ACQUIRE);
  }
  mc_gpu_header* header() { return header_; }

 private:
  mc_gpu_header* header_ = nullptr;
};

// Thread ids, ascending.
std::vector<std::string> TasksNamed(const std::string& name) {
  std::vector<std::string> found;
  DIR* dir = opendir("/proc/self/task");
  while (dirent* e = readdir(dir)) {
    std::ifstream in(std::string("/proc/self/task/") + e->d_name + "/comm");
    std::string comm;
    if (std::getline(in, comm) && comm == name) found.push_back(e->d_name);
  }
  closedir(dir);
  std::sort(found.begin(), found.end(),
            [](const std::string& a, const std::string& b) { return std::stoi(a) < std::stoi(b); });
  return found;
}

double Percentile(std::vector<uint64_t>& ticks, double p) {
  const auto at = static_cast<size_t>(static_cast<double>(ticks.size() - 1) * p);
  std::nth_element(ticks.begin(), ticks.begin() + static_cast<long>(at), ticks.end());
  return static_cast<double>(ticks[at]) * NsPerTick();
}

void BM_Launch(benchmark::State& state) {
  static Gpu gpu;
  StandIn* empty = EmptySubscriber();
  const auto streams = static_cast<uint32_t>(state.range(0));
  std::vector<std::string> names;
  for (int i = 0; i < 16; ++i) {
    std::string name = "_Z9kernel_" + std::to_string(i);
    name.resize(static_cast<size_t>(state.range(1)), 'x');
    names.push_back(name);
  }
  cuLaunchKernel_params p = {};
  CUpti_CallbackData d = {};
  uint64_t slot = 0;
  int result = 0;
  d.functionParams = &p;
  d.context = FakeGpu::Context(1);
  d.contextUid = 1;
  d.correlationData = &slot;
  d.functionReturnValue = &result;
  static uint32_t correlation = 1;
  std::vector<uint64_t> enter, exit, none, both, timer;
  uint32_t i = 0;
  for (auto _ : state) {
    ++i;
    p.hStream = reinterpret_cast<CUstream>(FakeGpu::Stream(1 + i % streams));
    d.symbolName = names[i % names.size()].c_str();
    d.correlationId = ++correlation;
    d.callbackSite = CUPTI_API_ENTER;
    const uint64_t t0 = Ticks();
    const uint64_t t1 = Ticks();
    empty->callback(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, &d);
    const uint64_t t2 = Ticks();
    gpu.cupti().callback(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, &d);
    const uint64_t t3 = Ticks();
    d.callbackSite = CUPTI_API_EXIT;
    const uint64_t t4 = Ticks();
    gpu.cupti().callback(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, &d);
    const uint64_t t5 = Ticks();
    const uint64_t one = t2 - t1;
    timer.push_back(t1 - t0);
    none.push_back(one);
    enter.push_back(t3 - t2);
    exit.push_back(t5 - t4);
    const uint64_t ours = (t3 - t2) + (t5 - t4);
    both.push_back(ours > 2 * one ? ours - 2 * one : 0);
  }
  const double overhead = Percentile(timer, 0.5);
  state.counters["empty_ns"] = Percentile(none, 0.5) - overhead;
  state.counters["enter_ns"] = Percentile(enter, 0.5) - overhead;
  state.counters["exit_ns"] = Percentile(exit, 0.5) - overhead;
  state.counters["over_empty_ns"] = Percentile(both, 0.5);
  state.counters["p99_over_empty_ns"] = Percentile(both, 0.99);
}
BENCHMARK(BM_Launch)->Name("Launch")->Args({1, 70})->Args({16, 70})->Args({16, 300});

// CPU time so far of the library's own thread, the last one started.
uint64_t HelperCpuNs() {
  static const std::string path = [] {
    std::string found;
    for (const std::string& tid : TasksNamed("mycroft-cupti")) {
      found = "/proc/self/task/" + tid + "/schedstat";
    }
    return found;
  }();
  std::ifstream in(path);
  uint64_t ns = 0;
  in >> ns;
  return ns;
}

void BM_HandOff(benchmark::State& state) {
  static Gpu gpu;
  __atomic_store_n(&gpu.header()->requested_until_ns, NowNs() + 300'000'000'000u, __ATOMIC_RELAXED);
  __atomic_store_n(&gpu.header()->requested_level, uint32_t{MC_GPU_LEVEL_ACTIVITY},
                   __ATOMIC_RELEASE);
  while (gpu.Load(&mc_gpu_header::state) != MC_GPU_ARMED) usleep(1000);
  constexpr uint32_t kStreams = 8, kLaunches = 1000;
  constexpr size_t kRecord = sizeof(CUpti_ActivityKernel10);
  std::vector<CUpti_ActivityKernel10> records(kStreams * kLaunches);
  int64_t total = 0;
  uint64_t wall = 0;
  const uint64_t matched = gpu.Load(&mc_gpu_header::matched_exact);
  std::vector<uint64_t> hand;
  for (auto _ : state) {
    // The launches that the records will be of.
    for (uint32_t i = 0; i < records.size(); ++i) {
      const uint32_t stream = 1 + i % kStreams;
      CUpti_ActivityKernel10& r = records[i];
      r.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
      r.correlationId = gpu.Launch(FakeGpu::Stream(stream), "_Z4gemmPfS_S_");
      r.contextId = 1;
      r.streamId = stream;
      r.start = NowNs() + 1000;
      r.end = r.start + 10'000 + i;
      r.name = "_Z4gemmPfS_S_";
    }
    const uint64_t before = gpu.Load(&mc_gpu_header::records);
    const uint64_t cpu = HelperCpuNs();
    const uint64_t begin = NowNs();
    for (size_t at = 0; at < records.size();) {
      size_t size = 0;
      uint8_t* buffer = gpu.cupti().request(&size);
      if (buffer == nullptr) continue;
      const size_t n = std::min(size / kRecord, records.size() - at);
      memcpy(buffer, &records[at], n * kRecord);
      const uint64_t t0 = Ticks();
      gpu.cupti().complete_raw(FakeGpu::Context(1), 0, buffer, size, n * kRecord);
      hand.push_back(Ticks() - t0);
      at += n;
    }
    while (gpu.Load(&mc_gpu_header::records) < before + records.size()) usleep(500);
    wall += NowNs() - begin;
    usleep(1000);  // it is asleep again, so that its time is counted
    state.SetIterationTime(static_cast<double>(HelperCpuNs() - cpu) * 1e-9);
    total += static_cast<int64_t>(records.size());
  }
  state.SetItemsProcessed(total);
  state.counters["matched"] =
      static_cast<double>(gpu.Load(&mc_gpu_header::matched_exact) - matched) /
      static_cast<double>(total);
  state.counters["wall_per_second"] = static_cast<double>(total) * 1e9 / static_cast<double>(wall);
  state.counters["hand_ns"] = Percentile(hand, 0.5);
}
BENCHMARK(BM_HandOff)->Name("HandOff")->UseManualTime();

}  // namespace
}  // namespace mycroft::agent

BENCHMARK_MAIN();
