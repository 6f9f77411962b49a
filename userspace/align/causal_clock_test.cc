// SPDX-License-Identifier: Apache-2.0
#include "userspace/align/causal_clock.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

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

// The promise: the error bound is never below the true error, whatever the drift,
// the delays and their asymmetry.
class Property : public testing::TestWithParam<int> {};

TEST_P(Property, ErrorBoundHolds) {
  std::mt19937_64 random(GetParam());
  std::uniform_real_distribution<double> uniform(0, 1);
  std::lognormal_distribution<double> tail(10, 1.5);  // ns; median 22 us, long tail
  double drift = (uniform(random) * 2 - 1) * 100e-6;
  double offset0 = (uniform(random) * 2 - 1) * 1e15;
  double asymmetry = 1 + 9 * uniform(random);
  uint64_t start = static_cast<uint64_t>(uniform(random) * 1e18);
  auto remote_of = [&](uint64_t local) {
    double since = static_cast<double>(local - start);
    return static_cast<uint64_t>(static_cast<int64_t>(local) +
                                 static_cast<int64_t>(offset0 + drift * since));
  };
  CausalClock clock(30 * kSecond);
  uint64_t checked = 0;
  for (int i = 0; i < 3000; ++i) {
    uint64_t local = start + 4'000'000'000ull / 2 + static_cast<uint64_t>(i) * 20 * kMs;
    uint64_t there = static_cast<uint64_t>(tail(random) * asymmetry);
    uint64_t back = static_cast<uint64_t>(tail(random));
    if (uniform(random) < 0.7) clock.RemoteAfterLocal(remote_of(local + there), local);
    if (uniform(random) < 0.7) clock.RemoteBeforeLocal(remote_of(local), local + back);
    if (i % 100 != 99) continue;
    uint64_t at = local + static_cast<uint64_t>(uniform(random) * 2e9);  // also ahead of the data
    auto result = clock.At(at);
    ASSERT_TRUE(result.ok()) << result.status();
    double truth = static_cast<double>(static_cast<int64_t>(remote_of(at) - at));
    double error = std::abs(truth - static_cast<double>(result->offset_ns));
    EXPECT_LE(error, static_cast<double>(result->error_ns) + 130) << "seed " << GetParam() << " " << i;
    ++checked;
  }
  EXPECT_GT(checked, 20u);
  EXPECT_EQ(clock.epochs(), 1u);
  EXPECT_LT(clock.kept(), 400u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Property, testing::Range(1, 41));

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
