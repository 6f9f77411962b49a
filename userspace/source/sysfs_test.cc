// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/sysfs.h"

#include <gtest/gtest.h>

#include "userspace/source/testing/fixture_host.h"

namespace mycroft {
namespace {

TEST(Sysfs, Numbers) {
  EXPECT_EQ(ParseNumber("0"), 0u);
  EXPECT_EQ(ParseNumber(" 17\n"), 17u);
  EXPECT_EQ(ParseNumber("0x10de\n"), 0x10deu);
  EXPECT_EQ(ParseNumber("18446744073709551615"), UINT64_MAX);
  for (const char* bad : {"", " ", "\n", "-1", "+1", "1 2", "1x", "0x", "0xg", "N/A",
                          "18446744073709551616", "0x10000000000000000", "1.5"}) {
    EXPECT_EQ(ParseNumber(bad), std::nullopt) << bad;
  }
  EXPECT_EQ(ParseNumber(std::string("1\0", 2)), std::nullopt);
}

TEST(Sysfs, FilesAndFolders) {
  const FixtureHost host;
  host.Write("a", "one  \ntwo\n");
  host.Write("empty", "");
  host.Write("long", std::string(10000, '7'));
  host.Write("folder/b", "12\n");
  host.Write("folder/a", "x\n");
  host.Write("folder/.hidden", "");
  host.Link("link", "../nowhere/0000:3b:00.0");
  const std::string root = host.root() + "/";
  EXPECT_EQ(ReadFirstLine(root + "a"), "one");
  EXPECT_EQ(ReadFirstLine(root + "empty"), "");
  EXPECT_EQ(ReadFirstLine(root + "long")->size(), 4096u);
  EXPECT_EQ(ReadFirstLine(root + "folder"), std::nullopt);
  EXPECT_EQ(ReadFirstLine(root + "none"), std::nullopt);
  EXPECT_EQ(ReadNumber(root + "folder/b"), 12u);
  EXPECT_EQ(ReadNumber(root + "folder/a"), std::nullopt);
  EXPECT_EQ(ReadNumber(root + "long"), std::nullopt);
  EXPECT_EQ(LinkName(root + "link"), "0000:3b:00.0");
  EXPECT_EQ(LinkName(root + "a"), "");
  EXPECT_EQ(*ListFolder(root + "folder"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(ListFolder(root + "folder", 1)->size(), 1u);
  EXPECT_EQ(ListFolder(root + "a"), std::nullopt);
  EXPECT_EQ(PresenceOf(root + "folder", "a"), Presence::kPresent);
  EXPECT_EQ(PresenceOf(root + "folder", "c"), Presence::kAbsent);
  EXPECT_EQ(PresenceOf(root + "none", "a"), Presence::kUnknown);  // the folder is not there
  EXPECT_EQ(PresenceOf(root + "a", "a"), Presence::kUnknown);
}

TEST(CounterTracker, AResetIsNotNegativeAndAFailedReadNotAnAbsence) {
  CounterTracker counter;
  EXPECT_EQ(counter.Update(std::nullopt), std::nullopt);
  EXPECT_EQ(counter.Update(100), 100u);
  EXPECT_EQ(counter.Update(100), 100u);
  EXPECT_EQ(counter.Update(130), 130u);
  EXPECT_EQ(counter.Update(std::nullopt), std::nullopt);
  EXPECT_EQ(counter.total(), 130u);
  EXPECT_EQ(counter.Update(131), 131u);
  EXPECT_EQ(counter.resets(), 0u);
  EXPECT_EQ(counter.Update(0), 131u);  // the driver was loaded again
  EXPECT_EQ(counter.Update(4), 135u);
  EXPECT_EQ(counter.Update(std::nullopt), std::nullopt);
  EXPECT_EQ(counter.Update(2), 137u);  // again, unseen
  EXPECT_EQ(counter.resets(), 2u);
  EXPECT_EQ(counter.total(), 137u);
}

}  // namespace
}  // namespace mycroft
