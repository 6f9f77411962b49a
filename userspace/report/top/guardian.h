// SPDX-License-Identifier: Apache-2.0
//
// Leaves the terminal sane whatever ends the program. Three lines of defence:
//   - Release(): the normal way out;
//   - handlers of SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT restore it and let the
//     signal have its way;
//   - SIGKILL: a tiny child process in a session of its own waits at a pipe. When
//     the pipe closes without Release(), it restores the terminal.
//
// The child touches the settings only if they are still those that this program
// made: a shell that was faster has set its own. One object per process, made
// before any thread is started.
#ifndef MYCROFT_USERSPACE_REPORT_TOP_GUARDIAN_H_
#define MYCROFT_USERSPACE_REPORT_TOP_GUARDIAN_H_

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace mycroft {

class TerminalGuardian {
 public:
  // `tty` is the terminal's file descriptor, in the state to come back to.
  // FailedPrecondition when it is no terminal; Internal when there is no process left.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<TerminalGuardian>> Create(int tty);
  ~TerminalGuardian();
  TerminalGuardian(const TerminalGuardian&) = delete;
  TerminalGuardian& operator=(const TerminalGuardian&) = delete;

  // The terminal is now in the program's mode; `restore` are the bytes that lead out.
  void Arm(const std::string& restore);
  // The terminal has been restored by its user: nothing is left to do.
  void Release();

 private:
  struct Shared;
  TerminalGuardian() = default;
  int tty_ = -1;
  int pipe_ = -1;
  pid_t child_ = -1;
  Shared* shared_ = nullptr;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_REPORT_TOP_GUARDIAN_H_
