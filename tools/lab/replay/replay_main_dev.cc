// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/replay/replay_command.h"

int main(int argc, char** argv) {
  CLI::App app("replay");
  int exit_code = 0;
  mycroft::AddReplayCommand(app, &exit_code);
  app.require_subcommand(1);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  return exit_code;
}
