// SPDX-License-Identifier: Apache-2.0
//
// A thread that wants all of a CPU gets little of it while it is starved, and all it
// wants afterwards. Needs root.
#include "tools/lab/job/starve.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>

#include "tools/lab/job/clock.h"

namespace mycroft::lab {
namespace {

class StarveTest : public ::testing::Test {
 protected:
  void SetUp() override {
    spinner_ = std::thread([this] {
      tid_ = static_cast<pid_t>(syscall(SYS_gettid));
      volatile uint64_t spin = 0;
      while (!stop_) spin = spin + 1;
    });
    while (tid_ == 0) usleep(1000);
    pthread_getcpuclockid(spinner_.native_handle(), &clock_);
  }
  void TearDown() override {
    stop_ = true;
    spinner_.join();
  }
  // CPU time of the spinner during `ms`, in percent of the time that passed.
  double Share(int ms) const {
    timespec before;
    timespec after;
    clock_gettime(clock_, &before);
    const uint64_t start = NowNs();
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    clock_gettime(clock_, &after);
    const double cpu = static_cast<double>(after.tv_sec - before.tv_sec) * 1e9 +
                       static_cast<double>(after.tv_nsec - before.tv_nsec);
    return 100 * cpu / static_cast<double>(NowNs() - start);
  }
  void Check(StarveMethod how) {
    auto starver = Starver::Begin({tid_}, 2, how);
    if (!starver.ok()) {
      GTEST_SKIP() << "cannot starve a thread here, NOT tested: " << starver.status();
    }
    Share(200);  // a quota may have been saved up
    EXPECT_LT(Share(600), 25) << (*starver)->method();
    starver->reset();
    EXPECT_EQ(sched_getscheduler(tid_), SCHED_OTHER);
    cpu_set_t mine;
    cpu_set_t its;
    sched_getaffinity(0, sizeof(mine), &mine);
    sched_getaffinity(tid_, sizeof(its), &its);
    EXPECT_TRUE(CPU_EQUAL(&mine, &its));
    // It moves again, at the latest when its quota would have let it. How fast depends on who
    // else is here.
    double share = 0;
    for (int i = 0; i < 10 && share <= 5; ++i) share = Share(300);
    EXPECT_GT(share, 5);
  }

  std::thread spinner_;
  std::atomic<bool> stop_{false};
  std::atomic<pid_t> tid_{0};
  clockid_t clock_{};
};

TEST_F(StarveTest, Quota) { Check(StarveMethod::kQuota); }
TEST_F(StarveTest, Hog) { Check(StarveMethod::kHog); }

TEST_F(StarveTest, NothingToStarve) { EXPECT_FALSE(Starver::Begin({}, 1).ok()); }

}  // namespace
}  // namespace mycroft::lab
