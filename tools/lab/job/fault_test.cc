// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/job/fault.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <tuple>
#include <vector>

namespace mycroft::lab {
namespace {

using ::testing::HasSubstr;

TEST(FaultTest, EveryKindParses) {
  for (int i = 0; i < static_cast<int>(FaultKind::kCount); ++i) {
    const FaultInfo& info = Info(static_cast<FaultKind>(i));
    const auto fault = ParseFault(std::string(info.name) + ":rank=3,at=1.5", 4);
    ASSERT_TRUE(fault.ok()) << fault.status();
    EXPECT_EQ(fault->kind, info.kind);
    EXPECT_EQ(fault->rank, 3);
    EXPECT_DOUBLE_EQ(fault->at_s, 1.5);
    EXPECT_FALSE(fault->for_s.has_value());
    EXPECT_DOUBLE_EQ(fault->amount, info.default_amount);
    EXPECT_THAT(FaultHelp(), HasSubstr(info.name));
  }
}

TEST(FaultTest, AllKeys) {
  const auto fault = ParseFault("net-slow:amount=50,for=2.25,at=0,rank=0", 2);
  ASSERT_TRUE(fault.ok()) << fault.status();
  EXPECT_EQ(fault->kind, FaultKind::kNetSlow);
  EXPECT_EQ(fault->rank, 0);
  EXPECT_DOUBLE_EQ(fault->at_s, 0);
  ASSERT_TRUE(fault->for_s.has_value());
  EXPECT_DOUBLE_EQ(*fault->for_s, 2.25);
  EXPECT_DOUBLE_EQ(fault->amount, 50);
}

TEST(FaultTest, TheFirstGidIndexIsAnAmount) {
  const auto fault = ParseFault("wrong-gid:rank=0,at=1,amount=0", 2);
  ASSERT_TRUE(fault.ok()) << fault.status();
  EXPECT_EQ(fault->amount, 0);
}

TEST(FaultTest, BadTextSaysWhatIsWrong) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"", "no fault is called"},
      {"gpu-fast:rank=0,at=1", "known: gpu-slow"},
      {"gpu-slow", "rank=R is missing"},
      {"gpu-slow:", "not of the form key=value"},
      {"gpu-slow:rank=0", "at=SECONDS is missing"},
      {"gpu-slow:at=1", "rank=R is missing"},
      {"gpu-slow:rank=4,at=1", "not a rank of this job (0 to 3)"},
      {"gpu-slow:rank=-1,at=1", "not a rank of this job"},
      {"gpu-slow:rank=1.5,at=1", "not a rank of this job"},
      {"gpu-slow:rank=x,at=1", "is not a number"},
      {"gpu-slow:rank=0,at=", "is not a number"},
      {"gpu-slow:rank=0,at=nan", "is not a number"},
      {"gpu-slow:rank=0,at=1,at=2", "is given twice"},
      {"gpu-slow:rank=0,at=1,", "not of the form key=value"},
      {"gpu-slow:rank=0,at=1,for=0", "leave it out for ever"},
      {"gpu-slow:rank=0,at=-1", "at must be"},
      {"gpu-slow:rank=0,at=1,speed=3", "\"speed\" is not known"},
      {"gpu-slow:rank=0,at=1,amount=0", "must be more than 0"},
      {"net-down:rank=0,at=1,amount=3", "takes no amount"},
      {"kill:rank=0,at=1,for=3", "nothing comes back"},
      {"bad-rkey:rank=0,at=1,for=3", "nothing comes back"},
      {"rnr:rank=0,at=1,amount=3", "takes no amount"},
      {"wrong-gid:rank=0,at=1,amount=1.5", "must be 0 to 255"},
      {"wrong-gid:rank=0,at=1,amount=256", "must be 0 to 255"},
      {"mtu-mismatch:rank=0,at=1,amount=1500", "256, 512, 1024, 2048 or 4096"},
      {"mismatch-size:rank=0,at=1,amount=100", "must be less than 100"},
      {"memory-pressure:rank=0,at=1,amount=1", "must be 2 to 65536"},
  };
  for (const auto& [text, why] : cases) {
    const auto fault = ParseFault(text, 4);
    ASSERT_FALSE(fault.ok()) << text;
    EXPECT_THAT(std::string(fault.status().message()), HasSubstr(why)) << text;
    EXPECT_THAT(std::string(fault.status().message()), HasSubstr(text));
  }
}

TEST(FaultTest, Events) {
  const auto event = ParseEvent("checkpoint:at=2,for=1.5");
  ASSERT_TRUE(event.ok());
  EXPECT_EQ(event->kind, "checkpoint");
  EXPECT_DOUBLE_EQ(event->at_s, 2);
  EXPECT_DOUBLE_EQ(event->for_s, 1.5);
  EXPECT_FALSE(ParseEvent("checkpoint:at=2").ok());
  EXPECT_FALSE(ParseEvent("lunch:at=2,for=1").ok());
  EXPECT_FALSE(ParseEvent("checkpoint:at=2,for=1,rank=1").ok());
}

using Noted = std::tuple<int, bool, uint64_t>;

TEST(FaultTest, BoardHoldsInItsWindowOnly) {
  std::vector<Noted> notes;
  FaultBoard board(
      {*ParseFault("net-slow:rank=0,at=1", 2), *ParseFault("gpu-slow:rank=1,at=1,for=2", 2)}, 1,
      [&](int i, bool begin, uint64_t ns) { notes.emplace_back(i, begin, ns); });
  EXPECT_FALSE(board.Hold(FaultKind::kGpuSlow, 5 * kNsPerSec).has_value());  // not started
  board.Start(10 * kNsPerSec);
  const uint64_t s = kNsPerSec;
  EXPECT_FALSE(board.Hold(FaultKind::kGpuSlow, 11 * s - 1).has_value());
  EXPECT_FALSE(board.Hold(FaultKind::kNetSlow, 12 * s).has_value());  // another rank's
  EXPECT_TRUE(board.Peek(FaultKind::kGpuSlow, 11 * s).has_value());
  EXPECT_TRUE(notes.empty());  // a peek is no effect
  EXPECT_EQ(board.Hold(FaultKind::kGpuSlow, 11 * s + 7), Info(FaultKind::kGpuSlow).default_amount);
  EXPECT_TRUE(board.Hold(FaultKind::kGpuSlow, 12 * s).has_value());
  EXPECT_EQ(notes, (std::vector<Noted>{{1, true, 11 * s + 7}}));
  EXPECT_EQ(board.EndOf(FaultKind::kGpuSlow, 12 * s), 13 * s);
  board.Sweep(13 * s - 1);
  EXPECT_EQ(notes.size(), 1u);
  EXPECT_FALSE(board.Hold(FaultKind::kGpuSlow, 13 * s).has_value());
  board.Sweep(14 * s);
  board.Sweep(15 * s);
  EXPECT_EQ(notes, (std::vector<Noted>{{1, true, 11 * s + 7}, {1, false, 13 * s}}));
}

TEST(FaultTest, MismatchWithoutForIsOneCall) {
  FaultBoard once({*ParseFault("mismatch-size:rank=0,at=0", 1)}, 0, nullptr);
  once.Start(1);
  EXPECT_TRUE(once.Take(FaultKind::kMismatchSize, 2).has_value());
  EXPECT_FALSE(once.Take(FaultKind::kMismatchSize, 3).has_value());
  FaultBoard window({*ParseFault("mismatch-size:rank=0,at=0,for=1", 1)}, 0, nullptr);
  window.Start(1);
  EXPECT_TRUE(window.Take(FaultKind::kMismatchSize, 2).has_value());
  EXPECT_TRUE(window.Take(FaultKind::kMismatchSize, 3).has_value());
  EXPECT_FALSE(window.Take(FaultKind::kMismatchSize, 2 * kNsPerSec).has_value());
}

TEST(FaultTest, OneThreadNotesTheOnset) {
  std::atomic<int> begins{0};
  FaultBoard board({*ParseFault("gpu-slow:rank=0,at=0", 1)}, 0,
                   [&](int, bool begin, uint64_t) { begins += begin; });
  board.Start(1);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) board.Hold(FaultKind::kGpuSlow, 2);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(begins.load(), 1);
}

}  // namespace
}  // namespace mycroft::lab
