// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "tools/mycroft/exit_codes.h"
#include "tools/mycroft/verbs.h"
#include "userspace/base/log.h"
#include "userspace/base/memory.h"
#include "userspace/base/units.h"

namespace mycroft {
namespace {

// Before kernel 6.10 each probe of a library takes descriptors in each process: hundreds of
// a rank. The soft limit is for programs that call select().
void AllowManyFiles() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

int Dispatch(CLI::App& app, const Options& options, const Config& config) {
  if (options.verb == "run") return RunCommand(config, options);
  AllowManyFiles();  // not before: a job gets the limits of its user
  if (options.verb == "doctor") return RunDoctor(config, options);
  if (options.verb == "record") return RunRecord(config, options);
  if (options.verb == "top") return RunTopCommand(config, options);
  if (options.verb == "diagnose") return RunDiagnose(config, options);
  if (options.verb == "export") return RunExport(config, options);
  if (options.verb == "merge") return RunMerge(config, options);
  if (options.verb == "version") return RunVersion(config, options);
  if (options.verb == "completion") return RunCompletion(app, options);
  if (options.verb == "__man") return RunMan(app, options);
  LogError("verb '" + options.verb + "' is not implemented");
  return kExitFailure;
}

}  // namespace

int RunMycroft(int argc, char** argv) {
  KeepHeapHot();
  try {
    Options options;
    const std::unique_ptr<CLI::App> app = MakeApp(options);
    std::optional<int> exit_code;
    ParseCommandLine(*app, options, argc, argv, exit_code);
    if (exit_code) return *exit_code;
    SetVerbosity(options.quiet     ? Verbosity::kQuiet
                 : options.verbose ? Verbosity::kVerbose
                                   : Verbosity::kNormal);
    // These say what this program is; a broken configuration must not keep them from it.
    const bool needs_config =
        options.verb != "version" && options.verb != "completion" && options.verb != "__man";
    Config config;
    if (needs_config || options.print_config) {
      absl::StatusOr<Config> loaded = MakeConfig(options, ProcessEnvironment());
      if (!loaded.ok()) {
        LogError(StatusText(loaded.status()));
        return kExitUsage;
      }
      config = *std::move(loaded);
    }
    if (options.print_config) return PrintOut(PrintConfig(config)) ? kExitOk : kExitFailure;
    return Dispatch(*app, options, config);
  } catch (const std::bad_alloc&) {
    LogError("out of memory");
  } catch (const std::exception& e) {
    LogError(std::string("unexpected: ") + e.what() + "; please report this");
  }
  return kExitFailure;
}

absl::StatusOr<uint64_t> ParseTimePoint(const std::string& text, uint64_t first_ns,
                                        uint64_t last_ns) {
  if (!text.empty() && text != "0" && text.find_first_not_of("0123456789") == std::string::npos) {
    return ParseDuration(text + "ns");
  }
  const bool from_end = !text.empty() && text[0] == '-';
  const absl::StatusOr<uint64_t> offset = ParseDuration(from_end ? text.substr(1) : text);
  if (!offset.ok()) {
    return absl::InvalidArgumentError(
        "'" + text +
        "' is not a time: write nanoseconds of the recording's clock, 10s after its "
        "start, or -10s before its end");
  }
  if (from_end) return last_ns > *offset ? last_ns - *offset : 0;
  return *offset > UINT64_MAX - first_ns ? UINT64_MAX : first_ns + *offset;
}

bool UseColour(const Config& config, int fd) {
  if (config.top_colour == ColourMode::kNever) return false;
  if (config.top_colour == ColourMode::kAlways) return true;
  const char* no_color = std::getenv("NO_COLOR");  // no-color.org: any value but an empty one
  const char* term = std::getenv("TERM");
  return (no_color == nullptr || *no_color == '\0') && ::isatty(fd) != 0 && term != nullptr &&
         std::strcmp(term, "dumb") != 0;
}

int Fail(const absl::Status& status) {
  LogError(StatusText(status));
  return kExitFailure;
}

bool PrintOut(const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      if (errno != EPIPE) LogError(std::string("standard output: ") + std::strerror(errno));
      return false;
    }
    done += static_cast<size_t>(n);
  }
  return true;
}

}  // namespace mycroft
