// SPDX-License-Identifier: Apache-2.0
#include "tests/golden/traces/judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mycroft {
namespace {

using ::testing::HasSubstr;

// A fault of rank 2 at 10 s in iteration 3; iterations of 40 ms before it.
Truth Fault(const std::string& verdict, const std::string& component,
            uint64_t iteration_ns = 300'000'000) {
  nlohmann::json iters = nlohmann::json::array();
  uint64_t t = 10'000'000'000 - 3 * 40'000'000;
  for (int i = 0; i < 10; ++i) {
    const uint64_t took = i < 3 ? 40'000'000 : iteration_ns;
    iters.push_back({t, t + 1, took == 0 ? 0 : t + took});
    t += took;
    if (took == 0) break;
  }
  const nlohmann::json root = {
      {"expected",
       {{"verdict", verdict},
        {"culprits", nlohmann::json::array({{{"rank", 2}, {"component", component}}})}}},
      {"faults", nlohmann::json::array({{{"component", component},
                                         {"onset", 10'000'000'000u},
                                         {"clear", 20'000'000'000u},
                                         {"from_iter", 3},
                                         {"to_iter", 10}}})},
      {"ranks", nlohmann::json::array({{{"rank", 2}, {"iters", iters}}})}};
  absl::StatusOr<Truth> truth = ParseTruth(root.dump());
  EXPECT_TRUE(truth.ok()) << truth.status();
  return *truth;
}

Truth Healthy() {
  absl::StatusOr<Truth> truth =
      ParseTruth(R"({"expected":{"verdict":"healthy","culprits":[]},"faults":[],"ranks":[]})");
  EXPECT_TRUE(truth.ok());
  return *truth;
}

nlohmann::json Incident(const std::string& kind, int rank, const std::string& component,
                        double onset_s = 10, double verdict_s = 11) {
  nlohmann::json culprits = nlohmann::json::array();
  if (rank >= -1) culprits.push_back({{"rank", rank}, {"component", component}, {"confidence", 1}});
  return {{"kind", kind},
          {"onset_ns", static_cast<uint64_t>(onset_s * 1e9)},
          {"detected_ns", static_cast<uint64_t>(verdict_s * 1e9)},
          {"verdict_ns", static_cast<uint64_t>(verdict_s * 1e9)},
          {"cleared_ns", nullptr},
          {"culprits", culprits}};
}
nlohmann::json Nobody(const std::string& kind) { return Incident(kind, -2, ""); }

Judgement Of(const Truth& truth, std::vector<nlohmann::json> incidents, int missing = -1) {
  const nlohmann::json root = {{"schema_version", 1}, {"incidents", incidents}};
  absl::StatusOr<Judgement> judgement = Judge(truth, root.dump(), {missing, 100'000'000});
  EXPECT_TRUE(judgement.ok()) << judgement.status();
  return *judgement;
}

TEST(JudgeTest, TruthIsRead) {
  const Truth truth = Fault("slow", "gpu");
  EXPECT_EQ(truth.verdict, "slow");
  ASSERT_EQ(truth.culprits.size(), 1u);
  EXPECT_EQ(truth.culprits[0].rank, 2);
  EXPECT_EQ(truth.onset_ns, 10'000'000'000u);
  EXPECT_EQ(truth.clear_ns, 20'000'000'000u);
  EXPECT_EQ(truth.iteration_ns, 40'000'000u);
  EXPECT_EQ(truth.fifth_ns, 10'000'000'000u + 5 * 300'000'000u);
  EXPECT_FALSE(truth.stopped);
  EXPECT_TRUE(Fault("hang", "gpu", 0).stopped);
  EXPECT_TRUE(Fault("slow", "gpu", 1'100'000'000).stopped);
  EXPECT_FALSE(ParseTruth("{}").ok());
  EXPECT_FALSE(ParseTruth("x").ok());
}

TEST(JudgeTest, Healthy) {
  EXPECT_EQ(Of(Healthy(), {}).outcome, Outcome::kRight);
  EXPECT_EQ(Of(Healthy(), {Nobody("slow")}).outcome, Outcome::kWrong);
}

TEST(JudgeTest, RightNeedsKindRankAndComponent) {
  const Truth truth = Fault("slow", "gpu");
  const Judgement right = Of(truth, {Incident("slow", 2, "gpu")});
  EXPECT_EQ(right.outcome, Outcome::kRight) << right.why;
  EXPECT_DOUBLE_EQ(*right.onset_s, 0);
  EXPECT_DOUBLE_EQ(*right.verdict_s, 1);
  EXPECT_FALSE(right.cleared_s);
  EXPECT_THAT(right.verdict, HasSubstr("slow: rank 2 gpu (1.00)"));

  EXPECT_EQ(Of(truth, {Incident("slow", 1, "gpu")}).outcome, Outcome::kWrong);
  EXPECT_EQ(Of(truth, {Incident("slow", 2, "nic")}).outcome, Outcome::kWrong);
  EXPECT_EQ(Of(truth, {Incident("slow", 2, "unknown")}).outcome, Outcome::kUnsure);
  EXPECT_EQ(Of(truth, {Nobody("slow")}).outcome, Outcome::kUnsure);
  EXPECT_EQ(Of(truth, {}).outcome, Outcome::kMissed);
  const Judgement kind = Of(truth, {Incident("stuck", 2, "gpu")});
  EXPECT_EQ(kind.outcome, Outcome::kUnsure);
  EXPECT_THAT(kind.why, HasSubstr("kind stuck for slow"));
}

TEST(JudgeTest, OneWrongIncidentSpoilsTheCase) {
  EXPECT_EQ(
      Of(Fault("slow", "gpu"), {Incident("slow", 2, "gpu"), Incident("slow", 0, "gpu")}).outcome,
      Outcome::kWrong);
  EXPECT_EQ(Of(Fault("slow", "gpu"), {Incident("slow", 2, "gpu"), Nobody("slow")}).outcome,
            Outcome::kRight);
}

TEST(JudgeTest, ComponentsAreMapped) {
  EXPECT_EQ(Of(Fault("slow", "network"), {Incident("slow", 2, "nic")}).outcome, Outcome::kRight);
  EXPECT_EQ(Of(Fault("slow", "network"), {Incident("slow", 2, "fabric")}).outcome, Outcome::kRight);
  EXPECT_EQ(Of(Fault("slow", "network"), {Incident("slow", 2, "host")}).outcome, Outcome::kWrong);
  EXPECT_EQ(Of(Fault("slow", "process"), {Incident("slow", 2, "host")}).outcome, Outcome::kRight);
  EXPECT_EQ(Of(Fault("mismatch", "application"), {Incident("mismatch", 2, "app")}).outcome,
            Outcome::kRight);
  EXPECT_EQ(Of(Fault("mismatch", "application"), {Incident("mismatch", 2, "host")}).outcome,
            Outcome::kWrong);
}

TEST(JudgeTest, KindsAreMapped) {
  EXPECT_EQ(Of(Fault("hang", "gpu", 0), {Incident("stuck", 2, "gpu")}).outcome, Outcome::kRight);
  EXPECT_EQ(Of(Fault("hang", "gpu", 0), {Incident("slow", 2, "gpu")}).outcome, Outcome::kUnsure);
  EXPECT_EQ(Of(Fault("slow", "host", 1'100'000'000), {Incident("stuck", 2, "host")}).outcome,
            Outcome::kRight);
  EXPECT_EQ(Of(Fault("absent", "host", 0), {Incident("absent", 2, "host")}).outcome,
            Outcome::kRight);
  EXPECT_EQ(Of(Fault("dead", "process", 0), {Incident("dead", 2, "host")}).outcome,
            Outcome::kRight);
}

TEST(JudgeTest, OnsetAndLimits) {
  const Truth hang = Fault("hang", "gpu", 0);
  EXPECT_EQ(Of(hang, {Incident("stuck", 2, "gpu", 9.95)}).outcome, Outcome::kRight);
  const Judgement early = Of(hang, {Incident("stuck", 2, "gpu", 9.8)});
  EXPECT_EQ(early.outcome, Outcome::kWrong);
  EXPECT_THAT(early.why, HasSubstr("before the fault"));
  EXPECT_EQ(Of(hang, {Incident("stuck", 2, "gpu", 10, 13.1)}).outcome, Outcome::kRight);
  EXPECT_EQ(Of(hang, {Incident("stuck", 2, "gpu", 10, 13.3)}).outcome, Outcome::kLate);
  // Slow: five iterations of 900 ms may pass.
  const Truth slow = Fault("slow", "gpu", 900'000'000);
  EXPECT_EQ(Of(slow, {Incident("slow", 2, "gpu", 10, 14.6)}).outcome, Outcome::kRight);
  EXPECT_EQ(Of(slow, {Incident("slow", 2, "gpu", 10, 14.8)}).outcome, Outcome::kLate);
}

TEST(JudgeTest, WithAMissingRankOnlyAWrongNameCounts) {
  const Truth hang = Fault("hang", "gpu", 0);
  EXPECT_EQ(Of(hang, {}, 1).outcome, Outcome::kUnsure);
  EXPECT_EQ(Of(hang, {Incident("stuck", 2, "gpu", 10, 19)}, 1).outcome, Outcome::kRight);
  EXPECT_EQ(Of(hang, {Incident("stuck", 0, "gpu")}, 2).outcome, Outcome::kWrong);
  EXPECT_EQ(Of(Healthy(), {Nobody("absent")}, 1).outcome, Outcome::kWrong);
}

TEST(JudgeTest, SeveralCulpritsMustAllBeFound) {
  Truth truth = Fault("slow", "gpu");
  truth.culprits.push_back({3, "network"});
  EXPECT_EQ(Of(truth, {Incident("slow", 2, "gpu")}).outcome, Outcome::kUnsure);
  EXPECT_EQ(Of(truth, {Incident("slow", 2, "gpu"), Incident("slow", 3, "nic")}).outcome,
            Outcome::kRight);
}

TEST(JudgeTest, MalformedOutputIsAnError) {
  EXPECT_FALSE(Judge(Healthy(), "").ok());
  EXPECT_FALSE(Judge(Healthy(), "{}").ok());
  EXPECT_FALSE(Judge(Healthy(), R"({"schema_version":2,"incidents":[]})").ok());
  EXPECT_FALSE(Judge(Healthy(), R"({"schema_version":1})").ok());
}

}  // namespace
}  // namespace mycroft
