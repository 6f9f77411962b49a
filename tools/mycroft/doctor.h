// SPDX-License-Identifier: Apache-2.0
//
// The checks of `mycroft doctor`: one per requirement, each with what is lost and
// what to do. They read only; nothing is loaded, attached or changed.
#ifndef MYCROFT_TOOLS_MYCROFT_DOCTOR_H_
#define MYCROFT_TOOLS_MYCROFT_DOCTOR_H_

#include <string>
#include <vector>

#include "userspace/base/config.h"

namespace mycroft {

enum class CheckStatus : uint8_t { kOk, kWarn, kFail };

struct Check {
  std::string id;  // stable, for machines
  CheckStatus status = CheckStatus::kOk;
  std::string found;
  std::string lost;  // empty when ok
  std::string fix;   // may have several lines
};

struct DoctorInput {
  std::string root;  // "" is this host; tests give a tree
  std::string bin_directory;
  std::string plugin;  // configured path or empty
  GetEnv getenv;
};

std::vector<Check> RunChecks(const DoctorInput& input);

std::string ChecksText(const std::vector<Check>& checks, bool colour);
std::string ChecksJson(const std::vector<Check>& checks);

// 0: all fine, 4: something is lost, 1: the same when `strict`.
int ChecksExitCode(const std::vector<Check>& checks, bool strict);

}  // namespace mycroft

#endif  // MYCROFT_TOOLS_MYCROFT_DOCTOR_H_
