// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "userspace/report/export_formats.h"

namespace mycroft {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kBegin = 9'100'000'000'000'000'000;  // beyond what a JavaScript number holds

TimelineSlice Slice(uint64_t begin, uint64_t length, const std::string& name,
                    const std::string& category) {
  TimelineSlice slice;
  slice.begin_ns = kBegin + begin;
  slice.end_ns = slice.begin_ns + length;
  slice.name = name;
  slice.category = category;
  return slice;
}

Timeline SmallTimeline(int operations = 5) {
  Timeline timeline;
  timeline.begin_ns = kBegin;
  timeline.end_ns = kBegin + 1'000'000'000;
  TimelineSlice incident = Slice(300'000'000, 200'000'000, "slow: GPU of rank 1", "incident");
  incident.args = {
      {"summary", "cycles take 148 ms because of the GPU of rank 1"},
      {"culprit", "GPU of rank 1, host b, pid 2, confidence 93 %, 16.4 GPU-seconds lost"},
      {"evidence", "rank 1 sends late"}};
  timeline.incidents = {TrackKind::kIncidents, "incidents", {incident}};
  for (int32_t r = 0; r < 2; ++r) {
    TimelineRank rank;
    rank.job_rank = r;
    rank.host = "host";
    rank.pid = 100 + r;
    rank.name = "rank " + std::to_string(r) + " (host, pid 1)";
    TimelineTrack ops{TrackKind::kOperations, "world", {}};
    TimelineTrack waits{TrackKind::kWaits, "world: waits", {}};
    for (int i = 0; i < operations; ++i) {
      const auto begin = static_cast<uint64_t>(i) * 1'000'000;
      ops.slices.push_back(Slice(begin, 900'000, "AllReduce", "op"));
      ops.slices.back().args = {{"number", std::to_string(i)}, {"size", "1.0 MiB"}};
      waits.slices.push_back(Slice(begin, 400'000, "recv: waits for the sender", "wait"));
    }
    ops.slices.back().open = true;
    if (r == 1) rank.tracks.push_back(timeline.incidents);
    rank.tracks.push_back(std::move(ops));
    rank.tracks.push_back(std::move(waits));
    timeline.ranks.push_back(std::move(rank));
    timeline.flame.push_back({{timeline.ranks.back().name, "communication", "AllReduce (world)",
                               "channel 0", "recv: waits for the sender"},
                              2'000'000});
  }
  timeline.operations = static_cast<uint64_t>(2 * operations);
  return timeline;
}

std::string Page(const Timeline& timeline, const ExportOptions& options = {}) {
  std::ostringstream out;
  const absl::Status status = WriteHtml(timeline, options, out);
  EXPECT_TRUE(status.ok()) << status;
  return out.str();
}

constexpr char kOpen[] = "<script type=\"application/json\" id=\"data\">";

std::string DataText(const std::string& page) {
  const size_t open = page.find(kOpen);
  if (open == std::string::npos) return "";
  const size_t begin = open + sizeof kOpen - 1;
  return page.substr(begin, page.find("</script>", begin) - begin);
}

nlohmann::json Data(const std::string& page) {
  return nlohmann::json::parse(DataText(page), nullptr, false);
}

TEST(ExportHtmlTest, IsOneFileThatLoadsNothing) {
  const std::string page = Page(SmallTimeline());
  EXPECT_EQ(page.rfind("<!DOCTYPE html>", 0), 0u);
  for (const char* word : {"http:", "https:", " src=", " href=", "@import", "url(", "fetch(",
                           "XMLHttpRequest", "WebSocket", "%%MYCROFT_DATA%%"}) {
    EXPECT_THAT(page, Not(HasSubstr(word)));
  }
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
}

TEST(ExportHtmlTest, DataHoldsEverySlice) {
  const Timeline timeline = SmallTimeline();
  const nlohmann::json data = Data(Page(timeline));
  ASSERT_TRUE(data.is_object());
  EXPECT_EQ(data["begin_ns"], std::to_string(kBegin));
  EXPECT_EQ(data["length_ns"], 1'000'000'000);
  EXPECT_EQ(data["operations"], 10);
  EXPECT_EQ(data["incidents"]["c"], 1);
  EXPECT_EQ(data["flame"].size(), 2u);
  const nlohmann::json& strings = data["strings"];
  ASSERT_EQ(data["ranks"].size(), timeline.ranks.size());
  for (size_t r = 0; r < timeline.ranks.size(); ++r) {
    const nlohmann::json& rank = data["ranks"][r];
    EXPECT_EQ(rank["rank"], timeline.ranks[r].job_rank);
    EXPECT_EQ(strings[rank["name"].get<size_t>()], timeline.ranks[r].name);
    ASSERT_EQ(rank["tracks"].size(), timeline.ranks[r].tracks.size());
    for (size_t t = 0; t < timeline.ranks[r].tracks.size(); ++t) {
      const TimelineTrack& track = timeline.ranks[r].tracks[t];
      const nlohmann::json& d = rank["tracks"][t]["d"];
      ASSERT_EQ(rank["tracks"][t]["c"], track.slices.size());
      size_t at = 0;
      uint64_t begin = kBegin;
      for (const TimelineSlice& slice : track.slices) {
        begin += d[at].get<int64_t>();
        EXPECT_EQ(begin, slice.begin_ns);
        EXPECT_EQ(d[at + 1], slice.end_ns - slice.begin_ns);
        EXPECT_EQ(strings[d[at + 2].get<size_t>()], slice.name);
        EXPECT_EQ(strings[d[at + 3].get<size_t>() / 2], slice.category);
        EXPECT_EQ(d[at + 3].get<size_t>() % 2, slice.open ? 1u : 0u);
        const nlohmann::json& schema = data["schemas"][d[at + 4].get<size_t>()];
        ASSERT_EQ(schema.size(), slice.args.size());
        at += 5;
        for (size_t a = 0; a < slice.args.size(); ++a, ++at) {
          EXPECT_EQ(strings[schema[a].get<size_t>()], slice.args[a].first);
          EXPECT_EQ(strings[d[at].get<size_t>()], slice.args[a].second);
        }
      }
      EXPECT_EQ(at, d.size());
    }
  }
}

TEST(ExportHtmlTest, HostileNamesStayText) {
  Timeline timeline = SmallTimeline();
  const std::string name = "</script><script>alert(1)</script><!--\"\\";
  timeline.ranks[0].name = name;
  timeline.ranks[0].host = "\xff\xfe";
  timeline.ranks[0].tracks[0].slices[0].name = name;
  timeline.note = name;
  const std::string page = Page(timeline);
  EXPECT_THAT(DataText(page), Not(HasSubstr("<")));
  EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
  const nlohmann::json data = Data(page);
  ASSERT_TRUE(data.is_object());
  EXPECT_EQ(data["note"], name);
  EXPECT_EQ(data["strings"][data["ranks"][0]["name"].get<size_t>()], name);
}

TEST(ExportHtmlTest, EmptyTimelineSaysSo) {
  const std::string page = Page(Timeline{});
  EXPECT_THAT(page, HasSubstr("nothing recorded in this window"));
  const nlohmann::json data = Data(page);
  ASSERT_TRUE(data.is_object());
  EXPECT_TRUE(data["ranks"].empty());
}

TEST(ExportHtmlTest, KeepsTheLimitAndSaysWhatIsMissing) {
  const Timeline timeline = SmallTimeline(900);
  const size_t frame = Page(Timeline{}).size();
  const size_t full = Page(timeline).size();
  ASSERT_GT(full, frame + 40'000);
  ExportOptions options;
  size_t last = 0;
  for (const size_t limit : {frame + 2'000, frame + 10'000, full - 1, full}) {
    options.max_bytes = limit;
    const std::string page = Page(timeline, options);
    EXPECT_LE(page.size(), limit);
    EXPECT_GE(page.size(), last);
    last = page.size();
    const nlohmann::json data = Data(page);
    ASSERT_TRUE(data.is_object());
    EXPECT_EQ(data["incidents"]["c"], 1);
    EXPECT_EQ(data["note"].get<std::string>().empty(), limit == full);
  }
  options.max_bytes = frame / 2;
  std::ostringstream out;
  EXPECT_EQ(WriteHtml(timeline, options, out).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(out.str().empty());
}

TEST(ExportHtmlTest, FailingOutputIsAnError) {
  std::ofstream full("/dev/full");
  EXPECT_EQ(WriteHtml(SmallTimeline(), {}, full).code(), absl::StatusCode::kDataLoss);
}

// Pages for the browser test, which sets the folder.
TEST(ExportHtmlTest, WritesPagesForTheBrowser) {
  const char* folder = std::getenv("MYCROFT_BROWSER_PAGES");
  if (folder == nullptr) GTEST_SKIP() << "MYCROFT_BROWSER_PAGES is not set";
  Timeline hostile = SmallTimeline();
  hostile.ranks[0].name = "</script><img onerror=alert(1)>";
  for (const auto& [name, timeline] : {std::pair<std::string, Timeline>{"full", SmallTimeline()},
                                       {"empty", Timeline{}},
                                       {"hostile", hostile}}) {
    std::ofstream out(std::string(folder) + "/" + name + ".html");
    ASSERT_TRUE(WriteHtml(timeline, {}, out).ok());
  }
}

}  // namespace
}  // namespace mycroft
