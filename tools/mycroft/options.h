// SPDX-License-Identifier: Apache-2.0
//
// The option table: everything that `--help`, the manual pages, the completions and
// the parser know of the command comes from MakeApp. Values only; one thread.
#ifndef MYCROFT_TOOLS_MYCROFT_OPTIONS_H_
#define MYCROFT_TOOLS_MYCROFT_OPTIONS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "userspace/base/config.h"

namespace CLI {
class App;
}  // namespace CLI

namespace mycroft {

struct Options {
  std::string verb;  // of the sub-command that was given; empty: none

  std::string config_file;
  bool print_config = false;
  bool quiet = false;
  bool verbose = false;

  // Configuration keys that flags have set: key -> {flag, value}.
  std::map<std::string, std::pair<std::string, std::string>> overrides;
  bool no_color = false;

  bool json = false;
  std::vector<uint32_t> pids;
  std::string file;                  // top, diagnose, export
  std::string output;                // record, export, merge
  std::string duration;              // record, diagnose
  std::vector<std::string> command;  // run
  bool chain = false;                // run
  bool strict = false;               // doctor, record, top, diagnose
  bool append = false;               // record
  bool once = false;                 // top
  std::string wait;                  // top
  std::string format;                // export
  std::string since, until;          // export
  std::string max_bytes;             // export
  std::vector<std::string> inputs;   // merge
  std::string shell;                 // completion
  std::string man_directory;
};

// One verb, as `--help` and its manual page describe it.
struct VerbDoc {
  std::string name;
  std::string summary;                                        // one line, without a full stop
  std::string description;                                    // paragraphs
  std::vector<std::pair<std::string, std::string>> examples;  // command, what it does
  bool hidden = false;
};
const std::vector<VerbDoc>& VerbDocs();

// The exit codes and what they mean.
const std::vector<std::pair<int, std::string>>& ExitCodeDocs();

// The parser, which writes into `options`; that must outlive it.
std::unique_ptr<CLI::App> MakeApp(Options& options);

// Parses a command line. `exit_code` is set when there is nothing more to do: help was
// printed, or the command line is wrong (said on standard error).
void ParseCommandLine(CLI::App& app, Options& options, int argc, const char* const* argv,
                      std::optional<int>& exit_code);

// Files, environment, then the flags. InvalidArgument or NotFound: wrong usage.
[[nodiscard]] absl::StatusOr<Config> MakeConfig(const Options& options, const GetEnv& getenv);

}  // namespace mycroft

#endif  // MYCROFT_TOOLS_MYCROFT_OPTIONS_H_
