// SPDX-License-Identifier: Apache-2.0
#include "userspace/align/clock_band.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace mycroft {
namespace {

using Point = ClockBand::Point;

// All lines, by trying every slope at which the answer can change.
struct Brute {
  std::vector<Point> upper, lower;
  double limit = 200e-6;
  double HighAt(double b) const {
    double high = HUGE_VAL;
    for (const Point& p : upper) high = std::min(high, p.y - b * p.x);
    return high;
  }
  double LowAt(double b) const {
    double low = -HUGE_VAL;
    for (const Point& p : lower) low = std::max(low, p.y - b * p.x);
    return low;
  }
  std::vector<double> Slopes() const {
    std::vector<double> slopes{-limit, limit};
    std::vector<Point> all = upper;
    all.insert(all.end(), lower.begin(), lower.end());
    for (const Point& p : all) {
      for (const Point& q : all) {
        const double b = (q.y - p.y) / (q.x - p.x);
        if (p.x < q.x && std::abs(b) <= limit) slopes.push_back(b);
      }
    }
    return slopes;
  }
  double High(double x) const {
    double most = -HUGE_VAL;
    for (double b : Slopes()) {
      if (HighAt(b) >= LowAt(b) - 1e-3) most = std::max(most, HighAt(b) + b * x);
    }
    return most;
  }
  double Low(double x) const {
    double least = HUGE_VAL;
    for (double b : Slopes()) {
      if (HighAt(b) >= LowAt(b) - 1e-3) least = std::min(least, LowAt(b) + b * x);
    }
    return least;
  }
};

class Bands : public testing::TestWithParam<int> {};

TEST_P(Bands, AgreeWithAllLines) {
  std::mt19937_64 random(GetParam());
  std::uniform_real_distribution<double> uniform(0, 1);
  const double drift = (uniform(random) * 2 - 1) * 150e-6;
  const bool late = GetParam() % 2 == 0;
  ClockBand band;
  Brute brute;
  double x = 0;
  for (int i = 0; i < 40; ++i) {
    x += uniform(random) * 1e9;
    Point p{late && uniform(random) < 0.4 ? x * uniform(random) : x, 0};
    const bool upper = uniform(random) < 0.5;
    const double delay = 5000 * std::pow(uniform(random), -0.7);
    p.y = drift * p.x + (upper ? delay : -delay);
    ASSERT_TRUE(band.Add(upper ? ClockBand::kUpper : ClockBand::kLower, p));
    (upper ? brute.upper : brute.lower).push_back(p);
    if (!band.two_sided()) continue;
    for (int k = 0; k < 4; ++k) {
      const double at = (uniform(random) * 1.6 - 0.3) * x;
      ASSERT_NEAR(band.High(at), brute.High(at), 0.1) << "seed " << GetParam() << " point " << i;
      ASSERT_NEAR(band.Low(at), brute.Low(at), 0.1) << "seed " << GetParam() << " point " << i;
    }
  }
  EXPECT_LE(band.min_slope(), drift + 1e-12);
  EXPECT_GE(band.max_slope(), drift - 1e-12);
}

TEST_P(Bands, RefuseWhatNoLineSatisfies) {
  std::mt19937_64 random(GetParam());
  std::uniform_real_distribution<double> uniform(0, 1);
  ClockBand band;
  Brute brute;
  double x = 0;
  for (int i = 0; i < 60; ++i) {
    x += uniform(random) * 1e9;
    const double at = uniform(random) < 0.3 ? x * uniform(random) : x;
    const bool upper = uniform(random) < 0.5;
    const Point p{at, (uniform(random) - (upper ? 0.45 : 0.55)) * 20000};
    const ClockBand::Side side = upper ? ClockBand::kUpper : ClockBand::kLower;
    // Fits: some line of the band is below (above) it.
    double room = HUGE_VAL;
    if (upper && !brute.lower.empty()) room = p.y - brute.Low(at);
    if (!upper && !brute.upper.empty()) room = brute.High(at) - p.y;
    if (std::abs(room) < 2) continue;  // rounding decides
    EXPECT_EQ(band.Fits(side, p), room > 0) << "seed " << GetParam() << " point " << i;
    const size_t before = band.size();
    if (band.Add(side, p)) {
      (upper ? brute.upper : brute.lower).push_back(p);
    } else {
      EXPECT_EQ(band.size(), before);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Bands, testing::Range(1, 61));

TEST(ClockBand, IsBoundedAndOnlyWiderAfterCut) {
  ClockBand band;
  // A parabola: every point is on the hull.
  for (int i = 0; i < 6000; ++i) {
    const double x = i * 1e6;
    ASSERT_TRUE(band.Add(ClockBand::kUpper, {x, 1e6 + std::pow(i - 3000, 2) / 1e3}));
    ASSERT_TRUE(band.Add(ClockBand::kLower, {x, -1e6 - std::pow(i - 3000, 2) / 1e3}));
  }
  EXPECT_LE(band.size(), 4200u);
  const double high = band.High(4e9), low = band.Low(4e9);
  band.CutAfter(2e9);
  EXPECT_TRUE(band.two_sided());
  EXPECT_EQ(band.last_x(), 2e9);
  EXPECT_GE(band.High(4e9), high - 1e-3);
  EXPECT_LE(band.Low(4e9), low + 1e-3);
}

TEST(ClockBand, TheLastPointsBeforeACutAreStillKnown) {
  ClockBand band;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(band.Add(ClockBand::kUpper, {i * 1e8, 10}));
    ASSERT_TRUE(band.Add(ClockBand::kLower, {i * 1e8, -10}));
  }
  EXPECT_EQ(band.size(), 4u);  // on a straight line the ends are enough
  band.CutAfter(90.5e8);
  EXPECT_NEAR(band.High(50e8), 10, 1e-6);
  EXPECT_NEAR(band.High(90e8), 10, 1e-6);
  band.CutAfter(0);
  EXPECT_EQ(band.size(), 2u);
}

}  // namespace
}  // namespace mycroft
