// SPDX-License-Identifier: Apache-2.0
#include "userspace/align/causal_clock.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace mycroft {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kSecond = 1000 * kMs;

TEST(CausalClock, SaysWhyItCannotConvert) {
  CausalClock clock;
  EXPECT_EQ(clock.At(0).status().code(), absl::StatusCode::kFailedPrecondition);
  clock.RemoteAfterLocal(1000, 500);
  auto one_side = clock.At(500);
  ASSERT_FALSE(one_side.ok());
  EXPECT_NE(std::string(one_side.status().message()).find("one side"), std::string::npos);
  clock.RemoteBeforeLocal(1000, 700);
  auto both = clock.At(600);
  ASSERT_TRUE(both.ok());
  // offset <= 500 and offset >= 300: the middle is 400.
  EXPECT_EQ(both->offset_ns, 400);
  EXPECT_NEAR(static_cast<double>(both->error_ns), 100, 4);
}

TEST(CausalClock, ConvertsBetweenFarApartClocks) {
  CausalClock clock;
  const uint64_t base = 1'796'000'000'000'000'000ull;  // a real-time clock
  for (uint64_t i = 0; i < 100; ++i) {
    uint64_t local = 5 * kSecond + i * kMs;
    clock.RemoteAfterLocal(base + local + 10'000, local);
    clock.RemoteBeforeLocal(base + local, local + 20'000);
  }
  auto back = clock.ToLocal(base + 5 * kSecond + 50 * kMs);
  ASSERT_TRUE(back.ok());
  EXPECT_NEAR(static_cast<double>(back->ns), 5.0 * kSecond + 50.0 * kMs, 15'000.0);
  EXPECT_LE(back->error_ns, 20'000u);
}

// ---- the promise: the error bound is never below the true error -------------------------

// Two clocks over true time. The readings are rounded down, as those of real clocks.
struct World {
  // From `at` on, the offset jumps by this (the remote clock was set, or started anew).
  struct Step {
    long double at = 0, by = 0;
  };
  long double offset = 0, drift = 0;
  uint64_t start = 0;
  std::vector<Step> steps;
  long double wander_ns = 0, wander_period = 1;  // a slow sine around the line

  uint64_t Local(long double t) const { return start + static_cast<uint64_t>(t); }
  long double Remote(long double t) const {
    long double r = static_cast<long double>(start) + t + offset + drift * t;
    for (const Step& step : steps) r += t >= step.at ? step.by : 0;
    return r + wander_ns * std::sin(t / wander_period);
  }
  uint64_t Reading(long double t) const { return static_cast<uint64_t>(Remote(t)); }
};

struct Traffic {
  double base_ns = 5000;    // of every delay
  double tail_ns = 2000;    // scale of the Pareto tail
  double tail_shape = 1.2;  // no variance, hardly a mean
  double asymmetry = 1;     // of the way there
  double there = 0.8, back = 0.8;  // how often the pair is known
  double gap_ns = 20e6;
  double late = 0;  // share of the bounds that arrive after others
};

class Property : public testing::TestWithParam<int> {
 protected:
  Property() : random_(GetParam()) {}
  double Uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  long double Delay(const Traffic& traffic) {
    const double pareto = std::pow(1 - Uniform(), -1 / traffic.tail_shape) - 1;
    return traffic.base_ns + std::min(traffic.tail_ns * pareto, 5e9);
  }
  World MakeWorld() {
    World world;
    world.drift = (Uniform() * 2 - 1) * 100e-6;
    world.start = static_cast<uint64_t>(1e15 + Uniform() * 1e18);
    world.offset = (Uniform() * 2 - 1) * 0.9e15L;
    return world;
  }
  // Feeds bounds in (from, to) of true time.
  void Feed(const World& world, const Traffic& traffic, long double from, long double to,
            CausalClock* clock) {
    struct Bound {
      long double t;  // when it is known
      bool there;
      uint64_t remote, local;
    };
    std::vector<Bound> bounds;
    for (long double t = from; t < to; t += traffic.gap_ns * (0.5 + Uniform())) {
      if (Uniform() < traffic.there) {
        const long double arrival = t + Delay(traffic) * traffic.asymmetry;
        bounds.push_back({t, true, world.Reading(arrival), world.Local(t)});
      }
      if (Uniform() < traffic.back) {
        const long double arrival = t + Delay(traffic);
        bounds.push_back({arrival, false, world.Reading(t), world.Local(arrival)});
      }
    }
    for (Bound& bound : bounds) {
      if (Uniform() < traffic.late) bound.t += Uniform() * 2e9;
    }
    std::stable_sort(bounds.begin(), bounds.end(),
                     [](const Bound& a, const Bound& b) { return a.t < b.t; });
    for (const Bound& bound : bounds) {
      if (bound.there) {
        clock->RemoteAfterLocal(bound.remote, bound.local);
      } else {
        clock->RemoteBeforeLocal(bound.remote, bound.local);
      }
    }
  }
  // Checks both directions at a true time; the error bound, or nothing when refused.
  std::optional<uint64_t> Check(const World& world, const CausalClock& clock, long double t) {
    const uint64_t local = world.Local(t);
    const auto there = clock.At(local);
    std::optional<uint64_t> bound;
    if (there.ok()) {
      const long double at = static_cast<long double>(local - world.start);
      const long double truth = world.Remote(at) - static_cast<long double>(local);
      EXPECT_LE(std::abs(truth - static_cast<long double>(there->offset_ns)),
                static_cast<long double>(there->error_ns))
          << "seed " << GetParam() << " at " << static_cast<double>(t);
      bound = there->error_ns;
    }
    const auto back = clock.ToLocal(world.Reading(t));
    if (back.ok()) {
      const long double found =
          static_cast<long double>(static_cast<int64_t>(back->ns - world.start));
      // The reading is up to 1 ns old, and so is the time found.
      EXPECT_LE(std::abs(found - t), static_cast<long double>(back->error_ns) + 1)
          << "seed " << GetParam() << " at " << static_cast<double>(t);
      if (bound) bound = std::max(*bound, back->error_ns);
    } else {
      bound.reset();
    }
    return bound;
  }
  std::mt19937_64 random_;
};

TEST_P(Property, ErrorBoundHoldsAndIsTight) {
  const World world = MakeWorld();
  Traffic traffic;
  traffic.asymmetry = 1 + 9 * Uniform();
  traffic.late = GetParam() % 3 == 0 ? 0.3 : 0;
  CausalClock clock(30 * kSecond);
  // The band cannot be narrower than the shortest delays of both ways.
  const double best = traffic.base_ns * (1 + traffic.asymmetry) / 2;
  std::vector<double> ratios;
  for (int i = 0; i < 100; ++i) {
    Feed(world, traffic, i * 1e9L, (i + 1) * 1e9L, &clock);
    for (int k = 0; k < 10; ++k) {
      // Also ahead of the data.
      const auto error = Check(world, clock, (i + 1) * 1e9L + (Uniform() * 3 - 1) * 1e9L);
      ASSERT_TRUE(error.has_value());
      if (i >= 5) ratios.push_back(static_cast<double>(*error) / best);
    }
  }
  for (int k = 0; k < 300; ++k) ASSERT_TRUE(Check(world, clock, Uniform() * 100e9L));
  EXPECT_EQ(clock.epochs(), 1u);
  EXPECT_EQ(clock.rejected(), 0u);
  EXPECT_LT(clock.kept(), 800u);
  std::sort(ratios.begin(), ratios.end());
  EXPECT_LT(ratios[ratios.size() / 2], 1.3) << "seed " << GetParam();
  EXPECT_LT(ratios[ratios.size() * 99 / 100], 2.5) << "seed " << GetParam();
  const auto drift = clock.drift();
  ASSERT_TRUE(drift.ok());
  EXPECT_LE(std::abs(drift->ppm - static_cast<double>(world.drift) * 1e6),
            drift->error_ppm + 1e-6);
  EXPECT_LT(drift->error_ppm, 5);
}

TEST_P(Property, SparseBoundsAreWideButTrue) {
  const World world = MakeWorld();
  Traffic traffic;
  traffic.gap_ns = 40e9;  // most windows are empty
  traffic.there = traffic.back = 0.5;
  CausalClock clock(30 * kSecond);
  int converted = 0;
  for (int i = 0; i < 40; ++i) {
    Feed(world, traffic, i * 100e9L, (i + 1) * 100e9L, &clock);
    for (int k = 0; k < 5; ++k) {
      converted += Check(world, clock, (i + Uniform()) * 100e9L).has_value() ? 1 : 0;
    }
  }
  EXPECT_EQ(clock.epochs(), 1u);
  EXPECT_GT(converted, 150);
}

TEST_P(Property, OneDirectionNeverConverts) {
  const World world = MakeWorld();
  Traffic traffic;
  (GetParam() % 2 == 0 ? traffic.there : traffic.back) = 0;
  CausalClock clock(30 * kSecond);
  Feed(world, traffic, 0, 100e9L, &clock);
  for (int k = 0; k < 20; ++k) {
    EXPECT_FALSE(clock.At(world.Local(Uniform() * 120e9L)).ok());
    EXPECT_FALSE(clock.ToLocal(world.Reading(Uniform() * 120e9L)).ok());
  }
}

TEST_P(Property, StepsAndRebootsOfTheRemoteClock) {
  World world = MakeWorld();
  Traffic traffic;
  traffic.late = GetParam() % 2 == 0 ? 0.2 : 0;
  long double t = 0;
  CausalClock clock(60 * kSecond);
  for (int i = 0; i < 3; ++i) {
    const long double next = t + 10e9L + Uniform() * 20e9L;
    Feed(world, traffic, t, next, &clock);
    t = next;
    World::Step step{t, (Uniform() < 0.5 ? -1 : 1) * (200'000 + Uniform() * 1e9L)};
    if (i == 1) step.by = 5e9L - world.Remote(t);  // a reboot: it starts near zero
    world.steps.push_back(step);
  }
  Feed(world, traffic, t, t + 30e9L, &clock);
  EXPECT_EQ(clock.epochs(), 4u) << "seed " << GetParam();
  int refused = 0;
  for (int k = 0; k < 1000; ++k) {
    const long double at = Uniform() * (t + 30e9L);
    const auto there = clock.At(world.Local(at));
    if (there.ok()) {
      const uint64_t local = world.Local(at);
      const long double truth = world.Remote(static_cast<long double>(local - world.start)) -
                                static_cast<long double>(local);
      ASSERT_LE(std::abs(truth - static_cast<long double>(there->offset_ns)),
                static_cast<long double>(there->error_ns))
          << "seed " << GetParam() << " at " << static_cast<double>(at);
    } else {
      EXPECT_EQ(there.status().code(), absl::StatusCode::kOutOfRange) << there.status();
      ++refused;
    }
    // A reading that occurred twice says nothing of the first time; skip those.
    const uint64_t reading = world.Reading(at);
    bool twice = false;
    long double previous = -1;
    for (size_t s = 0; s <= world.steps.size(); ++s) {
      const long double end = s < world.steps.size() ? world.steps[s].at : t + 30e9L;
      const long double from = s == 0 ? 0 : world.steps[s - 1].at;
      const bool inside = world.Remote(from) - 5e9L <= reading &&
                          reading <= world.Remote(end - 1e-3L) + 5e9L;
      twice |= inside && previous >= 0;
      if (inside) previous = from;
    }
    const auto back = clock.ToLocal(reading);
    if (!twice && back.ok()) {
      ASSERT_LE(std::abs(static_cast<long double>(static_cast<int64_t>(back->ns - world.start)) - at),
                static_cast<long double>(back->error_ns) + 1)
          << "seed " << GetParam() << " at " << static_cast<double>(at);
    }
  }
  EXPECT_LT(refused, 150) << "seed " << GetParam();
}

TEST_P(Property, WanderWithinTheAllowance) {
  World world = MakeWorld();
  world.wander_ns = 2000;
  world.wander_period = 1e9L * (1 + 20 * Uniform());
  ClockOptions options;
  options.window_ns = 30 * kSecond;
  options.wander_ns = 2001;
  CausalClock clock(options);
  Traffic traffic;
  for (int i = 0; i < 60; ++i) {
    Feed(world, traffic, i * 1e9L, (i + 1) * 1e9L, &clock);
    for (int k = 0; k < 5; ++k) {
      ASSERT_TRUE(Check(world, clock, (i + 1) * 1e9L + (Uniform() - 0.5) * 1e9L));
    }
  }
  EXPECT_EQ(clock.epochs(), 1u);
}

TEST_P(Property, DirectSamplesMakeItTighter) {
  const World world = MakeWorld();
  Traffic traffic;
  CausalClock without(30 * kSecond), with(30 * kSecond);
  const auto state = random_;
  Feed(world, traffic, 0, 20e9L, &without);
  random_ = state;
  Feed(world, traffic, 0, 20e9L, &with);
  for (int i = 0; i < 20; ++i) {
    const long double t = i * 1e9L;
    const double error = 300 * Uniform();
    const auto off = static_cast<int64_t>((Uniform() * 2 - 1) * error);
    with.Sample(world.Reading(t) + static_cast<uint64_t>(off), world.Local(t), 300);
  }
  for (int k = 0; k < 50; ++k) {
    const long double t = Uniform() * 20e9L;
    const auto wide = Check(world, without, t), tight = Check(world, with, t);
    ASSERT_TRUE(wide && tight);
    EXPECT_LT(*tight, 320u);
    EXPECT_LT(*tight, *wide / 5);
  }
}

// What the table adds to the band: nothing but where the band bends.
TEST_P(Property, TheTableAgreesWithTheBand) {
  const World world = MakeWorld();
  CausalClock clock(30 * kSecond);
  Feed(world, Traffic{}, 0, 70e9L, &clock);
  const ClockMap map = clock.Map();  // a copy stays as it is
  double sum = 0;
  for (int k = 0; k < 200; ++k) {
    const long double t = Uniform() * 80e9L;
    const auto direct = clock.At(world.Local(t));
    const auto table = map.ToLocal(world.Reading(t));
    ASSERT_TRUE(direct.ok() && table.has_value());
    const double ratio =
        static_cast<double>(table->error_ns) / static_cast<double>(direct->error_ns);
    EXPECT_GT(ratio, 0.97);
    EXPECT_LT(ratio, 2);
    sum += ratio / 200;
  }
  EXPECT_LT(sum, 1.1);
  clock.RemoteAfterLocal(1, 1u << 30);
  EXPECT_TRUE(map.ToLocal(world.Reading(1e9L)).has_value());
}

INSTANTIATE_TEST_SUITE_P(Seeds, Property, testing::Range(1, 61));

// ---- steps, late bounds, reasons -------------------------------------------------------

TEST(CausalClock, AStepIsANewEpochNotASmear) {
  CausalClock clock;
  auto feed = [&](uint64_t from, int64_t offset) {
    for (uint64_t i = 0; i < 50; ++i) {
      uint64_t local = from + i * 10 * kMs;
      clock.RemoteAfterLocal(local + offset + 5000, local);
      clock.RemoteBeforeLocal(local + offset, local + 5000);
    }
  };
  feed(kSecond, 1'000'000);
  EXPECT_EQ(clock.epochs(), 1u);
  feed(3 * kSecond, 900'000'000'000);  // rebooted or set
  EXPECT_EQ(clock.epochs(), 2u);
  auto after = clock.At(3 * kSecond + 100 * kMs);
  ASSERT_TRUE(after.ok());
  EXPECT_NEAR(static_cast<double>(after->offset_ns), 900e9, 6000);
  EXPECT_LE(after->error_ns, 10'000u);
}

void FeedSteady(uint64_t from, uint64_t count, int64_t offset, CausalClock* clock) {
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t local = from + i * 10 * kMs;
    clock->RemoteAfterLocal(local + static_cast<uint64_t>(offset) + 5000, local);
    clock->RemoteBeforeLocal(local + static_cast<uint64_t>(offset), local + 5000);
  }
}

TEST(CausalClock, TimesBeforeAStepKeepTheirBandAndTheStepItselfIsRefused) {
  CausalClock clock;
  FeedSteady(kSecond, 50, 1'000'000, &clock);
  FeedSteady(3 * kSecond, 50, 900'000'000'000, &clock);
  const auto before = clock.At(kSecond + 200 * kMs);
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_NEAR(static_cast<double>(before->offset_ns), 1e6, 6000);
  const auto between = clock.At(2 * kSecond);
  ASSERT_EQ(between.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_NE(std::string(between.status().message()).find("was set"), std::string::npos);
  // By readings of the remote clock, the same.
  EXPECT_NEAR(static_cast<double>(clock.ToLocal(kSecond + 201 * kMs)->ns), 1.2e9, 6000);
  EXPECT_FALSE(clock.ToLocal(2 * kSecond).ok());
  EXPECT_NEAR(static_cast<double>(clock.ToLocal(903'100'000'000)->ns), 3.1e9, 6000);
  // A late bound from before the step narrows the old band and leaves the new one alone.
  clock.RemoteBeforeLocal(kSecond + 100 * kMs + 1'003'000, kSecond + 100 * kMs);
  EXPECT_EQ(clock.epochs(), 2u);
  EXPECT_GT(clock.At(kSecond + 100 * kMs)->offset_ns, 1'003'000);
  // One that may belong to either side is of no use.
  clock.RemoteBeforeLocal(999 * kSecond, 2 * kSecond);
  EXPECT_EQ(clock.epochs(), 2u);
  EXPECT_EQ(clock.rejected(), 1u);
}

TEST(CausalClock, AHostThatStartsAnewIsAnotherEpoch) {
  // Found from the times alone ...
  CausalClock clock;
  FeedSteady(5000 * kSecond, 100, 77'000'000, &clock);
  FeedSteady(20 * kSecond, 100, 5'000'077'000'000, &clock);
  EXPECT_EQ(clock.epochs(), 2u);
  EXPECT_NEAR(static_cast<double>(clock.At(20 * kSecond + 500 * kMs)->offset_ns), 5'000'077e6, 6e3);
  EXPECT_NEAR(static_cast<double>(clock.At(5000 * kSecond + 500 * kMs)->offset_ns), 77e6, 6e3);
  // ... and told by who knows the boot, even when no bound contradicts.
  CausalClock told;
  FeedSteady(kSecond, 100, 0, &told);
  told.Restart();
  told.RemoteAfterLocal(4 * kSecond, 3 * kSecond);
  EXPECT_EQ(told.epochs(), 2u);
  EXPECT_FALSE(told.At(3 * kSecond).ok());
  EXPECT_TRUE(told.At(kSecond).ok());
}

TEST(CausalClock, ASingleFalseBoundDoesNotCostTheBand) {
  CausalClock clock;
  FeedSteady(kSecond, 50, 1'000'000, &clock);
  clock.RemoteAfterLocal(5, kSecond + 600 * kMs);
  EXPECT_EQ(clock.epochs(), 2u);
  FeedSteady(2 * kSecond, 1, 1'000'000, &clock);
  EXPECT_EQ(clock.epochs(), 1u);
  EXPECT_GE(clock.rejected(), 1u);
  EXPECT_NEAR(static_cast<double>(clock.At(2 * kSecond)->offset_ns), 1e6, 6000);
}

TEST(CausalClock, EpochsAreBounded) {
  ClockOptions options;
  options.most_segments = 4;
  CausalClock clock(options);
  for (int64_t i = 0; i < 20; ++i) {
    FeedSteady((10 + 2 * static_cast<uint64_t>(i)) * kSecond, 50, i % 2 == 0 ? 0 : 1'000'000'000,
               &clock);
  }
  EXPECT_EQ(clock.epochs(), 20u);
  EXPECT_LT(clock.kept(), 500u);
  const auto old = clock.At(10 * kSecond + kMs);
  ASSERT_EQ(old.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_NE(std::string(old.status().message()).find("forgotten"), std::string::npos);
  EXPECT_TRUE(clock.At(48 * kSecond + kMs).ok());
}

TEST(CausalClock, OldTimesAreConvertedByWhatWasKnownThen) {
  CausalClock clock(10 * kSecond);
  for (uint64_t i = 0; i < 60; ++i) FeedSteady((i + 1) * kSecond, 100, 4000, &clock);
  EXPECT_EQ(clock.epochs(), 1u);
  for (uint64_t t = kSecond; t < 61 * kSecond; t += 100 * kMs) {
    const auto at = clock.At(t);
    ASSERT_TRUE(at.ok()) << at.status() << t;
    EXPECT_LE(at->error_ns, 6000u);
    ASSERT_TRUE(clock.ToLocal(t + 4000).ok()) << t;
  }
}

TEST(CausalClock, SaysWhichSideIsMissingAndSinceWhen) {
  ClockOptions options;
  options.remote = "the GPU's clock";
  options.local = "the host's clock";
  CausalClock clock(options);
  clock.RemoteBeforeLocal(5, 2 * kSecond);
  clock.RemoteBeforeLocal(6, 3 * kSecond);
  EXPECT_EQ(clock.At(1).status().message(),
            "the clocks are bounded from one side only: no event of the GPU's clock is known to "
            "follow one of the host's clock; the other way there are 2, since 2.000 s of the "
            "host's clock");
  CausalClock other(options);
  other.RemoteAfterLocal(5, 2 * kSecond);
  EXPECT_NE(std::string(other.ToLocal(1).status().message())
                .find("no event of the host's clock is known to follow one of the GPU's clock"),
            std::string::npos);
  EXPECT_FALSE(other.drift().ok());
}

TEST(CausalClock, AnyNumbersAreBorne) {
  std::mt19937_64 random(3);
  CausalClock clock(kSecond);
  for (int i = 0; i < 20000; ++i) {
    const uint64_t a = random() >> (random() % 64), b = random() >> (random() % 64);
    switch (random() % 4) {
      case 0:
        clock.RemoteAfterLocal(a, b);
        break;
      case 1:
        clock.RemoteBeforeLocal(a, b);
        break;
      case 2:
        clock.Sample(a, b, random() >> (random() % 64));
        break;
      default:
        (void)clock.At(a);
        (void)clock.ToLocal(b);
        (void)clock.drift();
    }
  }
  EXPECT_LT(clock.kept(), 200'000u);
}

TEST(CausalClock, ErrorGrowsAwayFromTheData) {
  CausalClock clock;
  for (uint64_t i = 0; i < 100; ++i) {
    uint64_t local = kSecond + i * kMs;
    clock.RemoteAfterLocal(local + 1000, local);
    clock.RemoteBeforeLocal(local, local + 1000);
  }
  auto near = clock.At(kSecond + 50 * kMs), far = clock.At(100 * kSecond);
  ASSERT_TRUE(near.ok() && far.ok());
  EXPECT_GT(far->error_ns, 10 * near->error_ns);
}

}  // namespace
}  // namespace mycroft
