// SPDX-License-Identifier: Apache-2.0
//
// mycroft-lab: jobs and recorded traces to test Mycroft against.
#include "CLI/CLI.hpp"
#include "tools/lab/job/job_command.h"
#ifdef MYCROFT_LAB_HAS_REPLAY
#include "tools/lab/replay/replay_command.h"
#endif
#ifdef MYCROFT_LAB_HAS_RCFLOW
#include "tools/lab/rcflow/rcflow_command.h"
#endif

int main(int argc, char** argv) {
  CLI::App app{"Jobs and recorded traces to test Mycroft against", "mycroft-lab"};
  app.set_version_flag("--version", std::string("mycroft-lab " MYCROFT_VERSION));
  app.require_subcommand(1);
  int exit_code = 0;
  mycroft::lab::AddJobCommand(app, &exit_code);
#ifdef MYCROFT_LAB_HAS_REPLAY
  mycroft::AddReplayCommand(app, &exit_code);
#endif
#ifdef MYCROFT_LAB_HAS_RCFLOW
  mycroft::lab::AddRcflowCommand(app, &exit_code);
#endif
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    // 0: --help or --version was printed. Everything else is wrong usage.
    return app.exit(e) == 0 ? 0 : 2;
  }
  return exit_code;
}
