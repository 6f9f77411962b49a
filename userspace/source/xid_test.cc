// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/xid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

namespace mycroft {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kSecond = 1'000'000'000;

XidReport Parse(const std::string& line, XidParse expected = XidParse::kXid) {
  XidReport report;
  EXPECT_EQ(ParseXid(line, &report), expected) << line;
  return report;
}

TEST(Xid, KnownVariants) {
  XidReport r = Parse(
      "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.");
  EXPECT_EQ(r.address, "0000:3b:00.0");
  EXPECT_EQ(r.number, 79u);
  EXPECT_EQ(r.pid, 1234u);
  EXPECT_EQ(r.process, "python3");
  EXPECT_EQ(r.text, "GPU has fallen off the bus.");
  EXPECT_FALSE(r.nvswitch);

  r = Parse("NVRM: Xid (PCI:0000:AF:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen");
  EXPECT_EQ(r.address, "0000:af:00.0");
  EXPECT_EQ(r.pid, 0u);
  EXPECT_EQ(r.process, "");

  r = Parse("NVRM: Xid (0000:03:00): 14, Channel 00000001");
  EXPECT_EQ(r.address, "0000:03:00.0");
  EXPECT_EQ(r.number, 14u);
  EXPECT_EQ(r.text, "Channel 00000001");

  r = Parse(
      "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, name=train, Contained: SM (0x1). "
      "RST: No, D-RST: No");
  EXPECT_EQ(r.gpu_instance, 5u);
  EXPECT_EQ(r.number, 94u);
  EXPECT_EQ(r.pid, 7194u);

  r = Parse("NVRM: Xid (PCI:0000:0f:00): 64, pid=57530, Row Remapper Error: (0x5d28c03a0)");
  EXPECT_EQ(r.pid, 57530u);
  EXPECT_EQ(r.text, "Row Remapper Error: (0x5d28c03a0)");

  r = Parse("NVRM: Xid (PCI:0000:65:00): 119, Timeout after 6s of waiting for RPC response");
  EXPECT_EQ(r.number, 119u);
  EXPECT_EQ(r.text, "Timeout after 6s of waiting for RPC response");

  r = Parse("NVRM: Xid (PCI:10000:65:00): 45, pid=1");
  EXPECT_EQ(r.address, "10000:65:00.0");
  EXPECT_EQ(r.text, "");

  r = Parse("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.");
  EXPECT_EQ(r.address, "0000:3b:00.0");
  EXPECT_EQ(r.number, 79u);
  r = Parse("NVRM: GPU at PCI:0000:3b:00: GPU has fallen off the bus.");
  EXPECT_EQ(r.address, "0000:3b:00.0");
}

TEST(Xid, SwitchReports) {
  XidReport r = Parse("nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 20034, Fatal, Link 24 LTSSM "
                      "Fault Up");
  EXPECT_TRUE(r.nvswitch);
  EXPECT_TRUE(r.fatal);
  EXPECT_EQ(r.address, "0000:c5:00.0");
  EXPECT_EQ(r.number, 20034u);
  EXPECT_EQ(r.link, 24u);
  r = Parse("nvidia-nvswitch4: SXid (PCI:0000:c6:00.0): 19084, Non-fatal, Link 29 AN1 Heartbeat "
            "Timeout Error (First)");
  EXPECT_FALSE(r.fatal);
  EXPECT_EQ(r.link, 29u);
  r = Parse("nvidia-nvswitch2: SXid (PCI:0000:c4:00.0): 10002, Severity 5 Engine instance 00");
  EXPECT_EQ(r.link, std::nullopt);
}

TEST(Xid, OtherLinesAndBrokenOnes) {
  for (const char* line :
       {"", "usb 1-1: new device", "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15",
        "NVRM: GPU at PCI:0000:3b:00: GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7",
        "nvidia-nvswitch0: open (major=234)", "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed!"}) {
    Parse(line, XidParse::kOther);
  }
  for (const char* line :
       {"NVRM: Xid", "NVRM: Xid (", "NVRM: Xid (PCI:0000:3b:00", "NVRM: Xid (PCI:0000:3b:00): ",
        "NVRM: Xid (PCI:zz:3b:00): 79", "NVRM: Xid (PCI:0000:3b:00): 0, x",
        "NVRM: Xid (PCI:0000:3b:00): 99999999999, x", "nvidia-nvswitch0: SXid (PCI:",
        "NVRM: GPU nowhere has fallen off the bus"}) {
    Parse(line, XidParse::kMalformed);
  }
}

TEST(Xid, Table) {
  ASSERT_NE(FindXid(79), nullptr);
  EXPECT_TRUE(FindXid(79)->hardware);
  EXPECT_EQ(FindXid(79)->origin, XidOrigin::kPcie);
  EXPECT_EQ(FindXid(31)->origin, XidOrigin::kApplication);
  EXPECT_FALSE(FindXid(31)->hardware);
  EXPECT_TRUE(FindXid(43)->follower);
  EXPECT_TRUE(FindXid(45)->follower);
  EXPECT_EQ(FindXid(74)->origin, XidOrigin::kNvlink);
  for (const uint32_t memory : {48u, 63u, 64u, 92u, 94u, 95u}) {
    EXPECT_EQ(FindXid(memory)->origin, XidOrigin::kMemory) << memory;
  }
  EXPECT_EQ(FindXid(7777), nullptr);
  for (uint32_t n = 0; n < 200; ++n) {  // the table is sorted
    if (const XidMeaning* meaning = FindXid(n)) {
      EXPECT_EQ(meaning->number, n);
    }
  }
}

TEST(Xid, KmsgRecords) {
  auto record = ParseKmsg("6,339,5140900,-;NVRM: loading");
  ASSERT_TRUE(record);
  EXPECT_EQ(record->sequence, 339u);
  EXPECT_EQ(record->time_us, 5140900u);
  EXPECT_EQ(record->message, "NVRM: loading");
  record = ParseKmsg("3,1,2,c,caller=T1;a\\x0ab\\xzz\x01");
  ASSERT_TRUE(record);
  EXPECT_EQ(record->message, "a?b\\xzz?");
  for (const char* line : {"", ";", "x", "6,1;x", "6,a,2,-;x", "6,1,-2,-;x", "6,1,2", "-1,1,2,-;x",
                           "99999999999999999999,1,2,-;x"}) {
    EXPECT_FALSE(ParseKmsg(line)) << line;
  }
}

class KernelLogTest : public ::testing::Test {
 protected:
  KernelLogTest() {
    char name[] = "/tmp/mycroft-kmsg-XXXXXX";
    const int fd = ::mkstemp(name);
    if (fd < 0) ::abort();
    ::close(fd);
    path_ = name;
  }
  ~KernelLogTest() override { std::remove(path_.c_str()); }
  void Add(const std::string& text) {
    std::ofstream(path_, std::ios::app | std::ios::binary) << text;
  }
  std::string path_;
};

TEST_F(KernelLogTest, BacklogThenNews) {
  Add("6,10,1000000,-;usb 1-1: hello\n SUBSYSTEM=usb\n"
      "3,11,2000000,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=a, MMU Fault\n");
  auto log = KernelLog::Open(path_);
  ASSERT_TRUE(log.ok()) << log.status();
  KernelLogBatch batch = (*log)->Read(100 * kSecond);
  ASSERT_THAT(batch.xids, SizeIs(1));
  EXPECT_TRUE(batch.xids[0].backlog);
  EXPECT_EQ(batch.xids[0].t_ns, 2 * kSecond);
  EXPECT_FALSE(batch.more);
  // The log's clock is behind: it came after the last look all the same.
  Add("3,12,50000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=a, gone\n");
  batch = (*log)->Read(101 * kSecond);
  ASSERT_THAT(batch.xids, SizeIs(1));
  EXPECT_FALSE(batch.xids[0].backlog);
  EXPECT_EQ(batch.xids[0].t_ns, 100 * kSecond);
  // And one that is ahead.
  Add("3,13,500000000,-;NVRM: Xid (PCI:0000:3b:00): 45, pid=7, name=a, x\n");
  batch = (*log)->Read(102 * kSecond);
  ASSERT_THAT(batch.xids, SizeIs(1));
  EXPECT_EQ(batch.xids[0].t_ns, 102 * kSecond);
  EXPECT_THAT((*log)->Read(103 * kSecond).xids, IsEmpty());
  EXPECT_EQ((*log)->records(), 4u);
  EXPECT_EQ((*log)->lost(), 0u);
  EXPECT_EQ((*log)->malformed(), 0u);
}

TEST_F(KernelLogTest, LossAndNonsenseAreCounted) {
  Add("6,10,1,-;a\n6,15,2,-;b\nnonsense\n3,16,3,-;NVRM: Xid (PCI:broken\n");
  auto log = KernelLog::Open(path_);
  ASSERT_TRUE(log.ok());
  EXPECT_THAT((*log)->Read(kSecond).xids, IsEmpty());
  EXPECT_EQ((*log)->records(), 3u);
  EXPECT_EQ((*log)->lost(), 4u);
  EXPECT_EQ((*log)->malformed(), 2u);
}

TEST_F(KernelLogTest, IsBounded) {
  for (int i = 0; i < 5000; ++i) {
    Add("3," + std::to_string(i) + "," + std::to_string(i) +
        ",-;NVRM: Xid (PCI:0000:3b:00): 45, pid=7, name=a, x\n");
  }
  auto log = KernelLog::Open(path_);
  ASSERT_TRUE(log.ok());
  size_t found = 0;
  KernelLogBatch batch;
  do {
    batch = (*log)->Read(kSecond, 1000);
    EXPECT_LT(batch.xids.size(), 1300u);  // a file gives more than one record at a time
    found += batch.xids.size();
    for (const TimedXid& xid : batch.xids) EXPECT_TRUE(xid.backlog);
  } while (batch.more);
  EXPECT_EQ(found, 5000u);
}

TEST(KernelLog, SaysWhyItCannotBeRead) {
  const auto log = KernelLog::Open("/nowhere/kmsg");
  EXPECT_TRUE(absl::IsNotFound(log.status()));
  EXPECT_THAT(std::string(log.status().message()), HasSubstr("mount /dev/kmsg"));
}

TEST(KernelLog, RealOneWhereItCanBeRead) {
  auto log = KernelLog::Open("/dev/kmsg");
  if (!log.ok()) GTEST_SKIP() << "needs CAP_SYSLOG: " << log.status();
  (*log)->Read(UINT64_MAX / 2, 100'000);
  EXPECT_EQ((*log)->malformed(), 0u);
}

}  // namespace
}  // namespace mycroft
