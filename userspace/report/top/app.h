// SPDX-License-Identifier: Apache-2.0
//
// The loop of the interactive `top`: draws what the feed has, gives keys to the
// state. One thread; returns when the user or a signal wants it to end.
#ifndef MYCROFT_USERSPACE_REPORT_TOP_APP_H_
#define MYCROFT_USERSPACE_REPORT_TOP_APP_H_

#include <functional>
#include <string>

#include "userspace/report/top/feed.h"
#include "userspace/report/top/screen.h"
#include "userspace/report/top/state.h"

namespace mycroft {

struct TopPaths {
  std::string snapshot_directory = ".";
  std::string preferences;  // the user's configuration file; empty: none
};

void RunTop(TopFeed& feed, Screen& screen, TopState& state, const TopPaths& paths);

// Writes the frame, not cut, and the evidence of all incidents to
// DIRECTORY/mycroft-top-<time>.txt, never over a file that is there. Returns its path.
[[nodiscard]] absl::StatusOr<std::string> SaveSnapshot(const TopData& data, const TopSource& source,
                                                       const TopState& state, size_t width,
                                                       const std::string& directory);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_REPORT_TOP_APP_H_
