// SPDX-License-Identifier: Apache-2.0
//
// What the health of eight GPUs costs, NVML played by the stand-in: time of the CPU for
// one poll (one a second in an agent, so "percent of a core" is that of an agent), and
// bytes that a recording takes per GPU and second. The stand-in's own time is in it; a
// driver's is not: its calls are system calls.
#include <benchmark/benchmark.h>
#include <time.h>

#include <map>
#include <memory>
#include <set>
#include <string>

#include "userspace/base/clock.h"
#include "userspace/decode/gpu_health.h"
#include "userspace/source/testing/nvml_script.h"
#include "userspace/store/snapshot_codec.h"

namespace mycroft {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr int kGpus = 8, kLinks = 18;

std::string Address(int gpu) {
  return "0000:" + std::to_string(1 + gpu) + "b:00.0";
}

void Fill(NvmlScript& script, uint64_t noise) {
  for (int gpu = 0; gpu < kGpus; ++gpu) {
    if (noise == 0) {
      script.AddGpu(static_cast<uint32_t>(gpu), "0000" + Address(gpu));
      for (int link = 0; link < kLinks; ++link) {
        script.Set(static_cast<uint32_t>(gpu), "link " + std::to_string(link), "1 0 0 0");
      }
    }
    // A training job: power swings widely, clocks and heat a little.
    const uint64_t x = (noise * 2654435761u + static_cast<uint64_t>(gpu) * 40503u) >> 7;
    script.Set(static_cast<uint32_t>(gpu), "power", 450'000 + x % 250'000);
    script.Set(static_cast<uint32_t>(gpu), "clock_sm", 1755 + x % 225);
    script.Set(static_cast<uint32_t>(gpu), "temperature", 58 + x % 7);
  }
  script.Write();
}

void BM_HealthPollOfEightGpus(benchmark::State& state) {
  NvmlScript script;
  Fill(script, 0);
  GpuHealthOptions options;
  options.nvml_library = MYCROFT_FAKE_NVML_LIBRARY;
  options.own_thread = state.range(0) != 0;
  GpuHealth health(options, "/proc");
  std::set<std::string> wanted;
  for (int gpu = 0; gpu < kGpus; ++gpu) wanted.insert(Address(gpu));
  uint64_t now = 1000 * kSecond;
  health.Poll(now, wanted, false);
  const uint64_t begin = ReadClockNs(CLOCK_PROCESS_CPUTIME_ID);
  uint64_t polls = 0;
  for (auto _ : state) {
    now += kSecond;  // every fifth poll reads what moves slowly, too
    benchmark::DoNotOptimize(health.Poll(now, wanted, false));
    ++polls;
  }
  const double ns = static_cast<double>(ReadClockNs(CLOCK_PROCESS_CPUTIME_ID) - begin) /
                    static_cast<double>(polls);
  state.counters["cpu_us_per_poll"] = ns / 1e3;
  state.counters["percent_of_a_core_at_1_hz"] = ns / 1e9 * 100;
}
BENCHMARK(BM_HealthPollOfEightGpus)->Arg(0)->Arg(1)->UseRealTime();

void BM_RecordedBytesOfEightGpus(benchmark::State& state) {
  NvmlScript script;
  Fill(script, 0);
  GpuHealthOptions options;
  options.nvml_library = MYCROFT_FAKE_NVML_LIBRARY;
  options.own_thread = false;
  GpuHealth health(options, "/proc");
  std::set<std::string> wanted;
  for (int gpu = 0; gpu < kGpus; ++gpu) wanted.insert(Address(gpu));
  SnapshotEncoder encoder;
  std::map<std::string, GpuSample> last;
  uint64_t now = 1000 * kSecond, bytes = 0, seconds = 0;
  for (auto _ : state) {
    now += kSecond;
    Fill(script, ++seconds);
    Snapshot snapshot, empty;
    snapshot.host = empty.host = "node";
    snapshot.t_ns = empty.t_ns = now;
    snapshot.interval_ns = empty.interval_ns = kSecond;
    HardwareSample& sample = snapshot.hardware.emplace();
    for (GpuSample& gpu : health.Poll(now, wanted, false).gpus) {
      if (last[gpu.address] == gpu) continue;
      last[gpu.address] = gpu;
      sample.gpus.push_back(std::move(gpu));
    }
    bytes += encoder.Encode({snapshot}, false)->size();
  }
  state.counters["bytes_per_gpu_and_s"] =
      static_cast<double>(bytes) / static_cast<double>(seconds) / kGpus;
}
BENCHMARK(BM_RecordedBytesOfEightGpus)->Iterations(600);

}  // namespace
}  // namespace mycroft

BENCHMARK_MAIN();
