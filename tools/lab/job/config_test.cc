// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/job/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace mycroft::lab {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

JobConfig Grid(Layout layout, int ranks, int dp, int other) {
  JobConfig config;
  config.layout = layout;
  config.ranks = ranks;
  config.dp = dp;
  (layout == Layout::kDpPp ? config.pp : config.tp) = other;
  return config;
}

TEST(ConfigTest, MissingGridSizeIsFilledIn) {
  JobConfig config = Grid(Layout::kDpPp, 6, 0, 3);
  ASSERT_TRUE(Complete(&config).ok());
  EXPECT_EQ(config.dp, 2);
  config = Grid(Layout::kDpTp, 4, 0, 0);
  ASSERT_TRUE(Complete(&config).ok());
  EXPECT_EQ(config.tp, 2);
  EXPECT_EQ(config.dp, 2);
  EXPECT_EQ(config.iters, 100);
}

TEST(ConfigTest, BadGridsAndSizesAreRefused) {
  JobConfig config = Grid(Layout::kDpPp, 4, 3, 0);
  EXPECT_THAT(std::string(Complete(&config).message()), HasSubstr("is not --ranks 4"));
  config = JobConfig();
  config.dp = 2;
  EXPECT_THAT(std::string(Complete(&config).message()), HasSubstr("--layout"));
  config = JobConfig();
  config.ranks = 1;
  EXPECT_THAT(std::string(Complete(&config).message()), HasSubstr("--ranks"));
  config = JobConfig();
  config.bytes = 6;
  EXPECT_THAT(std::string(Complete(&config).message()), HasSubstr("multiples of 4"));
  config = JobConfig();
  config.profiler_api = 7;
  EXPECT_THAT(std::string(Complete(&config).message()), HasSubstr("--profiler-api"));
  EXPECT_FALSE(ParseLayout("ppxdp").ok());
  EXPECT_FALSE(ParseOps("ar,xx").ok());
  EXPECT_FALSE(ParseOps("").ok());
}

TEST(ConfigTest, PipelineGrid) {
  JobConfig config = Grid(Layout::kDpPp, 4, 2, 2);
  ASSERT_TRUE(Complete(&config).ok());
  const auto plans = PlanComms(config);
  ASSERT_EQ(plans.size(), 5u);
  EXPECT_EQ(plans[0].name, "world");
  EXPECT_THAT(plans[0].members, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(plans[1].name, "dp0");
  EXPECT_THAT(plans[1].members, ElementsAre(0, 1));
  EXPECT_EQ(plans[2].name, "dp1");
  EXPECT_THAT(plans[2].members, ElementsAre(2, 3));
  EXPECT_EQ(plans[3].name, "pp0");
  EXPECT_THAT(plans[3].members, ElementsAre(0, 2));
  EXPECT_TRUE(plans[3].p2p);
  EXPECT_FALSE(plans[3].ring);
  EXPECT_EQ(plans[4].name, "pp1");
  EXPECT_THAT(plans[4].members, ElementsAre(1, 3));
  std::set<uint64_t> ids;
  for (const auto& plan : plans) ids.insert(plan.id);
  EXPECT_EQ(ids.size(), plans.size());
  EXPECT_EQ(RoleOf(config, 3).pp, 1);
  EXPECT_EQ(RoleOf(config, 3).dp, 1);
  EXPECT_EQ(RoleOf(config, 3).tp, -1);
}

TEST(ConfigTest, WhoExchangesMessages) {
  JobConfig config;
  ASSERT_TRUE(Complete(&config).ok());
  EXPECT_FALSE(PlanComms(config)[0].p2p);
  config.ops = *ParseOps("ar,sr");
  EXPECT_TRUE(PlanComms(config)[0].p2p && PlanComms(config)[0].p2p_wraps);
  EXPECT_FALSE(PlanComms(config)[0].p2p_all);
  config.ops = *ParseOps("aa");
  EXPECT_TRUE(PlanComms(config)[0].p2p && PlanComms(config)[0].p2p_all);
  EXPECT_FALSE(PlanComms(config)[0].p2p_wraps);
}

TEST(ConfigTest, TensorGridAndSingletons) {
  JobConfig config = Grid(Layout::kDpTp, 4, 2, 2);
  ASSERT_TRUE(Complete(&config).ok());
  const auto plans = PlanComms(config);
  ASSERT_EQ(plans.size(), 5u);
  EXPECT_EQ(plans[1].name, "tp0");
  EXPECT_THAT(plans[1].members, ElementsAre(0, 1));
  EXPECT_EQ(plans[4].name, "dp1");
  EXPECT_THAT(plans[4].members, ElementsAre(1, 3));
  // A communicator of one rank is left out.
  config = Grid(Layout::kDpPp, 3, 1, 3);
  ASSERT_TRUE(Complete(&config).ok());
  const auto chain = PlanComms(config);
  ASSERT_EQ(chain.size(), 2u);
  EXPECT_EQ(chain[1].name, "pp0");
}

TEST(ConfigTest, Verbs) {
  JobConfig config;
  config.transport = *ParseTransport("verbs");
  config.ib_devices = *ParseDevices("a,b,c");
  ASSERT_TRUE(Complete(&config).ok());
  EXPECT_EQ(DeviceOf(config, 0), "a");
  EXPECT_EQ(DeviceOf(config, 5), "c");
  EXPECT_FALSE(ParseTransport("rdma").ok());
  EXPECT_FALSE(ParseDevices("a,,b").ok());
  EXPECT_TRUE(ParseDevices("")->empty());
  config.faults = {*ParseFault("rnr:rank=1,at=2", 4)};
  EXPECT_TRUE(CheckFaults(config).ok());
  config.faults = {*ParseFault("net-down:rank=1,at=2", 4)};
  EXPECT_THAT(std::string(CheckFaults(config).message()), HasSubstr("netem"));
  config.transport = Transport::kTcp;
  EXPECT_TRUE(CheckFaults(config).ok());
  EXPECT_EQ(DeviceOf(config, 0), "");
  config.faults = {*ParseFault("bad-rkey:rank=1,at=2", 4)};
  EXPECT_THAT(std::string(CheckFaults(config).message()), HasSubstr("needs --transport verbs"));
  for (int mtu : {1, 255, 1500, 8192}) {
    config.ib.mtu_bytes = mtu;
    EXPECT_THAT(std::string(Complete(&config).message()), HasSubstr("--ib-mtu"));
  }
  config.ib.mtu_bytes = 0;
  config.ib.retry = 8;
  EXPECT_THAT(std::string(Complete(&config).message()), HasSubstr("--ib-retry"));
}

TEST(ConfigTest, JsonRoundTrip) {
  JobConfig config = Grid(Layout::kDpTp, 4, 2, 2);
  config.ops = *ParseOps("ar,sr,ag");
  config.noise_percent = 30;
  config.uneven_p2p = true;
  config.seed = 99;
  config.plugin = "/x/y.so";
  config.keep_open = "/dev/infiniband/uverbs{rank}";
  config.connect_after_s = 2.5;
  config.plugin_given = true;
  config.transport = Transport::kVerbs;
  config.ib_devices = *ParseDevices("rxeA,rxeB");
  config.ib.gid_index = 3;
  config.ib.timeout = 18;
  config.ib.retry = 6;
  config.ib.rnr_retry = 5;
  config.ib.min_rnr_timer = 0;
  config.ib.mtu_bytes = 2048;
  config.ib_flush = config.ib_spin = true;
  ASSERT_TRUE(Complete(&config).ok());
  config.faults = {*ParseFault("net-slow:rank=1,at=2,for=3,amount=4", 4),
                   *ParseFault("kill:rank=0,at=1", 4)};
  const auto copy = ConfigFromJson(ToJson(config));
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_EQ(ToJson(*copy), ToJson(config));
  EXPECT_EQ(copy->faults[0].for_s, 3.0);
  EXPECT_FALSE(copy->faults[1].for_s.has_value());
  nlohmann::json broken = ToJson(config);
  broken["ranks"] = "four";
  EXPECT_FALSE(ConfigFromJson(broken).ok());
  broken.erase("ranks");
  EXPECT_FALSE(ConfigFromJson(broken).ok());
}

}  // namespace
}  // namespace mycroft::lab
