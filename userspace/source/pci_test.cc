// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/pci.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "userspace/source/testing/fixture_host.h"

namespace mycroft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kRoot[] = "0000:3a:00.0", kUp[] = "0000:3b:00.0", kDown[] = "0000:3c:04.0",
               kGpu[] = "0000:3d:00.0";

TEST(Pci, Addresses) {
  for (const char* good : {"0000:00:00.0", "ffff:ff:1f.7", "10000:01:00.0"}) {
    EXPECT_TRUE(IsPciAddress(good)) << good;
  }
  for (const char* bad : {"", "00:00.0", "0000:00:00.8", "0000:00:00", "0000:00:00.0 ",
                          "0000:00:0g.0", "../0000:00:00.0", "pci0000:00", "0000:000:00.0",
                          "123456789:00:00.0", "000:00:00.0"}) {
    EXPECT_FALSE(IsPciAddress(bad)) << bad;
  }
}

TEST(Pci, PathToRoot) {
  const FixtureHost host;
  host.AddPci({kRoot, kUp, kDown, kGpu}, "0x030200", "32.0 GT/s PCIe", "16", "32.0 GT/s PCIe",
              "16");
  EXPECT_THAT(PciPathToRoot(host.sys(), kGpu), ElementsAre(kGpu, kDown, kUp, kRoot));
  // A function of the host bridge; one that is not there; a link to somewhere else.
  host.AddPci({"0000:00:1f.0"}, "0x060100", "Unknown", "0", "Unknown", "255");
  EXPECT_THAT(PciPathToRoot(host.sys(), "0000:00:1f.0"), ElementsAre("0000:00:1f.0"));
  EXPECT_THAT(PciPathToRoot(host.sys(), "0000:77:00.0"), ElementsAre("0000:77:00.0"));
  host.Link("sys/bus/pci/devices/0000:99:00.0", "../../../devices/0000:11:00.0/other");
  EXPECT_THAT(PciPathToRoot(host.sys(), "0000:99:00.0"), ElementsAre("0000:99:00.0"));
  EXPECT_THAT(PciPathToRoot(host.sys(), "../../etc"), IsEmpty());
  std::string deep = "x";
  for (int i = 0; i < 100; ++i) deep += "/0000:11:00.0";
  host.Link("sys/bus/pci/devices/0000:11:00.0", deep);
  EXPECT_EQ(PciPathToRoot(host.sys(), "0000:11:00.0").size(), 32u);
}

TEST(Pci, Links) {
  EXPECT_EQ(ParseLinkSpeed("2.5 GT/s PCIe"), 2.5);
  EXPECT_EQ(ParseLinkSpeed("32.0 GT/s PCIe"), 32.0);
  EXPECT_EQ(ParseLinkSpeed("8 GT/s"), 8.0);
  for (const char* bad : {"", "Unknown", "Unknown speed", "16", "16.0 MT/s", "-1 GT/s", "0 GT/s",
                          "inf GT/s", "nan GT/s", "1e9 GT/s", " 16.0 GT/s"}) {
    EXPECT_EQ(ParseLinkSpeed(bad), std::nullopt) << bad;
  }
  EXPECT_EQ(ParseLinkWidth("16"), 16u);
  EXPECT_EQ(ParseLinkWidth("1\n"), 1u);
  for (const char* bad : {"", "0", "63", "255", "x16", "-1"}) {
    EXPECT_EQ(ParseLinkWidth(bad), std::nullopt) << bad;
  }
}

TEST(Pci, ConfigurationSpace) {
  PciConfig config = ParsePciConfig(FixtureHost::Config(0x10de, 0x2330, 0, 5, true, false));
  EXPECT_FALSE(config.unreachable);
  EXPECT_EQ(config.port, PciPort::kEndpoint);
  EXPECT_EQ(config.max_read_request, 4096u);
  EXPECT_EQ(config.relaxed_ordering, true);
  EXPECT_EQ(config.acs_redirect, false);
  const std::string bridge = FixtureHost::Config(0x10b5, 0x8747, 6, 0, false, true);
  config = ParsePciConfig(bridge);
  EXPECT_EQ(config.port, PciPort::kDownstream);
  EXPECT_EQ(config.max_read_request, 128u);
  EXPECT_EQ(config.relaxed_ordering, false);
  EXPECT_EQ(config.acs_redirect, true);
  // Without the extended part, ACS is not known; unprivileged, nothing is.
  config = ParsePciConfig(bridge.substr(0, 256));
  EXPECT_EQ(config.max_read_request, 128u);
  EXPECT_EQ(config.acs_redirect, std::nullopt);
  config = ParsePciConfig(bridge.substr(0, 64));
  EXPECT_FALSE(config.unreachable);
  EXPECT_EQ(config.port, std::nullopt);
  EXPECT_EQ(config.max_read_request, std::nullopt);
  EXPECT_EQ(config.relaxed_ordering, std::nullopt);
  EXPECT_EQ(config.acs_redirect, std::nullopt);
  // Off the bus.
  EXPECT_TRUE(ParsePciConfig(std::string(4096, '\xff')).unreachable);
  EXPECT_TRUE(ParsePciConfig(std::string(64, '\xff')).unreachable);
  // Too short to say anything.
  EXPECT_FALSE(ParsePciConfig("\xff\xff\xff").unreachable);
  EXPECT_FALSE(ParsePciConfig("").unreachable);
  // A conventional PCI function has neither capability.
  std::string plain(4096, '\0');
  plain[0] = 1;
  EXPECT_EQ(ParsePciConfig(plain).acs_redirect, std::nullopt);
}

TEST(Pci, HostileConfigurationSpaceEnds) {
  std::string loop = FixtureHost::Config(0x10de, 1, 0, 2, true, true);
  loop[0x41] = 0x40;  // the first capability points at itself
  EXPECT_EQ(ParsePciConfig(loop).port, std::nullopt);
  loop = FixtureHost::Config(0x10de, 1, 0, 2, true, true);
  loop[0x34] = '\xfc';  // beyond what a capability needs
  EXPECT_EQ(ParsePciConfig(loop).port, std::nullopt);
  loop = FixtureHost::Config(0x10de, 1, 0, 2, true, true);
  loop[0x102] = 0x01, loop[0x103] = 0x10;  // AER points at itself
  EXPECT_EQ(ParsePciConfig(loop).acs_redirect, false);
  loop[0x102] = '\xc1', loop[0x103] = '\xff';  // near the end
  EXPECT_EQ(ParsePciConfig(loop).acs_redirect, false);
  std::mt19937_64 random(1);
  const std::string good = FixtureHost::Config(0x10de, 1, 4, 2, true, true);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    if (round % 4 == 0) {
      for (char& c : bytes) c = static_cast<char>(random());
    }
    for (int i = 0; i < 8; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (round % 3 == 0) bytes.resize(random() % bytes.size());
    const PciConfig config = ParsePciConfig(bytes);
    if (config.max_read_request) {
      EXPECT_LE(*config.max_read_request, 4096u);
      EXPECT_GE(*config.max_read_request, 128u);
    }
  }
}

TEST(Pci, AerTotals) {
  EXPECT_EQ(ParseAerTotal("RxErr 3\nBadTLP 1\nTOTAL_ERR_COR 4\n"), 4u);
  EXPECT_EQ(ParseAerTotal("Undefined 0\nDLP 2\nTLP 5\n"), 7u);
  EXPECT_EQ(ParseAerTotal("Poison TLP Received 2\n"), 2u);  // names may have blanks
  for (const char* bad : {"", "\n", "RxErr", "RxErr x\n", " 3\n", "RxErr -1\n"}) {
    EXPECT_EQ(ParseAerTotal(bad), std::nullopt) << bad;
  }
}

TEST(Pci, AFunction) {
  const FixtureHost host;
  host.AddPci({kRoot, kUp, kDown, kGpu}, "0x030200", "16.0 GT/s PCIe", "8", "32.0 GT/s PCIe", "16",
              FixtureHost::Config(0x10de, 0x2330, 0, 2, true, false), "nvidia");
  host.SetAer(kGpu, 7, 2, 1);
  const auto gpu = ReadPciFunction(host.sys(), kGpu);
  ASSERT_TRUE(gpu);
  EXPECT_EQ(gpu->address, kGpu);
  EXPECT_TRUE(IsGpuClass(gpu->class_code));
  EXPECT_FALSE(IsNicClass(gpu->class_code));
  EXPECT_FALSE(IsBridgeClass(gpu->class_code));
  EXPECT_EQ(gpu->vendor, 0x10deu);
  EXPECT_EQ(gpu->device, 0x2330u);
  EXPECT_EQ(gpu->driver, "nvidia");
  EXPECT_EQ(gpu->numa_node, 1);
  EXPECT_EQ(gpu->speed_gts, 16.0);
  EXPECT_EQ(gpu->width, 8u);
  EXPECT_EQ(gpu->max_speed_gts, 32.0);
  EXPECT_EQ(gpu->max_width, 16u);
  EXPECT_EQ(gpu->config.max_read_request, 512u);
  EXPECT_EQ(gpu->config_bytes, 4096u);
  EXPECT_EQ(gpu->aer_correctable, 7u);
  EXPECT_EQ(gpu->aer_nonfatal, 2u);
  EXPECT_EQ(gpu->aer_fatal, 1u);
  EXPECT_FALSE(ReadPciFunction(host.sys(), "0000:77:00.0"));
  EXPECT_FALSE(ReadPciFunction(host.sys(), "../../../etc"));
}

TEST(Pci, ARefreshReadsWhatMoves) {
  const FixtureHost host;
  host.AddPci({kRoot, kGpu}, "0x030200", "32.0 GT/s PCIe", "16", "32.0 GT/s PCIe", "16",
              FixtureHost::Config(0x10de, 0x2330, 0, 2, true, false), "nvidia");
  auto gpu = ReadPciFunction(host.sys(), kGpu);
  ASSERT_TRUE(gpu);
  host.Write(host.PciFolder(kGpu) + "current_link_speed", "5.0 GT/s PCIe\n");
  host.SetAer(kGpu, 4, 0, 0);
  ASSERT_TRUE(RefreshPciFunction(host.sys(), *gpu));
  EXPECT_EQ(gpu->speed_gts, 5.0);
  EXPECT_EQ(gpu->width, 16u);
  EXPECT_EQ(gpu->aer_correctable, 4u);
  EXPECT_EQ(gpu->max_speed_gts, 32.0);
  EXPECT_EQ(gpu->driver, "nvidia");
  EXPECT_EQ(gpu->config.max_read_request, 512u);
  host.Write(host.PciFolder(kGpu) + "config", std::string(4096, '\xff'));
  ASSERT_TRUE(RefreshPciFunction(host.sys(), *gpu));
  EXPECT_TRUE(gpu->config.unreachable);
  EXPECT_EQ(gpu->speed_gts, std::nullopt);
  EXPECT_EQ(gpu->max_width, 16u);
  host.RemovePci(kGpu);
  EXPECT_FALSE(RefreshPciFunction(host.sys(), *gpu));
}

TEST(Pci, ARootPortTellsWhatArrivedFromBelow) {
  const FixtureHost host;
  host.AddPci({kRoot}, "0x060400", "16.0 GT/s PCIe", "8", "16.0 GT/s PCIe", "16");
  host.SetAer(kRoot, 1, 1, 0);
  host.Write(host.PciFolder(kRoot) + "aer_rootport_total_err_cor", "9\n");
  host.Write(host.PciFolder(kRoot) + "aer_rootport_total_err_fatal", "3\n");
  const auto port = ReadPciFunction(host.sys(), kRoot);
  ASSERT_TRUE(port);
  EXPECT_EQ(port->aer_correctable, 9u);
  EXPECT_EQ(port->aer_nonfatal, 1u);  // no such file: its own
  EXPECT_EQ(port->aer_fatal, 3u);
}

TEST(Pci, AFunctionOffTheBusHasNoLink) {
  const FixtureHost host;
  host.AddPci({kRoot, kGpu}, "0x030200", "Unknown", "63", "32.0 GT/s PCIe", "16",
              std::string(4096, '\xff'));
  const auto gpu = ReadPciFunction(host.sys(), kGpu);
  ASSERT_TRUE(gpu);
  EXPECT_TRUE(gpu->config.unreachable);
  EXPECT_EQ(gpu->speed_gts, std::nullopt);
  EXPECT_EQ(gpu->width, std::nullopt);
  EXPECT_EQ(gpu->max_width, std::nullopt);
}

TEST(Pci, FilesThatAreMissingEmptyOrOdd) {
  const FixtureHost host;
  for (const char* content : {"", "\n", "garbage\n", "-1\n", "99999999999999999999999\n"}) {
    host.AddPci({kRoot, kGpu}, content, content, content, content, content, "x");
    for (const char* name : {"vendor", "device", "numa_node", "aer_dev_fatal"}) {
      host.Write(host.PciFolder(kGpu) + name, content);
    }
    const auto gpu = ReadPciFunction(host.sys(), kGpu);
    ASSERT_TRUE(gpu);
    EXPECT_EQ(gpu->speed_gts, std::nullopt);
    EXPECT_EQ(gpu->max_width, std::nullopt);
    EXPECT_EQ(gpu->numa_node, -1);
    EXPECT_EQ(gpu->aer_fatal, std::nullopt) << content;
    EXPECT_FALSE(gpu->config.unreachable);
  }
  for (const char* name : {"class", "vendor", "config", "current_link_speed", "max_link_width",
                           "aer_dev_fatal", "aer_dev_correctable", "numa_node"}) {
    host.Remove(host.PciFolder(kGpu) + name);
  }
  const auto gpu = ReadPciFunction(host.sys(), kGpu);
  ASSERT_TRUE(gpu);
  EXPECT_EQ(gpu->config_bytes, 0u);
  EXPECT_EQ(gpu->aer_correctable, std::nullopt);
}

TEST(Pci, Iommu) {
  FixtureHost host;
  host.AddPci({kRoot, kGpu}, "0x030200", "", "", "", "");
  EXPECT_EQ(ReadIommuMode(host.sys(), {kGpu}), "off");
  host.Write("sys/class/iommu/dmar0/x", "");
  EXPECT_EQ(ReadIommuMode(host.sys(), {kGpu}), std::nullopt);  // its group is not readable
  host.Write("sys/kernel/iommu_groups/7/type", "identity\n");
  host.Link(host.PciFolder(kGpu) + "iommu_group", host.sys() + "/kernel/iommu_groups/7");
  EXPECT_EQ(ReadIommuMode(host.sys(), {kGpu, "bad"}), "passthrough");
  host.Write("sys/kernel/iommu_groups/7/type", "DMA-FQ\n");
  EXPECT_EQ(ReadIommuMode(host.sys(), {kGpu}), "translated");
  EXPECT_EQ(ReadIommuMode(host.sys(), {}), std::nullopt);
  host.Remove("sys/class");
  EXPECT_EQ(ReadIommuMode(host.sys(), {kGpu}), std::nullopt);
}

TEST(Pci, PeerMemoryModule) {
  FixtureHost host;
  EXPECT_EQ(ReadPeerMemoryModule(host.sys()), false);
  host.Write("sys/module/nvidia_peermem/version", "550\n");
  EXPECT_EQ(ReadPeerMemoryModule(host.sys()), true);
  host.Remove("sys/module");
  EXPECT_EQ(ReadPeerMemoryModule(host.sys()), std::nullopt);
}

// The machine that runs the tests: whatever it has, reading it works.
TEST(Pci, ThisHost) {
  const auto functions = std::filesystem::exists("/sys/bus/pci/devices");
  if (!functions) GTEST_SKIP() << "no PCI bus on this host";
  size_t read = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/bus/pci/devices")) {
    const std::string address = entry.path().filename();
    const auto function = ReadPciFunction("/sys", address);
    ASSERT_TRUE(function) << address;
    EXPECT_NE(function->class_code, 0u) << address;
    EXPECT_FALSE(function->config.unreachable) << address;
    EXPECT_EQ(PciPathToRoot("/sys", address).front(), address);
    ++read;
  }
  if (read == 0) GTEST_SKIP() << "no PCI function on this host";
}

}  // namespace
}  // namespace mycroft
