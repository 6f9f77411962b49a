// SPDX-License-Identifier: Apache-2.0
#include "userspace/report/top/screen.h"

#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

// ncurses defines many short macros; it comes last.
#include "userspace/report/top/guardian.h"
#define NCURSES_NOMACROS 1
#include <ncurses.h>

namespace mycroft {
namespace {

std::atomic<bool> g_quit{false};

void OnQuit(int) { g_quit = true; }

void AppendCapability(std::string& out, const char* name) {
  const char* text = ::tigetstr(name);
  if (text == nullptr || text == reinterpret_cast<const char*>(-1)) return;
  // Without padding marks such as $<5>, which only tputs understands.
  for (const char* p = text; *p != '\0'; ++p) {
    if (p[0] == '$' && p[1] == '<') {
      const char* end = std::strchr(p, '>');
      if (end == nullptr) return;
      p = end;
      continue;
    }
    out += *p;
  }
}

std::optional<KeyEvent> Translate(int code) {
  switch (code) {
    case KEY_UP:
      return KeyEvent{TopKey::kUp};
    case KEY_DOWN:
      return KeyEvent{TopKey::kDown};
    case KEY_LEFT:
      return KeyEvent{TopKey::kLeft};
    case KEY_RIGHT:
      return KeyEvent{TopKey::kRight};
    case KEY_PPAGE:
      return KeyEvent{TopKey::kPageUp};
    case KEY_NPAGE:
      return KeyEvent{TopKey::kPageDown};
    case KEY_HOME:
      return KeyEvent{TopKey::kHome};
    case KEY_END:
      return KeyEvent{TopKey::kEnd};
    case KEY_ENTER:
    case '\r':
    case '\n':
      return KeyEvent{TopKey::kEnter};
    case 27:
      return KeyEvent{TopKey::kEscape};
    case KEY_BACKSPACE:
    case 127:
    case 8:
      return KeyEvent{TopKey::kBackspace};
    case KEY_F(1):
      return KeyEvent{TopKey::kF1};
    case KEY_F(2):
      return KeyEvent{TopKey::kF2};
    case KEY_F(6):
      return KeyEvent{TopKey::kF6};
    case KEY_F(10):
      return KeyEvent{TopKey::kF10};
    case KEY_RESIZE:
      return KeyEvent{TopKey::kResize};
    default:
      if (code >= 0x20 && code < 0x7f) return KeyEvent{TopKey::kChar, static_cast<char>(code)};
      return std::nullopt;
  }
}

class CursesScreen : public Screen {
 public:
  CursesScreen(std::unique_ptr<TerminalGuardian> guardian, SCREEN* terminal, FILE* input)
      : guardian_(std::move(guardian)), terminal_(terminal), input_(input) {
    ::set_escdelay(25);
    ::cbreak();
    ::noecho();
    ::nonl();
    ::keypad(stdscr, TRUE);
    ::curs_set(0);
    if (::has_colors()) {
      ::start_color();
      ::use_default_colors();
      ::init_pair(1, COLOR_GREEN, -1);
      ::init_pair(2, COLOR_YELLOW, -1);
      ::init_pair(3, COLOR_RED, -1);
      ::init_pair(4, COLOR_CYAN, -1);
    }
    ::refresh();
    std::string restore;
    for (const char* name : {"sgr0", "rmkx", "cnorm", "rmcup"}) AppendCapability(restore, name);
    guardian_->Arm(restore);
  }

  ~CursesScreen() override {
    ::endwin();
    ::delscreen(terminal_);
    guardian_->Release();
    if (input_ != stdin) std::fclose(input_);
  }

  FrameSize size() const override {
    return {static_cast<size_t>(std::max(COLS, 1)), static_cast<size_t>(std::max(LINES, 1))};
  }

  void Draw(const Frame& frame, bool colour) override {
    colour = colour && ::has_colors();
    ::erase();
    int row = 0;
    for (const FrameLine& line : frame.lines) {
      if (row >= LINES) break;
      ::move(row++, 0);
      for (const Span& span : line.spans) {
        attr_t attributes = line.selected ? A_REVERSE : A_NORMAL;
        short pair = 0;
        switch (span.style) {
          case TextStyle::kNormal:
            break;
          case TextStyle::kDim:
            attributes |= A_DIM;
            break;
          case TextStyle::kBold:
            attributes |= A_BOLD;
            break;
          case TextStyle::kGood:
            pair = 1;
            break;
          case TextStyle::kWarning:
            attributes |= A_BOLD;
            pair = 2;
            break;
          case TextStyle::kCritical:
            attributes |= A_BOLD;
            pair = 3;
            break;
          case TextStyle::kHeader:
            attributes |= A_REVERSE;
            break;
          case TextStyle::kKey:
            attributes |= A_BOLD;
            pair = 4;
            break;
        }
        ::attr_set(attributes, colour ? pair : short{0}, nullptr);
        ::addstr(span.text.c_str());
      }
    }
    ::attr_set(A_NORMAL, 0, nullptr);
    ::refresh();
  }

  std::optional<KeyEvent> Read(int timeout_ms) override {
    ::timeout(timeout_ms);
    const int code = ::getch();
    return code == ERR ? std::nullopt : Translate(code);
  }

  bool quit() const override { return g_quit; }
  bool utf8() const override { return std::strcmp(::nl_langinfo(CODESET), "UTF-8") == 0; }

 private:
  std::unique_ptr<TerminalGuardian> guardian_;
  SCREEN* terminal_;
  FILE* input_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Screen>> Screen::Open() {
  const char* term = std::getenv("TERM");
  if (::isatty(STDOUT_FILENO) == 0 || term == nullptr || *term == '\0' ||
      std::strcmp(term, "dumb") == 0) {
    return absl::FailedPreconditionError("standard output is not a terminal that can be drawn on");
  }
  ::setlocale(LC_ALL, "");
  FILE* input = ::isatty(STDIN_FILENO) != 0 ? stdin : std::fopen("/dev/tty", "re");
  if (input == nullptr) {
    return absl::FailedPreconditionError("no terminal to read keys from");
  }
  absl::StatusOr<std::unique_ptr<TerminalGuardian>> guardian =
      TerminalGuardian::Create(STDOUT_FILENO);
  SCREEN* terminal = nullptr;
  if (guardian.ok()) {
    // Before newterm, which takes over those that nobody has taken.
    struct sigaction action {};
    action.sa_handler = OnQuit;
    for (int number : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(number, &action, nullptr);
    ::signal(SIGPIPE, SIG_IGN);
    terminal = ::newterm(nullptr, stdout, input);
  }
  if (terminal == nullptr) {
    if (input != stdin) std::fclose(input);
    if (!guardian.ok()) return guardian.status();
    return absl::FailedPreconditionError("terminal type '" + std::string(term) + "' is not known");
  }
  return std::unique_ptr<Screen>(
      std::make_unique<CursesScreen>(std::move(*guardian), terminal, input));
}

}  // namespace mycroft
