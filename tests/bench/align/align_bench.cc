// SPDX-License-Identifier: Apache-2.0
//
// What a conversion between two clocks costs, against the addition that it replaces, and
// how many bounds a second a clock takes. The clock has seen ten windows of two-way
// traffic with long tails, so its hulls are those of a real one.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "userspace/align/causal_clock.h"

namespace mycroft {
namespace {

struct Bound {
  bool there = false;
  uint64_t remote = 0, local = 0;
};

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kStart = 1'000'000'000'000'000;
constexpr int64_t kOffset = 1'796'000'000'000'000'000;

std::vector<Bound> Bounds(size_t count) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> uniform(0, 1);
  const auto delay = [&] {
    return 5000 + std::min(2000 * (std::pow(1 - uniform(random), -1 / 1.2) - 1), 5e8);
  };
  const auto remote = [](double t) {
    return kStart + static_cast<uint64_t>(kOffset) + static_cast<uint64_t>(t * (1 + 37e-6));
  };
  std::vector<Bound> bounds(count);
  for (size_t i = 0; i < count; ++i) {
    const double t = static_cast<double>(i) * 1e6 * (1 + 0.5 * uniform(random));
    if (i % 2 == 0) {
      bounds[i] = {true, remote(t + delay()), kStart + static_cast<uint64_t>(t)};
    } else {
      bounds[i] = {false, remote(t), kStart + static_cast<uint64_t>(t + delay())};
    }
  }
  return bounds;
}

void Feed(const std::vector<Bound>& bounds, CausalClock* clock) {
  for (const Bound& bound : bounds) {
    if (bound.there) {
      clock->RemoteAfterLocal(bound.remote, bound.local);
    } else {
      clock->RemoteBeforeLocal(bound.remote, bound.local);
    }
  }
}

const CausalClock& TheClock() {
  static const CausalClock clock = [] {
    CausalClock made(10'000 * kMs);
    Feed(Bounds(100'000), &made);
    return made;
  }();
  return clock;
}

// Readings of the last seconds, in random order.
std::vector<uint64_t> Readings() {
  std::mt19937_64 random(2);
  std::vector<uint64_t> readings(4096);
  for (uint64_t& reading : readings) {
    reading = kStart + static_cast<uint64_t>(kOffset) + 95'000 * kMs + random() % (5000 * kMs);
  }
  return readings;
}

void PlainAddition(benchmark::State& state) {
  const std::vector<uint64_t> readings = Readings();
  int64_t offset = -kOffset;
  benchmark::DoNotOptimize(offset);
  size_t i = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(readings[i++ % 4096] + static_cast<uint64_t>(offset));
  }
}
BENCHMARK(PlainAddition);

void ConvertByMap(benchmark::State& state) {
  const std::vector<uint64_t> readings = Readings();
  const ClockMap map = TheClock().Map();
  size_t i = 0;
  for (auto _ : state) benchmark::DoNotOptimize(map.ToLocal(readings[i++ % 4096]));
}
BENCHMARK(ConvertByMap);

void ConvertAhead(benchmark::State& state) {  // past the last bound
  const ClockMap map = TheClock().Map();
  uint64_t reading = kStart + static_cast<uint64_t>(kOffset) + 200'000 * kMs;
  for (auto _ : state) benchmark::DoNotOptimize(map.ToLocal(reading += 1000));
}
BENCHMARK(ConvertAhead);

void ExactOffset(benchmark::State& state) {
  uint64_t t = kStart + 95'000 * kMs;
  for (auto _ : state) benchmark::DoNotOptimize(TheClock().At(t += 1000));
}
BENCHMARK(ExactOffset);

void MakeMap(benchmark::State& state) {  // after every bound: the worst case
  CausalClock clock = TheClock();
  for (auto _ : state) {
    clock.RemoteAfterLocal(UINT64_MAX, kStart + 100'000 * kMs);  // makes it anew, says nothing
    benchmark::DoNotOptimize(clock.Map());
  }
}
BENCHMARK(MakeMap);

void AddInOrder(benchmark::State& state) {
  const std::vector<Bound> bounds = Bounds(100'000);
  for (auto _ : state) {
    CausalClock clock(10'000 * kMs);
    Feed(bounds, &clock);
    benchmark::DoNotOptimize(clock.kept());
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(bounds.size()));
}
BENCHMARK(AddInOrder)->Unit(benchmark::kMillisecond);

// A third of the bounds come up to two seconds late.
void AddLate(benchmark::State& state) {
  std::vector<Bound> bounds = Bounds(100'000);
  std::mt19937_64 random(3);
  std::vector<std::pair<uint64_t, size_t>> order(bounds.size());
  for (size_t i = 0; i < bounds.size(); ++i) {
    order[i] = {bounds[i].local + (random() % 3 == 0 ? random() % (2000 * kMs) : 0), i};
  }
  std::sort(order.begin(), order.end());
  std::vector<Bound> late;
  for (const auto& [t, i] : order) late.push_back(bounds[i]);
  for (auto _ : state) {
    CausalClock clock(10'000 * kMs);
    Feed(late, &clock);
    benchmark::DoNotOptimize(clock.kept());
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(late.size()));
}
BENCHMARK(AddLate)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace mycroft
