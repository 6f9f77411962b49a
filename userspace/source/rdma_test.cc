// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/rdma.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "userspace/source/testing/fixture_host.h"

namespace mycroft {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(Rdma, PortStates) {
  EXPECT_EQ(ParsePortState("4: ACTIVE"), "ACTIVE");
  EXPECT_EQ(ParsePortState("1: DOWN"), "DOWN");
  EXPECT_EQ(ParsePortState("5: LinkUp"), "LinkUp");
  EXPECT_EQ(ParsePortState("7: <unknown>"), "<unknown>");
  for (const char* bad : {"", "ACTIVE", "4:", "x: ACTIVE", "4: \x1b[31m", ": "}) {
    EXPECT_EQ(ParsePortState(bad), "") << bad;
  }
  EXPECT_EQ(ParsePortRate("100 Gb/sec (4X EDR)"), 100.0);
  EXPECT_EQ(ParsePortRate("2.5 Gb/sec (1X SDR)"), 2.5);
  for (const char* bad : {"", "100", "Gb/sec", "nan Gb/sec", "-5 Gb/sec", "1e300 Gb/sec"}) {
    EXPECT_EQ(ParsePortRate(bad), std::nullopt) << bad;
  }
}

TEST(Rdma, ADeviceAndItsPort) {
  const FixtureHost host;
  host.AddPci({"0000:17:00.0", "0000:18:00.0"}, "0x020700", "32.0 GT/s PCIe", "16",
              "32.0 GT/s PCIe", "16");
  host.AddRdma("mlx5_0", "uverbs3", "devices/pci0000:17/0000:17:00.0/0000:18:00.0", "eth2");
  EXPECT_EQ(VerbsDevice(host.sys(), "uverbs3"), "mlx5_0");
  EXPECT_EQ(VerbsDevice(host.sys(), "uverbs4"), "");
  EXPECT_EQ(VerbsDevice(host.sys(), "../x"), "");
  EXPECT_EQ(RdmaPciAddress(host.sys(), "mlx5_0"), "0000:18:00.0");
  EXPECT_THAT(*RdmaPorts(host.sys(), "mlx5_0"), ElementsAre(1));
  EXPECT_EQ(RdmaPorts(host.sys(), "mlx5_9"), std::nullopt);
  EXPECT_EQ(RdmaPorts(host.sys(), ".."), std::nullopt);
  const RdmaPort port = ReadRdmaPort(host.sys(), "mlx5_0", 1);
  EXPECT_EQ(port.state, "ACTIVE");
  EXPECT_EQ(port.phys_state, "LinkUp");
  EXPECT_EQ(port.rate_gbps, 400.0);
  EXPECT_EQ(port.netdev, "eth2");
  EXPECT_EQ(port.netdev_mtu, 9000u);
  EXPECT_THAT(port.counters, ElementsAre(Pair("link_downed", 0), Pair("port_xmit_data", 1000),
                                         Pair("rnr_nak_retry_err", 0)));  // no lifespan
  const auto gids = ReadRdmaGids(host.sys(), "mlx5_0", 1);
  ASSERT_TRUE(gids);
  ASSERT_EQ(gids->size(), 2u);  // the third is not in use
  EXPECT_EQ((*gids)[0].type, "IB/RoCE v1");
  EXPECT_EQ((*gids)[1].index, 1u);
  EXPECT_EQ((*gids)[1].gid, "0000:0000:0000:0000:0000:ffff:0a09:0001");
  EXPECT_EQ((*gids)[1].type, "RoCE v2");
}

TEST(Rdma, ASoftwareDeviceNamesItsParent) {
  const FixtureHost host;
  host.AddRdma("rxeA", "uverbs0", "", "");
  host.Write("sys/class/infiniband/rxeA/parent", "va\n");
  host.Write("sys/class/net/va/mtu", "4200\n");
  EXPECT_EQ(RdmaPciAddress(host.sys(), "rxeA"), "");
  const RdmaPort port = ReadRdmaPort(host.sys(), "rxeA", 1);
  EXPECT_EQ(port.netdev, "va");
  EXPECT_EQ(port.netdev_mtu, 4200u);
}

TEST(Rdma, WhatCannotBeReadIsEmpty) {
  const FixtureHost host;
  host.AddRdma("mlx5_0", "uverbs0", "", "eth0");
  const std::string at = "sys/class/infiniband/mlx5_0/ports/1/";
  for (const char* name : {"state", "phys_state", "rate", "gid_attrs/types/1",
                           "counters/link_downed", "hw_counters/rnr_nak_retry_err"}) {
    host.Write(at + name, "\xff\xfe garbage");
  }
  RdmaPort port = ReadRdmaPort(host.sys(), "mlx5_0", 1);
  EXPECT_EQ(port.state, "");
  EXPECT_EQ(port.rate_gbps, std::nullopt);
  EXPECT_THAT(port.counters, ElementsAre(Pair("port_xmit_data", 1000)));
  for (const char* name : {"state", "rate", "counters", "hw_counters", "gids", "gid_attrs"}) {
    host.Remove(at + name);
  }
  port = ReadRdmaPort(host.sys(), "mlx5_0", 1);
  EXPECT_EQ(port.state, "");
  EXPECT_EQ(port.netdev, "");
  EXPECT_TRUE(port.counters.empty());
  EXPECT_EQ(ReadRdmaGids(host.sys(), "mlx5_0", 1), std::nullopt);
  EXPECT_EQ(ReadRdmaPort(host.sys(), "../..", 1).state, "");
}

TEST(Rdma, ListsAreBounded) {
  const FixtureHost host;
  host.AddRdma("mlx5_0", "uverbs0", "", "eth0");
  const std::string at = "sys/class/infiniband/mlx5_0/ports/";
  for (int i = 0; i < 300; ++i) {
    host.Write(at + "1/hw_counters/c" + std::to_string(i), "1\n");
    host.Write(at + "1/gids/" + std::to_string(i), "fe80:0000:0000:0000:0000:0000:0000:0001\n");
    host.Write(at + std::to_string(i) + "/state", "4: ACTIVE\n");
  }
  EXPECT_EQ(ReadRdmaPort(host.sys(), "mlx5_0", 1).counters.size(), 256u);
  EXPECT_EQ(ReadRdmaGids(host.sys(), "mlx5_0", 1)->size(), 256u);
  EXPECT_EQ(RdmaPorts(host.sys(), "mlx5_0")->size(), 16u);
}

}  // namespace
}  // namespace mycroft
