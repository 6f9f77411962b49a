// SPDX-License-Identifier: Apache-2.0
#include "userspace/base/units.h"

#include <gtest/gtest.h>

#include <cmath>

namespace mycroft {
namespace {

TEST(ParseDuration, ReadsWhatPeopleWrite) {
  EXPECT_EQ(ParseDuration("100ms").value(), 100'000'000u);
  EXPECT_EQ(ParseDuration("1.5s").value(), 1'500'000'000u);
  EXPECT_EQ(ParseDuration("1h30m").value(), 5'400'000'000'000u);
  EXPECT_EQ(ParseDuration("2min").value(), 120'000'000'000u);
  EXPECT_EQ(ParseDuration("7d").value(), 604'800'000'000'000u);
  EXPECT_EQ(ParseDuration("0").value(), 0u);
  EXPECT_EQ(ParseDuration("18446744073709551615ns").value(), UINT64_MAX);
}

TEST(ParseDuration, RefusesTheRest) {
  for (const char* text : {"", "5", "s", "5 s", "-5s", "5x", "1.s", ".5s", "0x10s", "inf", "nans",
                           "1e3s", "18446744073709551616ns", "999999999999d", "5s ", "5s,"}) {
    EXPECT_FALSE(ParseDuration(text).ok()) << text;
  }
}

TEST(ParseBytes, ReadsUnitsOfBothKinds) {
  EXPECT_EQ(ParseBytes("4096").value(), 4096u);
  EXPECT_EQ(ParseBytes("64KiB").value(), 65536u);
  EXPECT_EQ(ParseBytes("10MB").value(), 10'000'000u);
  EXPECT_EQ(ParseBytes("1.5G").value(), 1'610'612'736u);
  for (const char* text : {"", "G", "1GiBs", "-1", "1 G", "99999999TiB"}) {
    EXPECT_FALSE(ParseBytes(text).ok()) << text;
  }
}

TEST(Exact, IsReadBackToTheSameNumber) {
  for (uint64_t value : {uint64_t{0}, uint64_t{1}, uint64_t{1'500}, uint64_t{100'000'000},
                         uint64_t{86400'000'000'000}, uint64_t{123456789012345}, UINT64_MAX}) {
    EXPECT_EQ(ParseDuration(ExactDuration(value)).value(), value) << ExactDuration(value);
    EXPECT_EQ(ParseBytes(ExactBytes(value)).value(), value) << ExactBytes(value);
  }
}

TEST(ShortDuration, FitsSixCharactersAndNeverRoundsUp) {
  EXPECT_EQ(ShortDuration(0), "0ns");
  EXPECT_EQ(ShortDuration(999'999), "999us");
  EXPECT_EQ(ShortDuration(999'999'999), "999ms");
  EXPECT_EQ(ShortDuration(3'290'000'000), "3.2s");
  EXPECT_EQ(ShortDuration(59'999'999'999), "59.9s");
  EXPECT_EQ(ShortDuration(245'000'000'000), "4m05s");
  EXPECT_EQ(ShortDuration(3600'000'000'000), "1h00m");
  EXPECT_EQ(ShortDuration(4 * 86400'000'000'000), "4d00h");
  for (uint64_t ns = 1; ns < (uint64_t{1} << 63); ns = ns * 3 + 1) {
    EXPECT_LE(ShortDuration(ns).size(), 7u) << ShortDuration(ns);
  }
}

TEST(ShortRate, FitsSevenCharacters) {
  EXPECT_EQ(ShortRate(0), "0B/s");
  EXPECT_EQ(ShortRate(999.4), "999B/s");
  EXPECT_EQ(ShortRate(1e3), "1.0kB/s");
  EXPECT_EQ(ShortRate(1.23e9), "1.2GB/s");
  EXPECT_EQ(ShortRate(123e9), "123GB/s");
  EXPECT_EQ(ShortRate(-1), "?");
  EXPECT_EQ(ShortRate(NAN), "?");
  for (double rate = 1; rate < 1e30; rate *= 1.7) EXPECT_LE(ShortRate(rate).size(), 7u) << rate;
}

}  // namespace
}  // namespace mycroft
