// SPDX-License-Identifier: Apache-2.0
//
// The verbs. Each returns the exit code and has said on standard error what went
// wrong; results go to standard output. One thread.
#ifndef MYCROFT_TOOLS_MYCROFT_VERBS_H_
#define MYCROFT_TOOLS_MYCROFT_VERBS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "tools/mycroft/options.h"

namespace CLI {
class App;
}  // namespace CLI

namespace mycroft {

// Parses, dispatches; catches what libraries throw.
int RunMycroft(int argc, char** argv);

int RunCommand(const Config& config, const Options& options);  // does not return when it works
int RunDoctor(const Config& config, const Options& options);
int RunRecord(const Config& config, const Options& options);
int RunTopCommand(const Config& config, const Options& options);
int RunDiagnose(const Config& config, const Options& options);
int RunExport(const Config& config, const Options& options);
int RunMerge(const Config& config, const Options& options);
int RunVersion(const Config& config, const Options& options);
int RunCompletion(const CLI::App& app, const Options& options);
int RunMan(const CLI::App& app, const Options& options);

// "5000000000" (nanoseconds of the recording's clock), "10s" (from `first_ns`) or
// "-10s" (before `last_ns`).
[[nodiscard]] absl::StatusOr<uint64_t> ParseTimePoint(const std::string& text, uint64_t first_ns,
                                                      uint64_t last_ns);

// Colours on standard output: never with --no-color or NO_COLOR, always if so
// configured, else on a terminal.
bool UseColour(const Config& config, int fd);

// Says the error; the exit code that goes with it.
int Fail(const absl::Status& status);

// Writes all of it; false (said) when it cannot, for instance into a full disk.
bool PrintOut(const std::string& text);

}  // namespace mycroft

#endif  // MYCROFT_TOOLS_MYCROFT_VERBS_H_
