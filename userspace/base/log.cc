// SPDX-License-Identifier: Apache-2.0
#include "userspace/base/log.h"

#include <unistd.h>

#include <atomic>

namespace mycroft {
namespace {

std::atomic<Verbosity> g_verbosity{Verbosity::kNormal};

// One write per line, so that lines of several threads or processes do not mix.
void Write(const std::string& prefix, const std::string& text) {
  std::string line = "mycroft: " + prefix;
  for (char c : text) {
    const unsigned char byte = static_cast<unsigned char>(c);
    line += byte < 0x20 && c != '\n' && c != '\t' ? '?' : c;
  }
  line += '\n';
  for (size_t done = 0; done < line.size();) {
    const ssize_t n = ::write(STDERR_FILENO, line.data() + done, line.size() - done);
    if (n <= 0) return;  // nowhere left to complain to
    done += static_cast<size_t>(n);
  }
}

}  // namespace

void SetVerbosity(Verbosity verbosity) { g_verbosity = verbosity; }
Verbosity GetVerbosity() { return g_verbosity; }

void LogError(const std::string& text) { Write("error: ", text); }
void LogWarning(const std::string& text) { Write("warning: ", text); }

void LogInfo(const std::string& text) {
  if (g_verbosity.load() != Verbosity::kQuiet) Write("", text);
}

void LogDetail(const std::string& text) {
  if (g_verbosity.load() == Verbosity::kVerbose) Write("", text);
}

std::string StatusText(const absl::Status& status) {
  std::string text(status.message().data(), status.message().size());
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text.empty() ? absl::StatusCodeToString(status.code()) : text;
}

}  // namespace mycroft
