// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/proc.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <filesystem>
#include <fstream>
#include <thread>

namespace mycroft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Field 3 and what follows, as the kernel prints them; start time is 98765.
constexpr char kRest[] =
    " S 41 42 42 0 -1 4194560 1234 0 17 0 100 50 0 0 20 0 9 0 98765 1000000 2000 "
    "18446744073709551615 1 1 0 0 0 0 0 4096 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n";

class ProcTree : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/mycroft-proc-test-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path full = std::filesystem::path(root_) / path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full, std::ios::binary) << text;
  }
  void Link(const std::string& path, const std::string& target) {
    const std::filesystem::path full = std::filesystem::path(root_) / path;
    std::filesystem::create_directories(full.parent_path());
    ASSERT_EQ(symlink(target.c_str(), full.c_str()), 0);
  }
  std::string root_;
};

TEST(ProcStatText, Fields) {
  const auto stat = ParseProcStat(std::string("42 (python)") + kRest);
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->name, "python");
  EXPECT_EQ(stat->state, 'S');
  EXPECT_EQ(stat->parent, 41u);
  EXPECT_EQ(stat->major_faults, 17u);
  EXPECT_EQ(stat->start_time, 98765u);
}

TEST(ProcStatText, NamesOfAnyKind) {
  for (const std::string name :
       {"a b", "a) S 1 (b", "(", ")", "((x))", "", " ", "a\nb", "\xff\x01"}) {
    SCOPED_TRACE(name);
    const auto stat = ParseProcStat("42 (" + name + ")" + kRest);
    ASSERT_TRUE(stat);
    EXPECT_EQ(stat->name, name);
    EXPECT_EQ(stat->parent, 41u);
    EXPECT_EQ(stat->start_time, 98765u);
  }
}

TEST(ProcStatText, CutAnywhereItIsMalformedOrWhole) {
  const std::string whole = std::string("42 (a b)") + kRest;
  const size_t needed = whole.find(" 98765 ");
  for (size_t length = 0; length < whole.size(); ++length) {
    const auto stat = ParseProcStat(whole.substr(0, length));
    if (length <= needed + 1) {
      EXPECT_FALSE(stat) << length;
    } else if (length >= needed + 6) {
      ASSERT_TRUE(stat) << length;
      EXPECT_EQ(stat->start_time, 98765u);
    }
  }
}

TEST(ProcStatText, Malformed) {
  for (const char* text :
       {"", "42", "42 (x", "42 x) S", ")(",
        "42 (x) SS 41 42 42 0 -1 4 1 0 17 0 1 5 0 0 20 0 9 0 98 1",
        "42 (x) S -41 42 42 0 -1 4 1 0 17 0 1 5 0 0 20 0 9 0 98 1",
        "42 (x) S 41 42 42 0 -1 4 1 0 17 0 1 5 0 0 20 0 9 0 98x 1",
        "42 (x) S 41 42 42 0 -1 4 1 0 zz 0 1 5 0 0 20 0 9 0 98 1",
        "42 (x) S 41 42 42 0 -1 4 1 0 17 0 1 5 0 0 20 0 9 0 99999999999999999999999 1"}) {
    EXPECT_FALSE(ParseProcStat(text)) << text;
  }
}

TEST(SchedstatText, AllForms) {
  const auto stat = ParseSchedstat("123456789 987654321 42\n");
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->run_ns, 123456789u);
  EXPECT_EQ(stat->runq_wait_ns, 987654321u);
  for (const char* text : {"", "1", "1\n", "-1 2 3", "1 x 3", "1.5 2 3"}) {
    EXPECT_FALSE(ParseSchedstat(text)) << text;
  }
}

TEST(CgroupText, Version2) {
  EXPECT_THAT(CpuCgroupFolders("0::/kubepods/pod1/c1\n", "/cg"),
              ElementsAre("/cg/kubepods/pod1/c1", "/cg/unified/kubepods/pod1/c1"));
  EXPECT_THAT(CpuCgroupFolders("0::/", "/cg"), ElementsAre("/cg/", "/cg/unified/"));
}

TEST(CgroupText, Version1) {
  EXPECT_THAT(
      CpuCgroupFolders("12:memory:/m\n4:cpu,cpuacct:/job\n3:cpuset:/s\n1:name=systemd:/x\n", "/cg"),
      ElementsAre("/cg/cpu/job", "/cg/cpu,cpuacct/job"));
  EXPECT_THAT(CpuCgroupFolders("4:cpuacct,cpu:/job:with:colons\n", "/cg"),
              ElementsAre("/cg/cpu/job:with:colons", "/cg/cpuacct,cpu/job:with:colons"));
}

TEST(CgroupText, Malformed) {
  for (const char* text : {"", "\n\n", "cpu", "4:cpu", "4:cpuset:/a", "::", "0::/../../etc"}) {
    const auto folders = CpuCgroupFolders(text, "/cg");
    for (const std::string& folder : folders) {
      EXPECT_EQ(folder.find(".."), std::string::npos) << text;
    }
    if (std::string(text) != "::") {
      EXPECT_THAT(folders, IsEmpty()) << text;
    }
  }
}

TEST(CpuStatText, BothVersions) {
  const auto v2 = ParseCpuStat(
      "usage_usec 100\nuser_usec 60\nsystem_usec 40\nnr_periods 10\nnr_throttled 3\n"
      "throttled_usec 250\nnr_bursts 0\nburst_usec 0\n");
  ASSERT_TRUE(v2);
  EXPECT_EQ(v2->throttled_periods, 3u);
  EXPECT_EQ(v2->throttled_ns, 250'000u);
  const auto v1 = ParseCpuStat("nr_periods 10\nnr_throttled 4\nthrottled_time 123456\n");
  ASSERT_TRUE(v1);
  EXPECT_EQ(v1->throttled_periods, 4u);
  EXPECT_EQ(v1->throttled_ns, 123456u);
  // The root group of version 2 has no throttling.
  EXPECT_FALSE(ParseCpuStat("usage_usec 100\nuser_usec 60\nsystem_usec 40\n"));
  for (const char* text : {"", "nr_throttled", "nr_throttled x\n", "nr_throttled -1\n"}) {
    EXPECT_FALSE(ParseCpuStat(text)) << text;
  }
}

TEST(ContainerIdText, FindsTheId) {
  const std::string id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
  EXPECT_EQ(ContainerId("0::/system.slice/docker-" + id + ".scope\n"), id);
  EXPECT_EQ(ContainerId("0::/kubepods/burstable/pod12ab-34/" + id), id);
  EXPECT_EQ(ContainerId("11:cpu:/docker/" + id + "\n"), id);
  EXPECT_EQ(ContainerId("0::/crio-" + id + "/x/" + std::string(64, 'f')), id);
  EXPECT_EQ(ContainerId("0::/user.slice/user-0.slice\n"), "");
  EXPECT_EQ(ContainerId("0::/" + id.substr(1)), "");  // 63 digits
  EXPECT_EQ(ContainerId("0::/" + id + "0"), "");      // 65 digits
  EXPECT_EQ(ContainerId(""), "");
  EXPECT_EQ(ContainerId(id), id);
}

TEST_F(ProcTree, SmallFiles) {
  Write("f", std::string(10'000, 'x'));
  Write("empty", "");
  EXPECT_EQ(ReadSmallFile(root_ + "/f")->size(), 10'000u);
  EXPECT_EQ(ReadSmallFile(root_ + "/f", 5'000)->size(), 5'000u);
  EXPECT_EQ(ReadSmallFile(root_ + "/empty"), "");
  EXPECT_FALSE(ReadSmallFile(root_ + "/missing"));
  EXPECT_FALSE(ReadSmallFile(root_));  // a folder
}

TEST_F(ProcTree, NumericEntries) {
  for (const char* name : {"10", "9", "1", "self", "1x", "-1", "4294967295", "4294967296", "007"}) {
    Write(std::string(name) + "/stat", "");
  }
  EXPECT_THAT(ListNumericEntries(root_), ElementsAre(1, 7, 9, 10, 4294967295u));
  EXPECT_THAT(ListNumericEntries(root_ + "/missing"), IsEmpty());
}

TEST_F(ProcTree, StatAndInnerPid) {
  Write("42/stat", std::string("42 (x y)") + kRest);
  Write("42/status", "Name:\tx\nPid:\t42\nNSpid:\t42\t7\nNSpgid:\t42\t7\n");
  Write("43/status", "Name:\tx\nPid:\t43\nNSpid:\t43\n");
  Write("44/status", "Name:\tx\nNSpid:\n");
  Write("45/status", "Name:\tNSpid: 3\nPid:\t45\n");  // the name is not the field
  Write("46/status", "Name:\tx\nNSpid:\t46\tseven");
  ASSERT_TRUE(ReadProcStat(root_, 42));
  EXPECT_EQ(ReadProcStat(root_, 42)->name, "x y");
  EXPECT_FALSE(ReadProcStat(root_, 43));
  EXPECT_EQ(ReadInnerPid(root_ + "/42/status"), 7u);
  EXPECT_EQ(ReadInnerPid(root_ + "/43/status"), 43u);
  EXPECT_FALSE(ReadInnerPid(root_ + "/44/status"));
  EXPECT_FALSE(ReadInnerPid(root_ + "/45/status"));
  EXPECT_FALSE(ReadInnerPid(root_ + "/46/status"));
  EXPECT_FALSE(ReadInnerPid(root_ + "/47/status"));
}

TEST_F(ProcTree, MemfdsByName) {
  Link("42/fd/0", "/dev/null");
  Link("42/fd/11", "/memfd:mycroft-board (deleted)");
  Link("42/fd/3", "/memfd:mycroft-board");
  Link("42/fd/4", "/memfd:mycroft-board2 (deleted)");
  Link("42/fd/5", "/tmp/memfd:mycroft-board (deleted)");
  Link("42/fd/6", std::string(1000, 'x'));
  bool denied = false;
  EXPECT_THAT(FindMemfds(root_, 42, "mycroft-board", &denied),
              ElementsAre(root_ + "/42/fd/11", root_ + "/42/fd/3"));
  EXPECT_THAT(FindMemfds(root_, 43, "mycroft-board", &denied), IsEmpty());
  EXPECT_FALSE(denied);
}

TEST(ProcSelf, MemfdOfThisProcess) {
  const uint32_t pid = static_cast<uint32_t>(getpid());
  EXPECT_THAT(FindMemfds("/proc", pid, "mycroft-proc-test", nullptr), IsEmpty());
  const int fd = memfd_create("mycroft-proc-test", MFD_CLOEXEC);
  ASSERT_GE(fd, 0);
  EXPECT_THAT(FindMemfds("/proc", pid, "mycroft-proc-test", nullptr),
              ElementsAre("/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd)));
  close(fd);
  const auto stat = ReadProcStat("/proc", pid);
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->parent, static_cast<uint32_t>(getppid()));
  EXPECT_GT(stat->start_time, 0u);
  EXPECT_TRUE(ReadInnerPid("/proc/self/status"));
}

TEST_F(ProcTree, Maps) {
  Write("42/maps",
        "7f0000000000-7f0000001000 r-xp 00000000 08:01 1 /usr/lib/libc.so.6\n"
        "7f0000002000-7f0000003000 r-xp 00000000 08:01 2 /opt/nccl/libnccl.so.2.28.9\n");
  EXPECT_TRUE(MapsContain(root_, 42, "libnccl.so"));
  EXPECT_FALSE(MapsContain(root_, 42, "libcuda.so"));
  EXPECT_FALSE(MapsContain(root_, 43, "libnccl.so"));
}

constexpr char kTcpHeading[] =
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout "
    "inode\n";

TEST_F(ProcTree, TcpSocketsOfTheProcessOnly) {
  Link("42/fd/3", "socket:[1001]");
  Link("42/fd/4", "socket:[1002]");
  Link("42/fd/5", "socket:[1003]");
  Link("42/fd/6", "socket:[]");
  Link("42/fd/7", "socket:[12x]");
  Link("42/fd/8", "pipe:[1004]");
  Write("42/net/tcp",
        std::string(kTcpHeading) +
            "   0: 0100007F:1F90 0100007F:C350 01 0000ABCD:00000010 01:00000014 00000003     0    "
            "    0 1001 2 0000000000000000\n"
            "   1: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0    "
            "    0 1002 1\n"  // listening
            "   2: 0100007F:1F92 0100007F:C351 01 00000001:00000000 00:00000000 00000000     0    "
            "    0 1004 1\n"  // of another process
            "   3: 0100007F:1F93 0100007F:C352 01 zz:00000000 00:00000000 00000000     0    "
            "    0 1001 1\n"
            "   4: 0100007F:1F94 0100007F:C353 01 00000001 00:00000000 00000000     0    "
            "    0 1001 1\n"
            "   5: short line 01\n"
            "\n");
  Write("42/net/tcp6",
        std::string(kTcpHeading) +
            "   0: 00000000000000000000000001000000:1F90 00000000000000000000000001000000:C350 01 "
            "00000000:000000FF 00:00000000 00000000     0        0 1003 1\n"
            "   1: 00000000000000000000000001000000:1F90 0000");  // cut off
  const auto sockets = ReadTcpSockets(root_, 42);
  ASSERT_THAT(sockets, SizeIs(2));
  EXPECT_EQ(sockets[0].local, "0100007F:1F90");
  EXPECT_EQ(sockets[0].remote, "0100007F:C350");
  EXPECT_EQ(sockets[0].tx_queue, 0xABCDu);
  EXPECT_EQ(sockets[0].rx_queue, 0x10u);
  EXPECT_EQ(sockets[0].retransmits, 3u);
  EXPECT_EQ(sockets[1].rx_queue, 0xFFu);
  EXPECT_EQ(sockets[1].retransmits, 0u);
  EXPECT_THAT(ReadTcpSockets(root_, 43), IsEmpty());
}

TEST(PrintableName, KeepsWhatCanBePrinted) {
  EXPECT_EQ(PrintableName(""), "");
  EXPECT_EQ(PrintableName("pg_0 ~(x)"), "pg_0 ~(x)");
  EXPECT_EQ(PrintableName("a\nb\x1b[2J\x7f\xff"), "a?b?[2J??");
  EXPECT_EQ(PrintableName(std::string("a\0b", 3)), "a?b");
  const char unterminated[4] = {'a', '\x01', 'b', 'c'};
  EXPECT_EQ(PrintableName(unterminated, sizeof(unterminated)), "a?bc");
  EXPECT_EQ(PrintableName(std::string(200, 'x')), std::string(63, 'x'));
}

TEST(ProcStatFile, MeansOneProcessAndSeesItsEnd) {
  int go[2];
  ASSERT_EQ(pipe(go), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    char byte;
    close(go[1]);
    _exit(read(go[0], &byte, 1) == 0 ? 0 : 1);
  }
  close(go[0]);
  const ProcStatFile file("/proc", static_cast<uint32_t>(pid));
  const ProcStatFile self("/proc", static_cast<uint32_t>(getpid()));
  EndedProcesses ended;
  EXPECT_TRUE(ended.Watch(file));
  EXPECT_TRUE(ended.Watch(self));
  EXPECT_THAT(ended.Ended(), IsEmpty());
  ASSERT_TRUE(file.Read());
  EXPECT_EQ(file.Read()->parent, static_cast<uint32_t>(getpid()));
  close(go[1]);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  EXPECT_THAT(ended.Ended(), ElementsAre(&file));
  EXPECT_EQ(file.Read()->state, 'Z');
  ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
  EXPECT_THAT(ended.Ended(), ElementsAre(&file));
  EXPECT_FALSE(file.Read());
}

// For lack of descriptors nothing can be read: that is not the end of a process.
TEST(IsGone, NeedsNoDescriptor) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const std::string self = "/proc/" + std::to_string(getpid());
  const rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const bool read = ReadProcStat("/proc", static_cast<uint32_t>(getpid())).has_value();
  const bool gone = IsGone(self);
  const bool thread_gone = IsGone(self + "/task/" + std::to_string(getpid()));
  const bool other_gone = IsGone("/proc/999999999");
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_FALSE(read);
  EXPECT_FALSE(gone);
  EXPECT_FALSE(thread_gone);
  EXPECT_TRUE(other_gone);
}

TEST(ProcStatFile, NoSuchProcess) {
  const ProcStatFile file("/proc", 0x3fffff);
  EndedProcesses ended;
  EXPECT_FALSE(ended.Watch(file));
  EXPECT_THAT(ended.Ended(), IsEmpty());
  EXPECT_FALSE(file.Read());
}

TEST(KeptFile, IsReadAgainAndMeansOneThread) {
  std::atomic<uint32_t> tid{0};
  std::atomic<bool> end{false};
  std::thread thread([&] {
    tid = static_cast<uint32_t>(gettid());
    while (!end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  while (tid == 0) std::this_thread::yield();
  const std::string path = "/proc/self/task/" + std::to_string(tid) + "/";
  KeptFile schedstat(path + "schedstat"), cgroup(path + "cgroup");
  const auto first = ParseSchedstat(schedstat.Read(256).value_or(""));
  ASSERT_TRUE(first);
  EXPECT_EQ(cgroup.Read(8192), ReadSmallFile(path + "cgroup", 8192));
  EXPECT_EQ(cgroup.Read(5), ReadSmallFile(path + "cgroup", 5));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto later = ParseSchedstat(schedstat.Read(256).value_or(""));
  ASSERT_TRUE(later);
  EXPECT_GT(later->slices, first->slices);
  end = true;
  thread.join();
  EXPECT_FALSE(schedstat.Read(256));
  EXPECT_FALSE(KeptFile("/nonexistent/stat").Read(256));
}

// One that cannot be held open is read all the same.
TEST(KeptFile, AsManyAsThereMayBe) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  std::deque<KeptFile> files;
  for (rlim_t i = 0; i < std::min<rlim_t>(limit.rlim_cur, 40'000); ++i) {
    ASSERT_TRUE(files.emplace_back("/proc/self/stat").Read(64)) << i;
  }
  files.clear();
  EXPECT_TRUE(KeptFile("/proc/self/stat").Read(64));
}

}  // namespace
}  // namespace mycroft
