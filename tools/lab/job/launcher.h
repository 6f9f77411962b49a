// SPDX-License-Identifier: Apache-2.0
//
// Starts one process per rank, does to them what only an outsider can do (stop,
// kill, starve), keeps the truth file, and watches how they end.
#ifndef MYCROFT_TOOLS_LAB_JOB_LAUNCHER_H_
#define MYCROFT_TOOLS_LAB_JOB_LAUNCHER_H_

#include <string>

#include "tools/lab/job/config.h"

namespace mycroft::lab {

struct LaunchOptions {
  std::string exe;         // program to start with `rank ...`; empty: this one
  std::string truth_path;  // empty: none
  bool quiet = false;
  bool json = false;      // the summary as JSON on stdout, and nothing else there
  int report_every = 20;  // iterations per line
};

// Blocks until the job is over. Returns the exit status of the command: 0 when every
// rank finished with exact sums, or the job was told to stop by its duration or a
// signal and nothing failed; else 1. `config` must be complete (Complete()).
int RunJob(const JobConfig& config, const LaunchOptions& options);

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_JOB_LAUNCHER_H_
