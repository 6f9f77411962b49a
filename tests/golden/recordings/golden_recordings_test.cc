// SPDX-License-Identifier: Apache-2.0
//
// Replays the recordings beside this file and compares the verdicts, letter by
// letter, with those kept. After a change that is meant to alter them, run with
// MYCROFT_UPDATE_GOLDEN=1 and read the difference.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "userspace/attribute/pipeline.h"
#include "userspace/report/verdict.h"
#include "userspace/store/recording.h"

namespace mycroft {
namespace {

std::vector<std::string> Recordings() {
  std::vector<std::string> files;
  const char* folder = std::getenv("MYCROFT_GOLDEN");
  if (folder == nullptr) return files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".mycroft") files.push_back(entry.path());
  }
  return files;
}

TEST(GoldenRecordings, GiveTheVerdictsThatWereKept) {
  std::vector<std::string> files = Recordings();
  ASSERT_GE(files.size(), 5u) << "MYCROFT_GOLDEN must name the folder of the recordings";
  for (const std::string& file : files) {
    SCOPED_TRACE(file);
    auto reader = RecordingReader::Open(file);
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_FALSE((*reader)->info().truncated) << (*reader)->info().problem;
    Pipeline pipeline;
    size_t snapshots = 0;
    for (;;) {
      auto snapshot = (*reader)->Next();
      ASSERT_TRUE(snapshot.ok()) << snapshot.status();
      if (!*snapshot) break;
      ++snapshots;
      pipeline.Feed(**snapshot);
    }
    pipeline.Finish();
    EXPECT_GT(snapshots, 20u);
    std::string verdict = VerdictJson(pipeline.incidents(), pipeline.BlindSpots()) + "\n";
    std::string kept_file = file + ".json";
    if (std::getenv("MYCROFT_UPDATE_GOLDEN") != nullptr) std::ofstream(kept_file) << verdict;
    std::ifstream in(kept_file);
    std::stringstream kept;
    kept << in.rdbuf();
    EXPECT_EQ(verdict, kept.str());
  }
}

}  // namespace
}  // namespace mycroft
