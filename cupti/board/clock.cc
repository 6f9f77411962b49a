// SPDX-License-Identifier: Apache-2.0
#include "cupti/board/clock.h"

#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace mycroft::board {

ClockState g_clock;

uint64_t SystemClock() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(ts.tv_nsec);
}

#if defined(__x86_64__)
namespace {

// The kernel checks that the counters of all processors agree before it keeps
// time by them; we rely on that check.
bool KernelKeepsTimeByTicks() {
  unsigned a, b, c, d;
  if (__get_cpuid(0x80000007, &a, &b, &c, &d) == 0 || (d & (1u << 8)) == 0) return false;
  int fd = open("/sys/devices/system/clocksource/clocksource0/current_clocksource",
                O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char text[16] = {};
  ssize_t n = read(fd, text, sizeof(text) - 1);
  close(fd);
  return n >= 3 && strncmp(text, "tsc", 3) == 0 && (text[3] == '\n' || text[3] == '\0');
}

// One pair; the narrowest of three, so that a preemption in between does no harm.
void SamplePair(uint64_t* ticks, uint64_t* ns) {
  uint64_t best = UINT64_MAX;
  for (int i = 0; i < 3; ++i) {
    const uint64_t before = __rdtsc();
    const uint64_t now = SystemClock();
    const uint64_t width = __rdtsc() - before;
    if (width < best) {
      best = width;
      *ticks = before + width / 2;
      *ns = now;
    }
  }
}

uint64_t Rate(uint64_t ticks, uint64_t ns) {
  return static_cast<uint64_t>(static_cast<double>(ns) / static_cast<double>(ticks) * 4294967296.0);
}

}  // namespace

void CalibrateClock() {
  if (!KernelKeepsTimeByTicks()) return;
  uint64_t t0, n0, t1, n1;
  SamplePair(&t0, &n0);
  do {
    SamplePair(&t1, &n1);
  } while (n1 - n0 < 2'000'000);
  if (t1 <= t0) return;
  g_clock.base = {t0, n0, Rate(t1 - t0, n1 - n0)};
  g_clock.reanchor_ticks = kReanchorNs * (t1 - t0) / (n1 - n0);
  g_clock.use_ticks = true;
}

uint64_t Reanchor(Anchor* anchor) {
  SamplePair(&anchor->ticks, &anchor->ns);
  // The longer since the calibration, the better the rate.
  const Anchor& base = g_clock.base;
  anchor->ns_per_tick_32 = base.ns_per_tick_32;
  if (anchor->ticks > base.ticks && anchor->ns > base.ns + 2'000'000) {
    anchor->ns_per_tick_32 = Rate(anchor->ticks - base.ticks, anchor->ns - base.ns);
  }
  return anchor->ns;
}

#else

void CalibrateClock() {}
uint64_t Reanchor(Anchor* anchor) { return anchor->ns = SystemClock(); }

#endif

}  // namespace mycroft::board
