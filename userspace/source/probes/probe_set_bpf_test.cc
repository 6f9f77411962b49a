// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "userspace/source/probes/probe_set.h"
#include "userspace/source/probes/probe_table.h"
#include "userspace/source/probes/testing/bpf_machine.h"

namespace mycroft {
namespace {

using ::testing::HasSubstr;

TEST(ProbeSetBpfTest, EveryProbeHasARowThatSaysWhatBecameOfIt) {
  MYCROFT_REQUIRE_BPF();
  auto set = ProbeSet::Create({});
  ASSERT_TRUE(set.ok()) << set.status();
  const std::vector<ProbeRow> rows = (*set)->Rows();
  ASSERT_EQ(rows.size(), ProbeTable().size());
  for (const ProbeRow& row : rows) {
    SCOPED_TRACE(row.name);
    EXPECT_FALSE(row.question.empty());
    EXPECT_EQ(row.hits, 0u);
    EXPECT_FALSE(row.armed);
    if (row.method == ProbeMethod::kNone) {
      EXPECT_FALSE(row.problem.empty());
      EXPECT_FALSE(row.lost.empty());
    }
  }
}

TEST(ProbeSetBpfTest, VerbsProgramsLoadHere) {
  MYCROFT_REQUIRE_BPF();
  ProbeSet::Options options;
  options.objects = {"verbs"};
  auto set = ProbeSet::Create(options);
  ASSERT_TRUE(set.ok()) << set.status();
  for (const ProbeRow& row : (*set)->Rows()) {
    EXPECT_EQ(row.method, ProbeMethod::kUprobe) << row.name << ": " << row.problem;
    EXPECT_EQ(row.problem, "") << row.name;
  }
  EXPECT_TRUE((*set)->Complete().ok()) << (*set)->Complete();
}

TEST(ProbeSetBpfTest, NothingIsLoadedWhenNotAsked) {
  ProbeSet::Options options;
  options.load = false;
  auto set = ProbeSet::Create(options);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_FALSE((*set)->Complete().ok());
  EXPECT_EQ((*set)->event_fd(), -1);
  for (const ProbeRow& row : (*set)->Rows()) {
    if (row.method != ProbeMethod::kPoll) {
      EXPECT_FALSE(row.problem.empty()) << row.name;
    }
  }
}

TEST(ProbeSetBpfTest, WrongOptionsAreRefused) {
  MYCROFT_REQUIRE_BPF();
  ProbeSet::Options options;
  options.ring_bytes = 5000;
  EXPECT_FALSE(ProbeSet::Create(options).ok());
  options.ring_bytes = 1 << 20;
  options.objects = {"no_such_object"};
  EXPECT_THAT(ProbeSet::Create(options).status().message(), HasSubstr("no_such_object"));
}

TEST(ProbeSetBpfTest, AUprobeCostsSomething) {
  MYCROFT_REQUIRE_BPF();
  auto set = ProbeSet::Create({});
  ASSERT_TRUE(set.ok()) << set.status();
  const std::optional<double> ns = (*set)->CalibrateUprobe();
  ASSERT_TRUE(ns.has_value());
  EXPECT_GT(*ns, 1.0);
  RecordProperty("uprobe_ns", std::to_string(*ns));
  printf("an empty uprobe adds %.0f ns\n", *ns);
}

TEST(ProbeSetBpfTest, OnlyDeepProbesAreArmed) {
  MYCROFT_REQUIRE_BPF();
  auto set = ProbeSet::Create({});
  ASSERT_TRUE(set.ok()) << set.status();
  const uint64_t target = 1;
  EXPECT_FALSE((*set)->Arm("verbs.post_send", {&target, 1}, 1).ok());
  EXPECT_FALSE((*set)->Arm("no.such.probe", {&target, 1}, 1).ok());
  (*set)->Disarm("no.such.probe");
}

TEST(ProbeSetBpfTest, NothingStaysBehind) {
  MYCROFT_REQUIRE_BPF();
  const BpfCensus before = TakeBpfCensus();
  {
    auto set = ProbeSet::Create({});
    ASSERT_TRUE(set.ok()) << set.status();
    EXPECT_GT(TakeBpfCensus().programs, before.programs);
  }
  const BpfCensus after = WaitForBpfCensus(before);
  EXPECT_EQ(after.programs, before.programs);
  EXPECT_EQ(after.maps, before.maps);
  EXPECT_EQ(after.links, before.links);
  EXPECT_EQ(after.descriptors, before.descriptors);
}

}  // namespace
}  // namespace mycroft
