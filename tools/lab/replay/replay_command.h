// SPDX-License-Identifier: Apache-2.0
//
// `mycroft-lab replay DIR`: recorded profiler callbacks -> the built plugin ->
// its boards -> the live source -> the pipeline -> the verdict.
#ifndef MYCROFT_TOOLS_LAB_REPLAY_REPLAY_COMMAND_H_
#define MYCROFT_TOOLS_LAB_REPLAY_REPLAY_COMMAND_H_

#include <CLI/CLI.hpp>

namespace mycroft {

// Adds the subcommand. When it was chosen, it runs while `app` parses and leaves
// its exit code in *exit_code: 0 no incident, 1 failure, 2 usage, 3 an incident
// was found, 5 no board was seen. Both must outlive the parse.
void AddReplayCommand(CLI::App& app, int* exit_code);

}  // namespace mycroft

#endif  // MYCROFT_TOOLS_LAB_REPLAY_REPLAY_COMMAND_H_
