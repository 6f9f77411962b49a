// SPDX-License-Identifier: Apache-2.0
#include "tools/mycroft/watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tools/mycroft/merge.h"

namespace mycroft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Kind = IncidentEvent::Kind;

std::vector<Kind> Kinds(const std::vector<IncidentEvent>& events) {
  std::vector<Kind> kinds;
  for (const IncidentEvent& event : events) kinds.push_back(event.kind);
  return kinds;
}

Incident Stuck() {
  Incident incident;
  incident.id = 1;
  incident.onset_ns = 1'000'000'000;
  incident.summary = "rank 0 waits\x1b[2J";
  return incident;
}

TEST(IncidentTracker, SaysWhatMattersAndNothingTwice) {
  IncidentTracker tracker;
  Incident incident = Stuck();
  EXPECT_THAT(Kinds(tracker.Update({incident})), ElementsAre(Kind::kOpened));
  EXPECT_TRUE(tracker.Update({incident}).empty());
  Culprit culprit;
  culprit.rank = 3;
  culprit.component = Component::kGpu;
  incident.culprits = {culprit};
  EXPECT_THAT(Kinds(tracker.Update({incident})), ElementsAre(Kind::kChanged));
  incident.culprits[0].gpu_seconds_lost = 7;
  incident.evidence.push_back("more");
  EXPECT_TRUE(tracker.Update({incident}).empty()) << "growing numbers are no event";
  incident.cleared_ns = 5'000'000'000;
  EXPECT_THAT(Kinds(tracker.Update({incident})), ElementsAre(Kind::kCleared));
  EXPECT_TRUE(tracker.Update({incident}).empty());
  incident.cleared_ns.reset();
  EXPECT_THAT(Kinds(tracker.Update({incident})), ElementsAre(Kind::kOpened));
  Incident brief = Stuck();
  brief.id = 2;
  brief.cleared_ns = 2'000'000'000;
  EXPECT_THAT(Kinds(tracker.Update({incident, brief})), ElementsAre(Kind::kOpened, Kind::kCleared));
}

TEST(IncidentTracker, StoresAtMostOnceASecondButEventsAtOnce) {
  constexpr uint64_t kSecond = 1'000'000'000;
  IncidentTracker tracker;
  Incident incident = Stuck();
  EXPECT_EQ(tracker.Changed({incident}, 10 * kSecond, kSecond).size(), 1u);
  EXPECT_EQ(tracker.Changed({incident}, 12 * kSecond, kSecond).size(), 0u);
  incident.evidence.push_back("a");
  EXPECT_EQ(tracker.Changed({incident}, 12 * kSecond, kSecond).size(), 1u);
  incident.evidence.push_back("b");
  EXPECT_EQ(tracker.Changed({incident}, 12 * kSecond + 1, kSecond).size(), 0u);
  EXPECT_EQ(tracker.Changed({incident}, 12 * kSecond + 1, 0).size(), 1u);
  incident.cleared_ns = 13 * kSecond;
  EXPECT_EQ(tracker.Changed({incident}, 12 * kSecond + 2, kSecond).size(), 1u);
}

TEST(Events, AsTextAndAsJson) {
  IncidentEvent event{Kind::kOpened, Stuck()};
  const std::string text = EventText(event, 0);
  EXPECT_THAT(text, HasSubstr("STUCK #1: culprit not known: not enough evidence; rank 0 waits"));
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  event.incident.cleared_ns = 3'500'000'000;
  event.kind = Kind::kCleared;
  EXPECT_THAT(EventText(event, 0), HasSubstr("CLEARED #1 after 2.5s"));
  const nlohmann::json json = nlohmann::json::parse(EventJson(event, 7, 8));
  EXPECT_EQ(json["schema_version"], 1);
  EXPECT_EQ(json["event"], "cleared");
  EXPECT_EQ(json["t_ns"], 7);
  EXPECT_EQ(json["incident"]["cleared_ns"], 3'500'000'000u);
}

// Snapshots from a list.
class ListSource : public SnapshotSource {
 public:
  ListSource(const std::string& host, const std::vector<uint64_t>& times) {
    for (uint64_t t : times) {
      Snapshot snapshot;
      snapshot.host = snapshot.host_id = host;
      snapshot.t_ns = snapshot.wall_ns = t;
      list_.push_back(snapshot);
    }
  }
  absl::StatusOr<std::optional<Snapshot>> Next() override {
    if (at_ == list_.size()) return std::optional<Snapshot>();
    return std::optional<Snapshot>(list_[at_++]);
  }

 private:
  std::vector<Snapshot> list_;
  size_t at_ = 0;
};

absl::Status MergeAll(std::vector<ListSource> sources, std::vector<std::string>& order) {
  std::vector<MergeInput> inputs;
  for (size_t i = 0; i < sources.size(); ++i) {
    inputs.push_back({"file" + std::to_string(i), &sources[i]});
  }
  return Merge(inputs, [&](const Snapshot& snapshot) {
    order.push_back(snapshot.host + std::to_string(snapshot.t_ns));
    return absl::OkStatus();
  });
}

TEST(Merge, InterleavesHostsByTime) {
  std::vector<std::string> order;
  EXPECT_TRUE(MergeAll({{"a", {1, 4, 9}}, {"b", {2, 3, 5}}}, order).ok());
  EXPECT_THAT(order, ElementsAre("a1", "b2", "b3", "a4", "b5", "a9"));
}

TEST(Merge, RecordingsOfOneHostMayFollowEachOther) {
  std::vector<std::string> order;
  EXPECT_TRUE(MergeAll({{"a", {5, 6}}, {"a", {1, 2}}, {"b", {4}}}, order).ok());
  EXPECT_THAT(order, ElementsAre("a1", "a2", "b4", "a5", "a6"));
}

TEST(Merge, OverlapOnOneHostIsRefusedWithBothNames) {
  for (const std::vector<uint64_t>& second :
       {std::vector<uint64_t>{2, 3}, std::vector<uint64_t>{1, 4}, std::vector<uint64_t>{1, 10}}) {
    std::vector<std::string> order;
    const absl::Status status = MergeAll({{"a", {1, 5, 9}}, {"a", second}}, order);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    const std::string text(status.message());
    EXPECT_THAT(text, HasSubstr("file0"));
    EXPECT_THAT(text, HasSubstr("file1"));
    EXPECT_THAT(text, HasSubstr("'a'"));
  }
}

TEST(Merge, AnErrorNamesTheInput) {
  class Broken : public SnapshotSource {
    absl::StatusOr<std::optional<Snapshot>> Next() override { return absl::DataLossError("bad"); }
  } broken;
  const absl::Status status =
      Merge({{"x.mycroft", &broken}}, [](const Snapshot&) { return absl::OkStatus(); });
  EXPECT_EQ(status, absl::DataLossError("x.mycroft: bad"));
}

}  // namespace
}  // namespace mycroft
