// SPDX-License-Identifier: Apache-2.0
//
// CLOCK_MONOTONIC in nanoseconds, cheap enough for every callback.
//
// Where the kernel itself keeps time by the processor's time-stamp counter, a
// thread reads the counter (10 ns instead of 22 ns for clock_gettime through the
// vDSO) and extrapolates from its anchor, a pair (counter, clock) that it renews
// when it is older than kReanchorNs. The clock may be slewed by at most 500 ppm,
// so within 1 ms the extrapolation is off by less than 1 us: times of different
// processes of a host stay comparable. Elsewhere: clock_gettime.
//
// Thread safety: an Anchor belongs to one thread; everything else is shared.
#ifndef MYCROFT_CUPTI_BOARD_CLOCK_H_
#define MYCROFT_CUPTI_BOARD_CLOCK_H_

#include <atomic>
#include <cstdint>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace mycroft::board {

using ClockFn = uint64_t (*)();

constexpr uint64_t kReanchorNs = 1'000'000;  // anchors older than this are renewed

struct Anchor {
  uint64_t ticks = 0;
  uint64_t ns = 0;
  uint64_t ns_per_tick_32 = 0;  // fixed point, 32 fractional bits
};

struct ClockState {
  std::atomic<ClockFn> replaced{nullptr};  // by tests and replays
  bool use_ticks = false;
  uint64_t reanchor_ticks = 0;  // kReanchorNs in ticks
  Anchor base;                  // taken by Calibrate
};
extern ClockState g_clock;

// Decides whether the counter can be used and measures its rate, for 2 ms. Once, in init.
void CalibrateClock();

uint64_t SystemClock();             // clock_gettime(CLOCK_MONOTONIC)
uint64_t Reanchor(Anchor* anchor);  // renews the anchor and returns the time

// `anchor` null: a thread without state of its own.
inline uint64_t Now(Anchor* anchor) {
  if (ClockFn fn = g_clock.replaced.load(std::memory_order_relaxed)) return fn();
#if defined(__x86_64__)
  if (anchor != nullptr && g_clock.use_ticks) {
    const uint64_t delta = __rdtsc() - anchor->ticks;
    if (delta < g_clock.reanchor_ticks) {
      return anchor->ns + ((delta * anchor->ns_per_tick_32) >> 32);
    }
    return Reanchor(anchor);
  }
#endif
  return SystemClock();
}

}  // namespace mycroft::board

#endif  // MYCROFT_CUPTI_BOARD_CLOCK_H_
