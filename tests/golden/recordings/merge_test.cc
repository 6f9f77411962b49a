// SPDX-License-Identifier: Apache-2.0
//
// A recording of four ranks, cut in two as if they had run on two hosts with clocks
// 43 days apart: `mycroft merge` must bring them together again, and the verdict
// must be that of the uncut recording.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "userspace/align/host_aligner.h"
#include "userspace/attribute/pipeline.h"
#include "userspace/store/recording.h"

namespace mycroft {
namespace {

constexpr int64_t kShiftNs = 3'700'000'000'000'000;

std::vector<Incident> Verdict(const std::string& file) {
  auto reader = RecordingReader::Open(file);
  EXPECT_TRUE(reader.ok()) << reader.status();
  Pipeline pipeline;
  while (reader.ok()) {
    auto snapshot = (*reader)->Next();
    EXPECT_TRUE(snapshot.ok()) << snapshot.status();
    if (!snapshot.ok() || !*snapshot) break;
    pipeline.Feed(**snapshot);
  }
  pipeline.Finish();
  return pipeline.incidents();
}

TEST(Merge, TwoHostsWithTheirOwnClocksGiveTheVerdictOfOne) {
  const char* command = std::getenv("MYCROFT_COMMAND");
  const char* golden = std::getenv("MYCROFT_GOLDEN");
  ASSERT_TRUE(command != nullptr && golden != nullptr);
  char name[] = "/tmp/mycroft-merge-XXXXXX";
  ASSERT_NE(mkdtemp(name), nullptr);
  const std::string folder = name, whole = std::string(golden) + "/gpu-slow.mycroft";
  {
    auto reader = RecordingReader::Open(whole);
    ASSERT_TRUE(reader.ok()) << reader.status();
    auto first = RecordingWriter::Create(folder + "/a.mycroft");
    auto second = RecordingWriter::Create(folder + "/b.mycroft");
    ASSERT_TRUE(first.ok() && second.ok());
    std::map<ProcessKey, int> side;
    for (;;) {
      auto next = (*reader)->Next();
      ASSERT_TRUE(next.ok());
      if (!*next) break;
      Snapshot a = **next, b = **next;
      a.host = a.host_id = "a";
      b.host = b.host_id = "b";
      a.processes.clear();
      b.processes.clear();
      for (ProcessSample& process : (*next)->processes) {
        for (const CommSample& comm : process.comms) side[process.key] = comm.rank / 2;
        (side[process.key] == 0 ? a : b).processes.push_back(process);
      }
      ShiftSnapshot(kShiftNs, &b);
      ASSERT_TRUE((*first)->Append(a).ok());
      ASSERT_TRUE((*second)->Append(b).ok());
    }
  }
  const std::string merged = folder + "/merged.mycroft";
  const int status = std::system((std::string(command) + " merge " + folder + "/a.mycroft " + folder +
                                  "/b.mycroft -o " + merged + " 2>" + folder + "/log")
                                     .c_str());
  EXPECT_EQ(WEXITSTATUS(status), 0);
  // How well the second host's clock is known is said, and is in the recording.
  const auto info = RecordingReader::Open(merged);
  ASSERT_TRUE(info.ok());
  ASSERT_EQ((*info)->info().clocks.size(), 1u);
  EXPECT_EQ((*info)->info().clocks[0].rfind("clock of b: \u00b1", 0), 0u)
      << (*info)->info().clocks[0];
  std::vector<Incident> one = Verdict(whole), two = Verdict(merged);
  ASSERT_EQ(one.size(), 1u);
  ASSERT_EQ(two.size(), 1u);
  ASSERT_EQ(two[0].culprits.size(), 1u);
  EXPECT_EQ(two[0].culprits[0].rank, one[0].culprits[0].rank);
  EXPECT_EQ(two[0].culprits[0].component, one[0].culprits[0].component);
  EXPECT_EQ(two[0].culprits[0].host, "b");
  EXPECT_EQ(two[0].victims, one[0].victims);
  EXPECT_NEAR(static_cast<double>(two[0].onset_ns), static_cast<double>(one[0].onset_ns), 5e6);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace mycroft
