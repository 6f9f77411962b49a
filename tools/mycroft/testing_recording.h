// SPDX-License-Identifier: Apache-2.0
//
// For tests: writes recordings of made-up jobs.
#ifndef MYCROFT_TOOLS_MYCROFT_TESTING_RECORDING_H_
#define MYCROFT_TOOLS_MYCROFT_TESTING_RECORDING_H_

#include <gtest/gtest.h>

#include <string>

#include "userspace/report/testing/synthetic_job.h"
#include "userspace/store/recording.h"

namespace mycroft {

// 12 s of four ranks; rank 2 is stuck from the sixth second on.
inline SyntheticOptions StuckJobOptions() {
  SyntheticOptions options;
  options.duration_s = 12;
  options.stuck_rank = 2;
  options.stuck_at_s = 6;
  return options;
}

// Only the snapshots of `host` when it is not empty.
inline void WriteRecording(const std::string& path, const SyntheticOptions& options,
                           const std::string& host = "") {
  auto writer = RecordingWriter::Create(path);
  ASSERT_TRUE(writer.ok()) << writer.status();
  SyntheticJob job(options);
  for (;;) {
    auto next = job.Next();
    ASSERT_TRUE(next.ok());
    if (!*next) break;
    if (!host.empty() && (*next)->host != host) continue;
    ASSERT_TRUE((*writer)->Append(**next).ok());
  }
  ASSERT_TRUE((*writer)->Flush().ok());
}

}  // namespace mycroft

#endif  // MYCROFT_TOOLS_MYCROFT_TESTING_RECORDING_H_
