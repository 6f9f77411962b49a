// SPDX-License-Identifier: Apache-2.0
#include "userspace/report/top/guardian.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <new>

namespace mycroft {

// In memory that parent and child share. Written by the parent.
struct TerminalGuardian::Shared {
  struct termios before {};  // what to come back to
  struct termios during {};  // the program's mode
  char restore[512] = {};
  size_t restore_bytes = 0;
  std::atomic<bool> armed{false};
  int tty = -1;
};

namespace {

constexpr int kCrashes[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
constexpr size_t kStackBytes = 64 << 10;

bool SameMode(const struct termios& a, const struct termios& b) {
  return a.c_iflag == b.c_iflag && a.c_oflag == b.c_oflag && a.c_lflag == b.c_lflag;
}

void WriteAll(int fd, const char* bytes, size_t n) {
  while (n > 0) {
    const ssize_t done = ::write(fd, bytes, n);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return;
    bytes += done;
    n -= static_cast<size_t>(done);
  }
}

// Async-signal-safe: tcsetattr, tcgetattr and write are.
template <typename S>
void Restore(S* shared) {
  if (!shared->armed.exchange(false)) return;
  struct termios now {};
  if (::tcgetattr(shared->tty, &now) == 0 && SameMode(now, shared->during)) {
    ::tcsetattr(shared->tty, TCSANOW, &shared->before);
  }
  WriteAll(shared->tty, shared->restore, shared->restore_bytes);
}

void (*g_restore)(void*) = nullptr;
void* g_shared = nullptr;

void OnCrash(int signal_number) {
  if (g_restore != nullptr) g_restore(g_shared);
  // SA_RESETHAND: the second time, the default action ends the process.
  ::raise(signal_number);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TerminalGuardian>> TerminalGuardian::Create(int tty) {
  struct termios before {};
  if (::tcgetattr(tty, &before) != 0) {
    return absl::FailedPreconditionError(std::string("not a terminal: ") + std::strerror(errno));
  }
  void* memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  int ends[2];
  if (memory == MAP_FAILED || ::pipe2(ends, O_CLOEXEC) != 0) {
    if (memory != MAP_FAILED) ::munmap(memory, sizeof(Shared));
    return absl::InternalError(std::string("terminal guardian: ") + std::strerror(errno));
  }
  Shared* shared = new (memory) Shared;
  shared->before = before;
  shared->tty = tty;
  const pid_t child = ::fork();
  if (child < 0) {
    ::munmap(memory, sizeof(Shared));
    ::close(ends[0]);
    ::close(ends[1]);
    return absl::InternalError(std::string("terminal guardian: ") + std::strerror(errno));
  }
  if (child == 0) {
    // A session of its own: signals to the terminal's process group do not reach
    // it, and tcsetattr works though it is not in the foreground.
    ::setsid();
    ::prctl(PR_SET_NAME, "tty-guardian");
    for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGTTOU, SIGTSTP}) {
      ::signal(number, SIG_IGN);
    }
    for (int fd = 0; fd < 1024; ++fd) {
      if (fd != tty && fd != ends[0]) ::close(fd);
    }
    char byte = 0;
    while (::read(ends[0], &byte, 1) < 0 && errno == EINTR) {
    }
    Restore(shared);
    ::_exit(0);
  }
  ::close(ends[0]);
  std::unique_ptr<TerminalGuardian> guardian(new TerminalGuardian);
  guardian->tty_ = tty;
  guardian->pipe_ = ends[1];
  guardian->child_ = child;
  guardian->shared_ = shared;

  g_shared = shared;
  g_restore = [](void* s) { Restore(static_cast<Shared*>(s)); };
  static char stack[kStackBytes];
  stack_t alternate{};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof stack;
  ::sigaltstack(&alternate, nullptr);
  struct sigaction action {};
  action.sa_handler = OnCrash;
  action.sa_flags = SA_ONSTACK | SA_RESETHAND | SA_NODEFER;
  for (int number : kCrashes) ::sigaction(number, &action, nullptr);
  return guardian;
}

void TerminalGuardian::Arm(const std::string& restore) {
  ::tcgetattr(tty_, &shared_->during);
  shared_->restore_bytes = std::min(restore.size(), std::size(shared_->restore));
  std::memcpy(shared_->restore, restore.data(), shared_->restore_bytes);
  shared_->armed = true;
}

void TerminalGuardian::Release() { shared_->armed = false; }

TerminalGuardian::~TerminalGuardian() {
  ::close(pipe_);  // the child restores what is still armed, and ends
  while (::waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
  }
  for (int number : kCrashes) ::signal(number, SIG_DFL);
  g_restore = nullptr;
  g_shared = nullptr;
  ::munmap(shared_, sizeof(Shared));
}

}  // namespace mycroft
