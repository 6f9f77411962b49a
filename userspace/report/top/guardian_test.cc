// SPDX-License-Identifier: Apache-2.0
//
// A child process puts a pseudo terminal into another mode and dies in several
// ways; the terminal must be back in its old mode each time.
#include "userspace/report/top/guardian.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <functional>
#include <string>

namespace mycroft {
namespace {

class GuardianTest : public ::testing::Test {
 protected:
  GuardianTest() {
    EXPECT_EQ(::openpty(&master_, &slave_, nullptr, nullptr, nullptr), 0);
    EXPECT_EQ(::tcgetattr(slave_, &before_), 0);
  }
  ~GuardianTest() override {
    ::close(master_);
    ::close(slave_);
  }

  // Runs `end` in a child that has changed the terminal. `output_` is what came out.
  void Die(const std::function<void(TerminalGuardian&)>& end) {
    const pid_t child = ::fork();
    if (child == 0) {
      auto guardian = TerminalGuardian::Create(slave_);
      struct termios raw = before_;
      ::cfmakeraw(&raw);
      ::tcsetattr(slave_, TCSANOW, &raw);
      (*guardian)->Arm("<restore>");
      end(**guardian);
      ::_exit(0);
    }
    ::waitpid(child, &status_, 0);
    // The guardian may need a moment more than the child.
    struct pollfd poll {};
    poll.fd = master_;
    poll.events = POLLIN;
    output_.clear();
    while (output_.find("<restore>") == std::string::npos && ::poll(&poll, 1, 2000) == 1) {
      char buffer[256];
      const ssize_t n = ::read(master_, buffer, sizeof buffer);
      if (n <= 0) break;
      output_.append(buffer, static_cast<size_t>(n));
    }
  }

  bool Sane() {
    struct termios now {};
    ::tcgetattr(slave_, &now);
    return now.c_lflag == before_.c_lflag && now.c_iflag == before_.c_iflag &&
           now.c_oflag == before_.c_oflag;
  }

  int master_ = -1, slave_ = -1, status_ = 0;
  struct termios before_ {};
  std::string output_;
};

TEST_F(GuardianTest, Kill) {
  Die([](TerminalGuardian&) { ::kill(::getpid(), SIGKILL); });
  EXPECT_EQ(output_, "<restore>");
  EXPECT_TRUE(Sane());
  EXPECT_EQ(WTERMSIG(status_), SIGKILL);
}

TEST_F(GuardianTest, Crash) {
  for (int number : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL}) {
    Die([number](TerminalGuardian&) { ::raise(number); });
    EXPECT_EQ(output_, "<restore>") << number;
    EXPECT_TRUE(Sane()) << number;
    EXPECT_TRUE(WIFSIGNALED(status_)) << number;
    EXPECT_EQ(WTERMSIG(status_), number) << "the signal must still have its way";
  }
}

TEST_F(GuardianTest, ExitWithoutRelease) {
  Die([](TerminalGuardian&) { ::_exit(7); });
  EXPECT_EQ(output_, "<restore>");
  EXPECT_TRUE(Sane());
}

TEST_F(GuardianTest, LeavesTheModeAloneThatSomebodyElseHasSet) {
  struct termios shell = before_;
  shell.c_lflag &= ~static_cast<tcflag_t>(ICANON);
  Die([&](TerminalGuardian&) {
    ::tcsetattr(slave_, TCSANOW, &shell);
    ::kill(::getpid(), SIGKILL);
  });
  EXPECT_EQ(output_, "<restore>");
  struct termios now {};
  ::tcgetattr(slave_, &now);
  EXPECT_EQ(now.c_lflag, shell.c_lflag);
}

TEST_F(GuardianTest, NothingAfterRelease) {
  Die([&](TerminalGuardian& guardian) {
    ::tcsetattr(slave_, TCSANOW, &before_);
    ::write(slave_, "<restore>", 9);
    guardian.Release();
    guardian.~TerminalGuardian();
    ::_exit(0);
  });
  EXPECT_EQ(output_, "<restore>") << "once only";
  EXPECT_TRUE(Sane());
}

TEST(Guardian, NeedsATerminal) {
  const int null = ::open("/dev/null", O_RDWR);
  EXPECT_FALSE(TerminalGuardian::Create(null).ok());
  ::close(null);
}

}  // namespace
}  // namespace mycroft
