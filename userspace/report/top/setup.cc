// SPDX-License-Identifier: Apache-2.0
#include "userspace/report/top/setup.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "userspace/base/units.h"

namespace mycroft {

std::vector<SetupRow> SetupRows(const TopState& state) {
  return {
      {"color", state.colour ? "yes" : "no", "severity is always shown as a letter, too"},
      {"ascii", state.ascii ? "yes" : "no", "for terminals without line drawing"},
      {"refresh", ExactDuration(state.refresh_ns), "how often the screen is drawn"},
      {"sort", ToString(state.sort), "order of the ranks"},
      {"tree", state.tree ? "yes" : "no", "ranks below their communicator"},
  };
}

void ChangeSetup(TopState& state, int by) {
  switch (state.setup_row) {
    case 0:
      state.colour = !state.colour;
      break;
    case 1:
      state.ascii = !state.ascii;
      break;
    case 2: {
      const uint64_t next = by > 0 ? state.refresh_ns * 2 : state.refresh_ns / 2;
      if (next >= 100'000'000 && next <= 60'000'000'000) state.refresh_ns = next;
      break;
    }
    case 3:
      state.sort = static_cast<TopSort>((static_cast<int>(state.sort) + by + 6) % 6);
      break;
    default:
      state.tree = !state.tree;
      break;
  }
}

std::string SetupYaml(const TopState& state) {
  const auto yes = [](bool value) { return value ? "true" : "false"; };
  return "# Written by the setup screen of mycroft top.\ntop:\n  color: " +
         std::string(state.colour ? "auto" : "never") + "\n  ascii: " + yes(state.ascii) +
         "\n  refresh: " + ExactDuration(state.refresh_ns) + "\n  sort: " + ToString(state.sort) +
         "\n  tree: " + yes(state.tree) + "\n";
}

absl::Status SaveSetup(const TopState& state, const std::string& path) {
  namespace fs = std::filesystem;
  if (path.empty()) {
    return absl::FailedPreconditionError("neither XDG_CONFIG_HOME nor HOME is set");
  }
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  if (error) return absl::PermissionDeniedError(path + ": " + error.message());
  const std::string draft = path + ".new";
  {
    std::ofstream file(draft, std::ios::trunc);
    file << SetupYaml(state);
    file.close();
    if (!file) return absl::PermissionDeniedError(draft + ": " + std::strerror(errno));
  }
  fs::rename(draft, path, error);
  if (error) return absl::PermissionDeniedError(path + ": " + error.message());
  return absl::OkStatus();
}

}  // namespace mycroft
