// SPDX-License-Identifier: Apache-2.0
//
// `mycroft-lab job`: options and entry. Also the hidden `mycroft-lab rank`, by which
// the launcher starts a rank.
#ifndef MYCROFT_TOOLS_LAB_JOB_JOB_COMMAND_H_
#define MYCROFT_TOOLS_LAB_JOB_JOB_COMMAND_H_

#include "CLI/CLI.hpp"

namespace mycroft::lab {

// Sets *exit_code when one of the two was run.
void AddJobCommand(CLI::App& app, int* exit_code);

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_JOB_JOB_COMMAND_H_
