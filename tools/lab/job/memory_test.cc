// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/job/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

namespace mycroft::lab {
namespace {

using ::testing::HasSubstr;

bool CanLock(size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return false;
  const bool locked = mlock(at, bytes) == 0;
  munmap(at, bytes);
  return locked;
}

rlim_t MemlockLimit() {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  return limit.rlim_cur;
}

TEST(MemoryTest, NoMoreThanTheLimitCanBeLockedAndAfterwardsAsMuchAsBefore) {
  constexpr size_t kBytes = 1 << 20;
  if (!CanLock(kBytes)) GTEST_SKIP() << "NOT TESTED: 1 MiB cannot be locked here at all";
  const rlim_t before = MemlockLimit();
  {
    const auto low = LowMemlock::Begin(64 << 10);
    ASSERT_TRUE(low.ok()) << low.status();
    EXPECT_EQ(MemlockLimit(), 64u << 10);
    EXPECT_FALSE(CanLock(kBytes));
    EXPECT_TRUE(CanLock(16 << 10));
  }
  EXPECT_EQ(MemlockLimit(), before);
  EXPECT_TRUE(CanLock(kBytes));
}

TEST(MemoryTest, AWorkingSetHasOtherContentsInEveryPage) {
  WorkingSet set;
  set.Use();  // of nothing
  set.Resize(1 << 20);
  rusage before{};
  rusage after{};
  getrusage(RUSAGE_SELF, &before);
  set.Use();
  getrusage(RUSAGE_SELF, &after);
  EXPECT_GE(after.ru_minflt - before.ru_minflt, 256);
  set.Resize(0);
  set.Use();
}

TEST(MemoryTest, ALimitNeedsSwap) {
  std::ifstream swaps("/proc/swaps");
  std::string line;
  std::getline(swaps, line);
  const bool has_swap = static_cast<bool>(std::getline(swaps, line));
  const auto limit = LimitMemory(getpid(), 64 << 20);
  if (!has_swap) {
    ASSERT_FALSE(limit.ok());
    EXPECT_THAT(std::string(limit.status().message()), HasSubstr("no swap"));
  } else if (geteuid() == 0) {
    EXPECT_TRUE(limit.ok()) << limit.status();
  }
}

std::string Groups(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/cgroup");
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(ControlGroupTest, MembersComeAndGoBack) {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const std::string before = Groups(child);
  const ControlGroup::Plan plan = {.controller = "memory",
                                   .members = {child},
                                   .v1 = {{"memory.limit_in_bytes", "1073741824"}},
                                   .v2 = {{"memory.max", "1073741824"}}};
  auto group = ControlGroup::Make(plan);
  const bool made = group != nullptr;
  const std::string name = "mycroft-lab-memory-" + std::to_string(child);
  if (made) {
    EXPECT_THAT(Groups(child), HasSubstr(name));
    group.reset();
    EXPECT_EQ(Groups(child), before);
  }
  // A setting that does not exist: nothing stays.
  EXPECT_EQ(ControlGroup::Make({.controller = "memory",
                                .members = {child},
                                .v1 = {{"memory.nothing", "1"}},
                                .v2 = {{"memory.nothing", "1"}}}),
            nullptr);
  EXPECT_EQ(Groups(child), before);
  EXPECT_EQ(ControlGroup::Make({.controller = "no-such-controller", .members = {child}}), nullptr);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  if (!made) GTEST_SKIP() << "NOT TESTED: no memory cgroup can be made here";
}

}  // namespace
}  // namespace mycroft::lab
