// SPDX-License-Identifier: Apache-2.0
#include "userspace/report/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "userspace/report/text.h"

namespace mycroft {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Incident Sample() {
  Incident incident;
  incident.id = 7;
  incident.kind = IncidentKind::kStuck;
  incident.onset_ns = 12'345'000'000;
  incident.detected_ns = 13'400'000'000;
  incident.verdict_ns = 13'500'000'000;
  incident.comm_id = 0x9a40ddbf57b04e;
  incident.comm_name = "world";
  incident.summary = "ranks 0, 2, 3 wait in AllReduce 41 of \"world\" for the GPU of rank 1";
  Culprit culprit;
  culprit.rank = 1;
  culprit.host = "node-a";
  culprit.pid = 4711;
  culprit.component = Component::kGpu;
  culprit.confidence = 0.92;
  culprit.gpu_seconds_lost = 9.5;
  culprit.where = "channel 1, send to rank 2";
  culprit.comms = {{0x9a40ddbf57b04e, "world", 1, 4}, {0x22, "", 0, 2}};
  incident.culprits = {culprit};
  incident.victims = {3, 0, 2};
  incident.chain = {{2, 1, "rank 2 waits for rank 1: receive, channel 1"}, {3, 2, ""}};
  incident.evidence = {"rank 1: send of channel 1 waits for the GPU since 12.345 s"};
  incident.rejected = {{"NIC of rank 1", "other flows of the NIC complete"}};
  return incident;
}

TEST(VerdictJson, EveryField) {
  const auto json = nlohmann::json::parse(
      VerdictJson({Sample()}, {{"process 9 has no board", "its operations", "set X=1"}}));
  const auto expected = nlohmann::json::parse(R"({
    "schema_version": 1,
    "incidents": [{
      "id": 7, "kind": "stuck", "onset_ns": 12345000000, "detected_ns": 13400000000,
      "verdict_ns": 13500000000, "cleared_ns": null,
      "comm_id": "9a40ddbf57b04e", "comm_name": "world",
      "summary": "ranks 0, 2, 3 wait in AllReduce 41 of \"world\" for the GPU of rank 1",
      "culprits": [{
        "rank": 1, "host": "node-a", "pid": 4711, "component": "gpu", "confidence": 0.92,
        "gpu_seconds_lost": 9.5, "where": "channel 1, send to rank 2",
        "comms": [{"comm_id": "9a40ddbf57b04e", "comm_name": "world", "rank": 1, "nranks": 4},
                  {"comm_id": "22", "comm_name": "", "rank": 0, "nranks": 2}]}],
      "victims": [3, 0, 2],
      "chain": [{"waiter": 2, "waited_for": 1, "why": "rank 2 waits for rank 1: receive, channel 1"},
                {"waiter": 3, "waited_for": 2, "why": ""}],
      "evidence": ["rank 1: send of channel 1 waits for the GPU since 12.345 s"],
      "rejected": [{"suspect": "NIC of rank 1", "reason": "other flows of the NIC complete"}]}],
    "blind_spots": [{"what": "process 9 has no board", "lost": "its operations", "fix": "set X=1"}]
  })");
  EXPECT_EQ(json, expected) << json.dump(2);
}

TEST(VerdictJson, CandidatesOnlyWhenUnknown) {
  Incident incident = Sample();
  incident.cleared_ns = 20'000'000'000;
  incident.culprits[0].component = Component::kUnknown;
  incident.culprits[0].candidates = {Component::kGpu, Component::kPcie};
  const auto json = nlohmann::json::parse(VerdictJson({incident}, {}, -1));
  EXPECT_EQ(json["incidents"][0]["cleared_ns"], 20'000'000'000);
  EXPECT_EQ(json["incidents"][0]["culprits"][0]["component"], "unknown");
  EXPECT_EQ(json["incidents"][0]["culprits"][0]["candidates"],
            nlohmann::json::array({"gpu", "pcie"}));
}

TEST(VerdictJson, EmptyListsAreLists) {
  EXPECT_EQ(nlohmann::json::parse(VerdictJson({}, {})),
            nlohmann::json::parse(R"({"schema_version":1,"incidents":[],"blind_spots":[]})"));
  Incident bare;
  const auto json = nlohmann::json::parse(VerdictJson({bare}, {}));
  for (const char* key : {"culprits", "victims", "chain", "evidence", "rejected"}) {
    EXPECT_EQ(json["incidents"][0][key], nlohmann::json::array()) << key;
  }
}

TEST(VerdictJson, HostileTextAndNumbers) {
  Incident incident = Sample();
  incident.comm_name = "bad \xff\xfe \x01 \"quote\"";
  incident.culprits[0].confidence = std::numeric_limits<double>::quiet_NaN();
  incident.onset_ns = UINT64_MAX;
  const auto json = nlohmann::json::parse(VerdictJson({incident}, {}));
  EXPECT_EQ(json["incidents"][0]["onset_ns"], UINT64_MAX);
  EXPECT_EQ(json["incidents"][0]["culprits"][0]["confidence"], 0);
  EXPECT_THAT(json["incidents"][0]["comm_name"].get<std::string>(), HasSubstr("\"quote\""));
}

TEST(VerdictJson, IndentNegativeIsOneLine) {
  EXPECT_THAT(VerdictJson({Sample()}, {}, -1), Not(HasSubstr("\n")));
  EXPECT_THAT(VerdictJson({Sample()}, {}, 2), HasSubstr("\n"));
}

TEST(VerdictText, FirstLineAnswers) {
  VerdictTextOptions options;
  options.start_ns = 10'000'000'000;
  options.now_ns = 15'545'000'000;
  const std::string text = VerdictText({Sample()}, {}, options);
  EXPECT_EQ(text.substr(0, text.find('\n')),
            "STUCK #7 since 2.345 s, for 3.20 s now: GPU of rank 1, node-a");
  for (const char* part :
       {"pid 4711", "confidence 92 %", "at channel 1, send to rank 2", "ranks 0, 2, 3",
        "9.5 GPU-seconds", "detected +1.05 s", "rank 3 waits for rank 2", "rejected",
        "NIC of rank 1: other flows", "rank 0 of 2 in communicator 22"}) {
    EXPECT_THAT(text, HasSubstr(part)) << text;
  }
}

TEST(VerdictText, WrapsAtEightyColumns) {
  Incident incident = Sample();
  for (int i = 0; i < 40; ++i) incident.victims.push_back(10 + 2 * i);
  incident.culprits.push_back(incident.culprits[0]);
  incident.culprits[1].component = Component::kUnknown;
  incident.culprits[1].candidates = {Component::kGpu, Component::kPcie, Component::kNvlink};
  incident.culprits[1].host = "a-host-with-a-rather-long-name.cluster.example.org";
  for (int i = 0; i < 10; ++i) incident.evidence[0] += " and some more words";
  for (bool colour : {false, true}) {
    VerdictTextOptions options;
    options.colour = colour;
    std::istringstream lines(VerdictText({incident}, {{"a", "b", "c"}}, options));
    for (std::string line; std::getline(lines, line);) {
      EXPECT_LE(DisplayWidth(line), 80u) << line;
    }
  }
}

TEST(VerdictText, NoIncidentAndBlindSpots) {
  EXPECT_EQ(VerdictText({}, {}), "No incident: nothing is stuck or slow in what was seen.\n");
  const std::string text = VerdictText({}, {{"process 9 has no board", "its operations", "set X"}});
  EXPECT_THAT(text, HasSubstr("  - process 9 has no board: its operations\n    to fix: set X\n"));
}

TEST(VerdictText, NotEnoughEvidence) {
  Incident incident = Sample();
  incident.culprits.clear();
  incident.cleared_ns = incident.onset_ns + 4'000'000'000;
  const std::string text = VerdictText({incident}, {});
  EXPECT_EQ(text.substr(0, text.find('\n')),
            "STUCK #7 from 12.345 s, over after 4.00 s: cause not known, not enough evidence");
}

TEST(VerdictText, NoEscapeSequenceGetsThrough) {
  Incident incident = Sample();
  incident.comm_name = incident.summary = incident.culprits[0].host = "x\x1b[31m\x9b\x07y\n";
  EXPECT_THAT(VerdictText({incident}, {}), Not(HasSubstr("\x1b")));
  EXPECT_THAT(VerdictText({incident}, {}), HasSubstr("x?[31m"));
}

TEST(Text, Units) {
  EXPECT_EQ(DurationText(0), "0 ns");
  EXPECT_EQ(DurationText(12'300'000), "12.3 ms");
  EXPECT_EQ(DurationText(999'900'000), "1.00 s");
  EXPECT_EQ(DurationText(245'000'000'000), "4 min 05 s");
  EXPECT_EQ(DurationText(7'380'000'000'000), "2 h 03 min");
  EXPECT_EQ(BytesText(512), "512 B");
  EXPECT_EQ(BytesText(4096), "4.0 KiB");
  EXPECT_EQ(HexText(0xab), "ab");
}

TEST(Text, PrintableKeepsUtf8) {
  EXPECT_EQ(PrintableText("gr\xc3\xbc\xc3\x9f"), "gr\xc3\xbc\xc3\x9f");
  EXPECT_EQ(PrintableText("a\xc3"), "a\xef\xbf\xbd");
  EXPECT_EQ(PrintableText("\xc2\x85"), "?");                                         // C1 control
  EXPECT_EQ(PrintableText("\xe0\x80\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");  // overlong
}

}  // namespace
}  // namespace mycroft
