// SPDX-License-Identifier: Apache-2.0
#include "userspace/report/top/feed.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "userspace/report/testing/synthetic_job.h"
#include "userspace/report/top/app.h"
#include "userspace/report/top/job_json.h"
#include "userspace/report/top/rows.h"
#include "userspace/report/top/testing.h"

namespace mycroft {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

SyntheticOptions StuckJob() {
  SyntheticOptions options;
  options.duration_s = 12;
  options.stuck_rank = 2;
  options.stuck_at_s = 6;
  return options;
}

class RecordingFeedTest : public ::testing::Test {
 protected:
  void Settle() {
    for (int i = 0; i < 10'000 && !feed_.settled(); ++i) feed_.Poll(1'000'000);
    ASSERT_TRUE(feed_.settled());
  }
  uint64_t Now() { return feed_.Data()->job.t_ns; }
  SyntheticOptions options_ = StuckJob();
  SyntheticJob job_{options_};
  RecordingFeed feed_{job_, "x.mycroft", options_.start_ns, options_.start_ns + 12 * kSecond, {}};
};

TEST_F(RecordingFeedTest, BeginsAtTheEndAndFindsTheIncident) {
  EXPECT_LT(feed_.Source().reading, 1);
  Settle();
  EXPECT_EQ(feed_.Source().reading, 1);
  EXPECT_GE(Now(), options_.start_ns + 11 * kSecond);
  EXPECT_EQ(feed_.Data()->job.processes, 4u);
  const auto data = feed_.Data();
  ASSERT_FALSE(OpenIncidents(*data).empty());
  EXPECT_EQ(OpenIncidents(*data)[0]->kind, IncidentKind::kStuck);
}

TEST_F(RecordingFeedTest, GoesBackToBeforeTheIncident) {
  Settle();
  const uint64_t end = Now();
  feed_.Seek(options_.start_ns + 4 * kSecond);
  EXPECT_TRUE(feed_.settled());
  EXPECT_NEAR(static_cast<double>(Now() - options_.start_ns), 4e9, 2e8);
  EXPECT_TRUE(feed_.Data()->incidents.empty());
  feed_.Seek(end);
  EXPECT_EQ(Now(), end);
  EXPECT_EQ(feed_.Data()->incidents.size(), 1u);
  feed_.Seek(0);
  EXPECT_EQ(Now(), feed_.Source().first_ns);
}

TEST(RecordingFeed, KeepsWithinItsBudget) {
  SyntheticOptions options = StuckJob();
  options.stuck_rank = -1;
  SyntheticJob job(options);
  RecordingFeed feed(job, "x", options.start_ns, options.start_ns + 12 * kSecond, {}, 100'000);
  while (!feed.settled()) feed.Poll(50'000'000);
  // Some frame is near every second all the same.
  for (uint64_t s = 0; s < 11; ++s) {
    const uint64_t want = options.start_ns + s * kSecond;
    feed.Seek(want);
    const double off = static_cast<double>(feed.Data()->job.t_ns) - static_cast<double>(want);
    EXPECT_LT(std::abs(off), 4e9) << s;
  }
}

TEST(RecordingFeed, AnErrorOfTheSourceIsShown) {
  class Broken : public SnapshotSource {
    absl::StatusOr<std::optional<Snapshot>> Next() override {
      return absl::DataLossError("page 7 is damaged");
    }
  } broken;
  RecordingFeed feed(broken, "x", 5, 10, {});
  feed.Poll(1);
  EXPECT_TRUE(feed.settled());
  EXPECT_EQ(feed.Source().problem, "page 7 is damaged");
  feed.Seek(7);
  feed.Poll(1);
  EXPECT_NE(feed.Data(), nullptr);
}

// Gives the snapshots of a job without waiting, then blocks like a live source.
class FakeLive : public SnapshotSource {
 public:
  explicit FakeLive(const SyntheticOptions& options) : job_(options) {}
  absl::StatusOr<std::optional<Snapshot>> Next() override {
    absl::StatusOr<std::optional<Snapshot>> next = job_.Next();
    if (next.ok() && *next) return next;
    drained = true;
    while (!interrupted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return std::optional<Snapshot>();
  }
  std::atomic<bool> drained{false}, interrupted{false};

 private:
  SyntheticJob job_;
};

TEST(LiveFeed, SamplesInTheBackgroundAndStops) {
  FakeLive live(StuckJob());
  LiveFeed feed(
      live, [&] { live.interrupted = true; }, {}, 100'000'000);
  while (!live.drained) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(feed.Poll(0));
  EXPECT_FALSE(feed.Poll(0)) << "nothing new";
  EXPECT_EQ(feed.Data()->job.processes, 4u);
  EXPECT_EQ(feed.Data()->incidents.size(), 1u);
  EXPECT_TRUE(feed.Source().live);
}

TEST(TopJson, IsTheVerdictsAndTheJob) {
  const nlohmann::json json = nlohmann::json::parse(TopJson(StuckSample()));
  EXPECT_EQ(json.at("schema_version"), 1);
  EXPECT_EQ(json.at("incidents").size(), 2u);
  EXPECT_TRUE(json["incidents"][1]["cleared_ns"].is_null());
  EXPECT_EQ(json.at("blind_spots").size(), 1u);
  const nlohmann::json& job = json.at("job");
  EXPECT_EQ(job["t_ns"], StuckSample().job.t_ns);
  EXPECT_EQ(job["lost"]["stale_handle"], 2);
  EXPECT_EQ(job["comms"].size(), 3u);
  EXPECT_EQ(job["comms"][0]["ranks"][2]["wait"], "send_gpu");
  EXPECT_EQ(job["comms"][0]["ranks"][2]["flows"].size(), 4u);
}

TEST(TopJson, SurvivesBytesThatAreNotUtf8AndNumbersThatAreNone) {
  TopData data = StuckSample();
  data.job.comms[0].name = "\xff\xfe";
  data.job.comms[0].ranks[0].bytes_per_s = 0.0 / 0.0;
  EXPECT_FALSE(nlohmann::json::parse(TopJson(data), nullptr, false).is_discarded());
}

TEST(SaveSnapshot, NeverOverwrites) {
  char name[] = "/tmp/mycroft-top-XXXXXX";
  const std::string directory = ::mkdtemp(name);
  const auto first = SaveSnapshot(StuckSample(), LiveSample(), {}, 80, directory);
  const auto second = SaveSnapshot(StuckSample(), LiveSample(), {}, 80, directory);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(*first, *second);
  std::ifstream file(*first);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(text.find("C STUCK for 12.3s: rank 2 GPU"), std::string::npos);
  EXPECT_NE(text.find("nothing is posted and"), std::string::npos);
  std::filesystem::remove_all(directory);
  EXPECT_FALSE(SaveSnapshot(StuckSample(), LiveSample(), {}, 80, directory).ok());
}

}  // namespace
}  // namespace mycroft
