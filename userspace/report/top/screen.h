// SPDX-License-Identifier: Apache-2.0
//
// The terminal, by ncurses: shows frames, reads keys. One per process, one thread.
// Restores the terminal when destroyed, and in every other case (see guardian.h).
// SIGINT, SIGTERM and SIGHUP end Read() with `quit`.
#ifndef MYCROFT_USERSPACE_REPORT_TOP_SCREEN_H_
#define MYCROFT_USERSPACE_REPORT_TOP_SCREEN_H_

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "userspace/report/top/frame.h"
#include "userspace/report/top/render.h"
#include "userspace/report/top/state.h"

namespace mycroft {

class Screen {
 public:
  // FailedPrecondition without a terminal that can be drawn on (not a tty, TERM
  // unknown or dumb). Call before any thread is started.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Screen>> Open();
  virtual ~Screen() = default;
  virtual FrameSize size() const = 0;
  virtual void Draw(const Frame& frame, bool colour) = 0;
  // Waits for a key for so long at most.
  virtual std::optional<KeyEvent> Read(int timeout_ms) = 0;
  // A signal asked the program to end.
  virtual bool quit() const = 0;
  // False: the terminal's character set has no line drawing; use ASCII.
  virtual bool utf8() const = 0;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_REPORT_TOP_SCREEN_H_
