// SPDX-License-Identifier: Apache-2.0
#include "userspace/base/text.h"

#include <gtest/gtest.h>

#include "userspace/base/log.h"

namespace mycroft {
namespace {

TEST(FitCells, PadsAndCuts) {
  EXPECT_EQ(FitCells("ab", 4), "ab  ");
  EXPECT_EQ(FitCells("ab", 4, Align::kRight), "  ab");
  EXPECT_EQ(FitCells("abcdef", 4), "abc~");
  EXPECT_EQ(FitCells("abcdef", 0), "");
  EXPECT_EQ(FitCells("", 2), "  ");
}

TEST(FitCells, CountsCodePointsNotBytes) {
  EXPECT_EQ(CellWidth("\xe2\x96\x88\xe2\x96\x88"), 2u);  // two full blocks
  EXPECT_EQ(FitCells("\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88", 2), "\xe2\x96\x88~");
}

TEST(CellWidth, BytesThatAreNotUtf8AreOneEach) {
  EXPECT_EQ(CellWidth("\xff\xfe"), 2u);
  EXPECT_EQ(CellWidth("\xe2\x96"), 2u);          // cut off
  EXPECT_EQ(CellWidth("\xc0\xaf"), 2u);          // overlong
  EXPECT_EQ(CellWidth("\xf7\xbf\xbf\xbf"), 4u);  // beyond U+10FFFF
}

TEST(ClosestName, FindsTyposOnly) {
  const std::vector<std::string> names = {"interval", "record.max_size", "top.color"};
  EXPECT_EQ(ClosestName("intervall", names), "interval");
  EXPECT_EQ(ClosestName("max_size", names), "record.max_size");
  EXPECT_EQ(ClosestName("top.colour", names), "top.color");
  EXPECT_EQ(ClosestName("zzz", names), "");
  EXPECT_EQ(ClosestName("", names), "");
  EXPECT_EQ(ClosestName(std::string(1000000, 'x'), names), "");
}

TEST(QuotedText, LetsNoControlCharacterThrough) {
  EXPECT_EQ(QuotedText("a\x1b[2Jb\n"), "'a\\x1b[2Jb\\x0a'");
  EXPECT_EQ(QuotedText(std::string(200, 'x')), "'" + std::string(80, 'x') + "...'");
}

TEST(StatusText, IsOneLineWithoutTheCode) {
  EXPECT_EQ(StatusText(absl::NotFoundError("a\nb")), "a b");
  EXPECT_EQ(StatusText(absl::NotFoundError("")), "NOT_FOUND");
}

}  // namespace
}  // namespace mycroft
