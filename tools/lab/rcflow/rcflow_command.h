// SPDX-License-Identifier: Apache-2.0
//
// `mycroft-lab rcflow`: a stream over one reliable connection between two RDMA devices
// of this host; a fault generator for the verbs probes. See flow.h.
#ifndef MYCROFT_TOOLS_LAB_RCFLOW_RCFLOW_COMMAND_H_
#define MYCROFT_TOOLS_LAB_RCFLOW_RCFLOW_COMMAND_H_

#include <CLI/CLI.hpp>

namespace mycroft::lab {

// Adds the subcommand. When it was chosen, it runs while `app` parses and leaves its
// exit code in *exit_code: 0 all went well, 1 failure or wrong data, 2 usage, 3 there
// were bad completions. Both must outlive the parse.
void AddRcflowCommand(CLI::App& app, int* exit_code);

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_RCFLOW_RCFLOW_COMMAND_H_
