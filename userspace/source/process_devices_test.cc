// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/process_devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "userspace/source/testing/fixture_host.h"

namespace mycroft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(ProcessDevices, OpenOnes) {
  const FixtureHost host;
  host.AddProcess(7, {"/dev/null", "/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm",
                      "/dev/nvidia3", "/dev/infiniband/uverbs1", "/dev/infiniband/uverbs0",
                      "/dev/infiniband/rdma_cm", "socket:[99]", "/dev/nvidia12345",
                      "/dev/infiniband/uverbs", "/opt/dev/nvidia1",
                      "/dev/nvidia-caps/nvidia-cap1"});
  const auto devices = ReadOpenDevices(host.proc(), 7);
  ASSERT_TRUE(devices);
  EXPECT_THAT(devices->gpu_minors, ElementsAre(3));
  EXPECT_THAT(devices->uverbs, ElementsAre("uverbs0", "uverbs1"));
  EXPECT_FALSE(ReadOpenDevices(host.proc(), 8));
}

TEST(ProcessDevices, OfSeveralGpusTheMappedOnes) {
  const FixtureHost host;
  host.AddProcess(7, {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2"});
  EXPECT_THAT(ReadOpenDevices(host.proc(), 7)->gpu_minors, ElementsAre(0, 1, 2));
  host.Write("proc/7/maps",
             "7f0000000000-7f0000100000 rw-s 00000000 00:05 411 /dev/nvidia1\n"
             "7f0000200000-7f0000300000 rw-s 00000000 00:05 413 /dev/nvidia9\n"
             "7f0000400000-7f0000500000 rw-s 00000000 00:05 414 /dev/nvidia-uvm\n");
  EXPECT_THAT(ReadOpenDevices(host.proc(), 7)->gpu_minors, ElementsAre(1));
  host.Write("proc/7/maps", "7f0000200000-7f0000300000 rw-s 0 00:05 413 /dev/nvidia9\n");
  EXPECT_THAT(ReadOpenDevices(host.proc(), 7)->gpu_minors, ElementsAre(0, 1, 2));
}

TEST(ProcessDevices, NvidiaMinors) {
  const FixtureHost host;
  EXPECT_THAT(ReadNvidiaMinors(host.proc()), IsEmpty());
  host.AddNvidia(0, "0000:1b:00.0");
  host.AddNvidia(1, "0000:43:00.0");
  host.Write("proc/driver/nvidia/gpus/0000:52:00.0/information", "Model: x\nDevice Minor: \t 2\n");
  host.Write("proc/driver/nvidia/gpus/0000:53:00.0/other", "");
  EXPECT_THAT(ReadNvidiaMinors(host.proc()),
              ElementsAre(Pair(0, "0000:1b:00.0"), Pair(1, "0000:43:00.0")));
  for (const char* bad : {"", "Bus Location: 0000:1b:00.0\n", "Device Minor: 1\n",
                          "Bus Location: 0000:1b:00.0\nDevice Minor: x\n",
                          "Bus Location: ../../etc\nDevice Minor: 1\n",
                          "Bus Location: 0000:1b:00.0\nDevice Minor: 4096\n",
                          "Bus Location:\nDevice Minor:\n"}) {
    EXPECT_FALSE(ParseNvidiaInformation(bad)) << bad;
  }
}

TEST(ProcessDevices, Limits) {
  EXPECT_EQ(ParseMemlockLimit("Limit  Soft\nMax locked memory   65536   65536   bytes\n"), 65536u);
  EXPECT_EQ(ParseMemlockLimit("x\nMax locked memory   unlimited   unlimited   bytes\n"), UINT64_MAX);
  EXPECT_EQ(ParseMemlockLimit("Max locked memory 1\n"), 1u);
  for (const char* bad : {"", "Max locked memory", "Max locked memory   ", "Max locked memory x\n",
                          "Max open files 5\n", "Max locked memory -1 1 bytes\n"}) {
    EXPECT_EQ(ParseMemlockLimit(bad), std::nullopt) << bad;
  }
  EXPECT_EQ(ParseLockedBytes("Name:\tx\nVmLck:\t      16 kB\nVmPin:\t       4 kB\n"), 20u * 1024);
  for (const char* bad : {"", "VmLck:\t1 kB\n", "VmLck:\t1\nVmPin:\t1\n", "VmLck:\nVmPin:\n",
                          "VmLck:\tx kB\nVmPin:\t1 kB\n",
                          "VmLck:\t18446744073709551615 kB\nVmPin:\t1 kB\n"}) {
    EXPECT_EQ(ParseLockedBytes(bad), std::nullopt) << bad;
  }
  // This process has limits and a status that are understood.
  const std::string self = "/proc/" + std::to_string(getpid());
  std::ifstream limits(self + "/limits"), status(self + "/status");
  EXPECT_TRUE(ParseMemlockLimit(std::string(std::istreambuf_iterator<char>(limits), {})));
  EXPECT_TRUE(ParseLockedBytes(std::string(std::istreambuf_iterator<char>(status), {})));
}

TEST(ProcessDevices, SharedMemory) {
  EXPECT_EQ(ShmFileSystem("22 1 254:0 / / rw - ext4 /dev/vda rw\n"), "ext4");
  EXPECT_EQ(ShmFileSystem("22 1 254:0 / / rw - ext4 /dev/vda rw\n"
                          "26 24 0:25 / /dev/shm rw,nosuid shared:3 - tmpfs tmpfs rw\n"
                          "24 22 0:5 / /dev rw - devtmpfs devtmpfs rw\n"),
            "tmpfs");
  EXPECT_EQ(ShmFileSystem("26 24 0:25 / /dev/shm rw - tmpfs tmpfs rw\n"
                          "27 26 0:40 / /dev/shm rw - fuse.evil evil rw\n"),
            "fuse.evil");  // mounted over
  for (const char* bad : {"", "\n", "26 24", "26 24 0:25 / /dev/shm rw tmpfs", " - ", "- tmpfs"}) {
    EXPECT_EQ(ShmFileSystem(bad), "") << bad;
  }
  // The real one of this process, where it has one.
  const auto real = ReadShmSpace("/proc", static_cast<uint32_t>(getpid()));
  if (real) {
    EXPECT_GE(real->bytes, real->free_bytes);
  }

  const FixtureHost host;
  host.AddProcess(7, {});
  const auto space = ReadShmSpace(host.proc(), 7);
  ASSERT_TRUE(space);
  EXPECT_GT(space->bytes, 0u);
  // A process that has put something else there, or a link.
  host.Remove("proc/7/root/dev/shm");
  host.Link("proc/7/root/dev/shm", "/tmp");
  EXPECT_FALSE(ReadShmSpace(host.proc(), 7));
  host.Write("proc/7/mountinfo", "26 24 0:25 / /dev/shm rw - fuse fuse rw\n");
  EXPECT_FALSE(ReadShmSpace(host.proc(), 7));
  EXPECT_FALSE(ReadShmSpace(host.proc(), 8));
}

TEST(ProcessDevices, MemoryCgroup) {
  const FixtureHost host;
  const std::string root = host.sys() + "/fs/cgroup";
  host.AddProcess(7, {});
  MemoryPressure memory = ReadMemoryPressure("0::/job/7\n", root);
  EXPECT_EQ(memory.limit_hits, 7u);
  EXPECT_EQ(memory.stall_ns, 5'000'000u);
  EXPECT_EQ(memory.oom_kills, 0u);
  host.Write("sys/fs/cgroup/memory/old/memory.failcnt", "12\n");
  host.Write("sys/fs/cgroup/memory/old/memory.oom_control",
             "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
  memory = ReadMemoryPressure("9:memory:/old\n1:name=systemd:/x\n", root);
  EXPECT_EQ(memory.limit_hits, 12u);
  EXPECT_EQ(memory.stall_ns, std::nullopt);
  EXPECT_EQ(memory.oom_kills, 2u);
  for (const char* bad : {"", "0::/none\n", "0::/../../etc\n", "memory", ":::::\n"}) {
    memory = ReadMemoryPressure(bad, root);
    EXPECT_EQ(memory.limit_hits, std::nullopt) << bad;
    EXPECT_EQ(memory.oom_kills, std::nullopt) << bad;
  }
  EXPECT_EQ(KeyedNumber("oom 1\noom_kill 2\n", "oom_kill"), 2u);
  EXPECT_EQ(KeyedNumber("oom_kill 2", "oom"), std::nullopt);
  EXPECT_EQ(KeyedNumber("oom x\n", "oom"), std::nullopt);
  EXPECT_EQ(ParsePressureTotal("full avg10=0 total=4\nsome avg10=0.00 total=7\n"), 7000u);
  for (const char* bad : {"", "some", "some total=", "some total=x\n", "full total=3\n",
                          "some avg10=0\nfull total=3\n", "some total=18446744073709551615\n"}) {
    EXPECT_EQ(ParsePressureTotal(bad), std::nullopt) << bad;
  }
}

}  // namespace
}  // namespace mycroft
