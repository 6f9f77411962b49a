// SPDX-License-Identifier: Apache-2.0
//
// The setup screen: the preferences of top, and the file that keeps them.
#ifndef MYCROFT_USERSPACE_REPORT_TOP_SETUP_H_
#define MYCROFT_USERSPACE_REPORT_TOP_SETUP_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "userspace/report/top/state.h"

namespace mycroft {

inline constexpr int kSetupRows = 5;

struct SetupRow {
  std::string name, value, help;
};
std::vector<SetupRow> SetupRows(const TopState& state);

// Moves the value of the row under the cursor forward (1) or back (-1).
void ChangeSetup(TopState& state, int by);

// The preferences as a user's configuration file.
std::string SetupYaml(const TopState& state);

// Writes it to `path`, with the folders above. A file that is there is replaced as a whole.
[[nodiscard]] absl::Status SaveSetup(const TopState& state, const std::string& path);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_REPORT_TOP_SETUP_H_
