// SPDX-License-Identifier: Apache-2.0
//
// The host probes on real threads, processes and connections of this machine.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <thread>

#include "userspace/source/probes/host.h"
#include "userspace/source/probes/testing/bpf_machine.h"
#include "userspace/source/proc.h"

#if MYCROFT_HAVE_BPF
#include <bpf/bpf.h>
#endif

namespace mycroft {
namespace {

using std::chrono::milliseconds;
using ::testing::Contains;
using ::testing::HasSubstr;

uint64_t NowNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

uint32_t OwnTid() { return static_cast<uint32_t>(syscall(SYS_gettid)); }

void PinTo(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

int FirstCpu() {
  cpu_set_t set;
  sched_getaffinity(0, sizeof(set), &set);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) return cpu;
  return 0;
}

struct Pipe {
  Pipe() { EXPECT_EQ(pipe(fds), 0); }
  ~Pipe() {
    close(fds[0]);
    close(fds[1]);
  }
  int fds[2] = {-1, -1};
};

// A thread of this process that does what it is told once it is watched.
class Subject {
 public:
  explicit Subject(std::function<void()> work) {
    thread_ = std::thread([this, work = std::move(work)] {
      tid_ = OwnTid();
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return go_; });
      lock.unlock();
      work();
    });
    while (tid_ == 0) std::this_thread::yield();
  }
  ~Subject() {
    Go();
    thread_.join();
  }
  uint32_t tid() const { return tid_; }
  void Go() {
    const std::lock_guard lock(mutex_);
    go_ = true;
    changed_.notify_all();
  }

 private:
  std::atomic<uint32_t> tid_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool go_ = false;
  std::thread thread_;
};

class HostBpfTest : public ::testing::Test {
 protected:
  void SetUp() override {
    MYCROFT_REQUIRE_BPF();
    ProbeSet::Options options;
    options.objects = {"host"};
    auto set = ProbeSet::Create(options);
    ASSERT_TRUE(set.ok()) << set.status();
    set_ = *std::move(set);
    host_ = std::make_unique<HostProbes>(set_.get());
  }
  ThreadDelayRow RowOf(uint32_t tid) {
    for (ThreadDelayRow& row : host_->Threads(NowNs()))
      if (row.tid == tid) return row;
    ADD_FAILURE() << "no row of thread " << tid;
    return {};
  }
  ProbeRow Probe(const std::string& name) {
    for (ProbeRow& row : set_->Rows())
      if (row.name == name) return row;
    ADD_FAILURE() << "no probe " << name;
    return {};
  }
  void ReadEvents() {
    set_->ReadEvents([this](const mc_event& header, std::span<const std::byte> record) {
      EXPECT_TRUE(host_->TakeRecord(header, record)) << header.kind;
    });
  }
  uint32_t pid_ = static_cast<uint32_t>(getpid());
  std::unique_ptr<ProbeSet> set_;
  std::unique_ptr<HostProbes> host_;
};

TEST_F(HostBpfTest, AlwaysOnProbesAttachHere) {
  for (const char* name : {"host.delay", "host.reclaim", "host.oom", "host.exit", "host.retransmit",
                           "host.sleep_stack"}) {
    const ProbeRow row = Probe(name);
    EXPECT_EQ(row.method, ProbeMethod::kTracepoint) << name << ": " << row.problem;
    EXPECT_EQ(row.problem, "") << name;
  }
}

TEST_F(HostBpfTest, AStarvedThreadWaitsForItsCpu) {
  const int cpu = FirstCpu();
  // Two threads that compute, on one CPU: each waits about half of the time.
  std::atomic<bool> stop{false};
  const auto spin = [&] {
    PinTo(cpu);
    while (!stop) {
    }
  };
  Subject hog(spin), starved(spin);
  host_->Watch(std::vector<HostWatch>{{.pid = pid_, .start_time = 1, .tids = {starved.tid()}}});
  const uint64_t begin = NowNs();
  const std::string schedstat = "/proc/self/task/" + std::to_string(starved.tid()) + "/schedstat";
  const auto before = ParseSchedstat(ReadSmallFile(schedstat).value_or(""));
  hog.Go();
  starved.Go();
  std::this_thread::sleep_for(milliseconds(1500));
  const ThreadDelayRow row = RowOf(starved.tid());
  const auto after = ParseSchedstat(ReadSmallFile(schedstat).value_or(""));
  const uint64_t elapsed = NowNs() - begin;
  stop = true;
  ASSERT_TRUE(before && after);
  // What the kernel itself counts of the same thread.
  const uint64_t kernel_ns = after->runq_wait_ns - before->runq_wait_ns;
  EXPECT_GT(row.runq_ns, elapsed / 4);
  EXPECT_NEAR(static_cast<double>(row.runq_ns), static_cast<double>(kernel_ns),
              static_cast<double>(elapsed) * 0.1);
  EXPECT_GT(row.runq_count, 10u);
  EXPECT_GT(row.runq_max_ns, 500'000u);
  EXPECT_LE(row.runq_max_ns, row.runq_ns);
  EXPECT_EQ(row.pid, pid_);
  // It slept only until it was told to go.
  EXPECT_LT(row.off_cpu_ns, elapsed / 4);
  EXPECT_EQ(row.stack.size(), 0u);  // not armed
  // The hog is not watched.
  for (const ThreadDelayRow& other : host_->Threads(NowNs())) EXPECT_NE(other.tid, hog.tid());
}

TEST_F(HostBpfTest, ASleepIsCountedWhileItLastsAndAfter) {
  std::atomic<bool> stop{false};
  Subject sleeper([&] {
    usleep(300'000);
    while (!stop) usleep(1000);
  });
  host_->Watch(std::vector<HostWatch>{{.pid = pid_, .start_time = 1, .tids = {sleeper.tid()}}});
  sleeper.Go();
  std::this_thread::sleep_for(milliseconds(150));
  const ThreadDelayRow during = RowOf(sleeper.tid());
  EXPECT_EQ(during.state, MC_RUN_ASLEEP);
  EXPECT_GT(during.off_cpu_ns, 100'000'000u);
  EXPECT_GT(during.off_cpu_max_ns, 100'000'000u);
  std::this_thread::sleep_for(milliseconds(300));
  const ThreadDelayRow after = RowOf(sleeper.tid());
  stop = true;
  EXPECT_GE(after.off_cpu_max_ns, 300'000'000u);
  EXPECT_GT(after.off_cpu_ns, during.off_cpu_ns + 200'000'000);
  EXPECT_EQ(after.blocked_ns, 0u);
}

TEST_F(HostBpfTest, CountersNeverGoBack) {
  std::atomic<bool> stop{false};
  Subject busy([&] {
    while (!stop) {
      usleep(500);
      for (const uint64_t end = NowNs() + 100'000; NowNs() < end;) {
      }
    }
  });
  host_->Watch(std::vector<HostWatch>{{.pid = pid_, .start_time = 1, .tids = {busy.tid()}}});
  busy.Go();
  ThreadDelayRow last;
  for (int i = 0; i < 2000; ++i) {
    const ThreadDelayRow row = RowOf(busy.tid());
    ASSERT_GE(row.runq_ns, last.runq_ns);
    ASSERT_GE(row.off_cpu_ns, last.off_cpu_ns);
    ASSERT_GE(row.runq_count, last.runq_count);
    last = row;
  }
  stop = true;
  EXPECT_GT(last.off_cpu_ns, 0u);
}

// vfork blocks the parent in uninterruptible (killable) sleep until the child is done.
TEST_F(HostBpfTest, UninterruptibleSleepIsToldApart) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "NOT TESTED: the thread sanitizer makes a fork of vfork, which blocks nobody";
#endif
  Subject blocked([] {
    const pid_t child = vfork();
    if (child == 0) {
      usleep(400'000);
      _exit(0);
    }
    waitpid(child, nullptr, 0);
  });
  host_->Watch(std::vector<HostWatch>{{.pid = pid_, .start_time = 1, .tids = {blocked.tid()}}});
  ASSERT_TRUE(
      host_->ArmStacks(std::vector<uint32_t>{blocked.tid()}, NowNs() + 10'000'000'000).ok());
  blocked.Go();
  std::this_thread::sleep_for(milliseconds(200));
  const ThreadDelayRow during = RowOf(blocked.tid());
  EXPECT_EQ(during.state, MC_RUN_BLOCKED);
  EXPECT_GT(during.blocked_ns, 100'000'000u);
  std::this_thread::sleep_for(milliseconds(400));
  const ThreadDelayRow after = RowOf(blocked.tid());
  EXPECT_GE(after.blocked_ns, 350'000'000u);
  EXPECT_GE(after.blocked_max_ns, 350'000'000u);
  EXPECT_LE(after.blocked_ns, after.off_cpu_ns);
}

TEST_F(HostBpfTest, TheStackOfTheLongestSleepIsNamed) {
  std::atomic<bool> stop{false};
  const Pipe pipe;  // closed when the reader has ended
  Subject reader([&] {
    char c;
    usleep(1000);
    ssize_t n = read(pipe.fds[0], &c, 1);  // here it sleeps longest
    while (!stop && n == 1) usleep(1000);
  });
  host_->Watch(std::vector<HostWatch>{{.pid = pid_, .start_time = 1, .tids = {reader.tid()}}});
  EXPECT_FALSE(Probe("host.sleep_stack").armed);
  ASSERT_TRUE(host_->ArmStacks(std::vector<uint32_t>{reader.tid()}, NowNs() + 30'000'000'000).ok());
  EXPECT_TRUE(Probe("host.sleep_stack").armed);
  reader.Go();
  // While it sleeps: by the iterator. Names are read on another thread: wait for them.
  ThreadDelayRow row;
  for (int i = 0; i < 100 && row.stack.empty(); ++i) {
    std::this_thread::sleep_for(milliseconds(100));
    row = RowOf(reader.tid());
  }
  EXPECT_THAT(row.stack, Contains(HasSubstr("pipe_read")));
  EXPECT_GT(row.stack_sleep_ns, 10'000'000u);
  // After it: by the wakeup.
  const uint64_t hits = Probe("host.sleep_stack").hits;
  ASSERT_EQ(write(pipe.fds[1], "x", 1), 1);
  std::this_thread::sleep_for(milliseconds(50));
  row = RowOf(reader.tid());
  EXPECT_GT(Probe("host.sleep_stack").hits, hits);
  EXPECT_THAT(row.stack, Contains(HasSubstr("pipe_read")));
  EXPECT_GE(row.stack_sleep_ns + 1'000'000, row.off_cpu_max_ns);
  // Disarmed, nothing more is taken.
  ASSERT_TRUE(host_->ArmStacks({}, 0).ok());
  EXPECT_FALSE(Probe("host.sleep_stack").armed);
  const uint64_t disarmed = Probe("host.sleep_stack").hits;
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(Probe("host.sleep_stack").hits, disarmed);
  stop = true;
}

// A child that waits until it is told to exit, or to be killed.
class Child {
 public:
  explicit Child(int status) {
    int fds[2];
    EXPECT_EQ(pipe(fds), 0);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      char c;
      close(fds[1]);
      ssize_t n = read(fds[0], &c, 1);
      _exit(n >= 0 ? status : 99);
    }
    close(fds[0]);
    write_ = fds[1];
  }
  void Exit() {
    // Not by closing: later children hold copies of the descriptor.
    EXPECT_EQ(write(write_, "x", 1), 1);
    close(write_);
    waitpid(pid_, nullptr, 0);
  }
  void Kill(int signal) {
    kill(pid_, signal);
    close(write_);
    waitpid(pid_, nullptr, 0);
  }
  uint32_t pid() const { return static_cast<uint32_t>(pid_); }

 private:
  pid_t pid_ = -1;
  int write_ = -1;
};

TEST_F(HostBpfTest, TheEndOfAWatchedProcessIsToldWithItsCode) {
  Child exits(3), killed(0), ignored(7);
  host_->Watch(std::vector<HostWatch>{{.pid = exits.pid(), .start_time = 1, .tids = {}},
                                      {.pid = killed.pid(), .start_time = 1, .tids = {}}});
  const uint64_t begin = NowNs();
  exits.Exit();
  ignored.Exit();
  killed.Kill(SIGTERM);
  ReadEvents();
  const std::vector<HostEvent> events = host_->TakeEvents();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, HostEventKind::kExit);
  EXPECT_EQ(events[0].pid, exits.pid());
  EXPECT_EQ(events[0].number, 3u << 8);
  EXPECT_EQ(events[0].text, "exited with status 3");
  EXPECT_GE(events[0].t_ns, begin);
  EXPECT_LE(events[0].t_ns, NowNs());
  EXPECT_EQ(events[1].pid, killed.pid());
  EXPECT_EQ(events[1].number, static_cast<uint32_t>(SIGTERM));
  EXPECT_EQ(events[1].text, "killed by signal 15 (Terminated)");
  EXPECT_EQ(Probe("host.exit").hits, 2u);
  EXPECT_EQ(Probe("host.exit").dropped, 0u);
  EXPECT_TRUE(host_->TakeEvents().empty());
}

TEST_F(HostBpfTest, AThreadThatEndsIsNotTheEndOfItsProcess) {
  host_->Watch(std::vector<HostWatch>{{.pid = pid_, .start_time = 1, .tids = {}}});
  std::thread([] {}).join();
  ReadEvents();
  EXPECT_TRUE(host_->TakeEvents().empty());
}

TEST_F(HostBpfTest, APidThatIsUsedAgainStartsFromZero) {
  Subject sleeper([] { usleep(200'000); });
  host_->Watch(std::vector<HostWatch>{{.pid = pid_, .start_time = 1, .tids = {sleeper.tid()}}});
  sleeper.Go();
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_GT(RowOf(sleeper.tid()).off_cpu_ns, 50'000'000u);
  host_->Watch(std::vector<HostWatch>{{.pid = pid_, .start_time = 2, .tids = {sleeper.tid()}}});
  EXPECT_LT(RowOf(sleeper.tid()).off_cpu_ns, 50'000'000u);
  host_->Watch({});
  EXPECT_TRUE(host_->Threads(NowNs()).empty());
  EXPECT_TRUE(host_->Processes().empty());
}

TEST_F(HostBpfTest, AProcessThatIsGoneOrNonsenseIsNoHarm) {
  Child child(0);
  const uint32_t pid = child.pid();
  child.Exit();
  host_->Watch(std::vector<HostWatch>{{.pid = pid, .start_time = 1, .tids = {pid + 1, 0}},
                                      {.pid = 0, .start_time = 0, .tids = {0}}});
  EXPECT_TRUE(host_->Threads(NowNs()).empty());
  EXPECT_EQ(host_->Processes().size(), 1u);
  EXPECT_TRUE(host_->ArmStacks(std::vector<uint32_t>{pid}, NowNs() + 1'000'000'000).ok());
}

int Shell(const std::string& command) { return system((command + " 2>/dev/null").c_str()); }

// This thread in a network namespace of its own, which goes when both have left it.
class OwnNetwork {
 public:
  OwnNetwork() : before_(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)) {
    works_ = before_ >= 0 && unshare(CLONE_NEWNET) == 0;
  }
  ~OwnNetwork() {
    if (works_ && setns(before_, CLONE_NEWNET) != 0) std::abort();
    if (before_ >= 0) close(before_);
  }
  bool works() const { return works_; }

 private:
  int before_;
  bool works_ = false;
};

// A connection across a veth pair whose far end goes away for a while.
TEST_F(HostBpfTest, RetransmitsAreCountedForTheOwnerOfTheSocket) {
  const OwnNetwork network;
  if (!network.works()) GTEST_SKIP() << "SKIPPED, NOTHING WAS TESTED: no network namespaces here";
  // The server, in another one, reads all that comes.
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t server = fork();
  if (server == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (unshare(CLONE_NEWNET) != 0) _exit(1);
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in any = {};
    any.sin_family = AF_INET;
    any.sin_port = htons(7123);
    if (bind(listener, reinterpret_cast<sockaddr*>(&any), sizeof(any)) != 0) _exit(2);
    listen(listener, 1);
    if (write(ready[1], "x", 1) != 1) _exit(3);
    const int connection = accept(listener, nullptr, nullptr);
    char buffer[4096];
    while (read(connection, buffer, sizeof(buffer)) > 0) {
    }
    _exit(0);
  }
  char c;
  ASSERT_EQ(read(ready[0], &c, 1), 1);
  const std::string there = "nsenter --net=/proc/" + std::to_string(server) + "/ns/net ip ";
  if (Shell("ip link add near type veth peer name far") != 0) {
    kill(server, SIGKILL);
    waitpid(server, nullptr, 0);
    GTEST_SKIP() << "SKIPPED, NOTHING WAS TESTED: no veth here";
  }
  EXPECT_EQ(Shell("ip link set far netns " + std::to_string(server)), 0);
  EXPECT_EQ(Shell("ip addr add 10.211.7.1/24 dev near && ip link set near up"), 0);
  EXPECT_EQ(Shell(there + "addr add 10.211.7.2/24 dev far && " + there + "link set far up"), 0);
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(7123);
  inet_pton(AF_INET, "10.211.7.2", &to.sin_addr);
  int connected = -1;
  for (int i = 0; i < 50 && connected != 0; ++i) {
    connected = connect(client, reinterpret_cast<sockaddr*>(&to), sizeof(to));
    if (connected != 0) std::this_thread::sleep_for(milliseconds(100));
  }
  EXPECT_EQ(connected, 0);
  Child bystander(0);  // it inherits the client's descriptor, but is not watched
  host_->Watch(std::vector<HostWatch>{{.pid = pid_, .start_time = 1, .tids = {}}});
  auto rows = host_->Processes();
  ASSERT_EQ(rows.size(), 1u);
  // Zero, or one when its SYN was lost while the link came up.
  const uint64_t before = rows[0].retransmits.value_or(99);
  EXPECT_LE(before, 1u);
  EXPECT_EQ(host_->TakeEvents().size(), before);

  EXPECT_EQ(Shell(there + "link set far down"), 0);
  EXPECT_EQ(send(client, "x", 1, 0), 1);
  // 200 ms later, but 3 s when its SYN was lost.
  for (int i = 0; i < 100; ++i) {
    rows = host_->Processes();
    ASSERT_EQ(rows.size(), 1u);
    if (rows[0].retransmits.value_or(0) > before) break;
    std::this_thread::sleep_for(milliseconds(100));
  }
  EXPECT_GE(rows[0].retransmits.value_or(0), before + 1);
  const std::vector<HostEvent> events = host_->TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, HostEventKind::kRetransmit);
  EXPECT_EQ(events[0].pid, pid_);
  EXPECT_EQ(events[0].number, rows[0].retransmits.value_or(0) - before);
  EXPECT_THAT(events[0].text, HasSubstr("10.211.7.1:"));
  EXPECT_THAT(events[0].text, HasSubstr(" to 10.211.7.2:7123: "));
  // Whoever does not own the socket has none.
  host_->Watch(
      std::vector<HostWatch>{{.pid = static_cast<uint32_t>(server), .start_time = 1, .tids = {}}});
  rows = host_->Processes();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].retransmits, 0u);
  for (const HostEvent& event : host_->TakeEvents()) ADD_FAILURE() << event.text;
  close(client);
  bystander.Exit();
  kill(server, SIGKILL);
  waitpid(server, nullptr, 0);
  for (int fd : ready) close(fd);
}

// A memory cgroup of its own with a limit; ended by the destructor.
class SmallGroup {
 public:
  explicit SmallGroup(uint64_t limit_bytes) {
    const std::vector<std::string> homes =
        CgroupFolders(ReadSmallFile("/proc/self/cgroup").value_or(""), "memory");
    for (const std::string& home : homes) {
      folder_ = home + "/mycroft-test-" + std::to_string(getpid());
      if (mkdir(folder_.c_str(), 0755) != 0) continue;
      for (const char* limit : {"/memory.max", "/memory.limit_in_bytes"}) {
        if (Write(folder_ + limit, std::to_string(limit_bytes))) return;
      }
      rmdir(folder_.c_str());
    }
    folder_.clear();
  }
  ~SmallGroup() {
    if (!folder_.empty()) rmdir(folder_.c_str());
  }
  bool made() const { return !folder_.empty(); }
  bool Join() const { return Write(folder_ + "/cgroup.procs", "0"); }

 private:
  static bool Write(const std::string& path, const std::string& text) {
    const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    const bool written = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    close(fd);
    return written;
  }
  std::string folder_;
};

// As in a container that reads more than its memory limit.
TEST_F(HostBpfTest, ReclaimForTheLimitOfACgroupIsCounted) {
  constexpr off_t kLimit = 16 << 20;
  const SmallGroup group(kLimit);
  if (!group.made()) GTEST_SKIP() << "NOT TESTED: no memory cgroup can be made here";
  char name[] = "/var/tmp/mycroft-host-test-XXXXXX";
  const int file = mkstemp(name);
  ASSERT_GE(file, 0);
  unlink(name);
  ASSERT_EQ(ftruncate(file, 8 * kLimit), 0);
  struct statfs kind {};
  ASSERT_EQ(fstatfs(file, &kind), 0);
  if (kind.f_type == 0x01021994) GTEST_SKIP() << "NOT TESTED: /var/tmp is in memory";
  const Pipe go;
  const pid_t child = fork();
  if (child == 0) {
    char byte;
    if (!group.Join() || read(go.fds[0], &byte, 1) != 1) _exit(1);
    static char buffer[1 << 20];
    for (off_t at = 0; at < 8 * kLimit; at += sizeof(buffer)) {
      if (pread(file, buffer, sizeof(buffer), at) != sizeof(buffer)) _exit(2);
    }
    _exit(0);
  }
  host_->Watch(std::vector<HostWatch>{{.pid = static_cast<uint32_t>(child), .start_time = 1}});
  ASSERT_EQ(write(go.fds[1], "x", 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  close(file);
  ASSERT_TRUE(WIFEXITED(status)) << WTERMSIG(status);
  ASSERT_EQ(WEXITSTATUS(status), 0);
  const auto rows = host_->Processes();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_GT(rows[0].reclaims.value_or(0), 10u);
  EXPECT_GT(rows[0].reclaim_ns.value_or(0), 0u);
}

// That of the whole machine needs one without free memory (tests/vm); here: none is counted
// where there was none, and the value is there.
TEST_F(HostBpfTest, WithoutReclaimThereIsZeroAndNotNothing) {
  host_->Watch(std::vector<HostWatch>{{.pid = pid_, .start_time = 1, .tids = {}}});
  const auto rows = host_->Processes();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].reclaims, 0u);
  EXPECT_EQ(rows[0].reclaim_ns, 0u);
}

TEST_F(HostBpfTest, ThreadsThatAreNotWatchedOnlyCostTheLookUp) {
  std::atomic<bool> stop{false};
  std::thread unwatched([&] {
    while (!stop) usleep(100);
  });
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_EQ(Probe("host.delay").hits, 0u);
  stop = true;
  unwatched.join();
}

// Identities in the kernel of the programs that descriptors of this process hold.
std::vector<uint32_t> OwnProgramIds() {
  std::vector<uint32_t> ids;
  for (uint32_t fd : ListNumericEntries("/proc/self/fdinfo")) {
    const std::string text = ReadSmallFile("/proc/self/fdinfo/" + std::to_string(fd)).value_or("");
    const size_t at = text.find("prog_id:");
    const bool is_program = text.find("prog_type:") != std::string::npos;
    if (is_program && at != std::string::npos)
      ids.push_back(static_cast<uint32_t>(std::strtoul(text.c_str() + at + 8, nullptr, 10)));
  }
  return ids;
}

size_t StillInKernel(const std::vector<uint32_t>& ids) {
  size_t count = 0;
#if MYCROFT_HAVE_BPF
  for (uint32_t id : ids) {
    const int fd = bpf_prog_get_fd_by_id(id);
    if (fd >= 0) close(fd);
    count += fd >= 0;
  }
#endif
  return count;
}

TEST_F(HostBpfTest, AttachedAndDetachedAThousandTimesLeavesNothing) {
  set_.reset();
  host_.reset();
  const BpfCensus before = TakeBpfCensus();
  std::vector<uint32_t> ids;
  {
    ProbeSet::Options options;
    options.objects = {"host"};
    auto set = ProbeSet::Create(options);
    ASSERT_TRUE(set.ok());
    ids = OwnProgramIds();
    ASSERT_EQ(StillInKernel(ids), ids.size());
    ASSERT_GE(ids.size(), 8u);
    HostProbes host(set->get());
    host.Watch(std::vector<HostWatch>{{.pid = pid_, .start_time = 1, .tids = {}}});
    const uint64_t tid = pid_;
    const BpfCensus loaded = TakeBpfCensus();
    for (int i = 0; i < 1000; ++i) {
      ASSERT_TRUE((*set)->Arm("host.sleep_stack", {&tid, 1}, UINT64_MAX).ok()) << i;
      ASSERT_GT(TakeBpfCensus().links, loaded.links);
      (*set)->Disarm("host.sleep_stack");
    }
    EXPECT_EQ(TakeBpfCensus(), loaded);
  }
  for (int i = 0; i < 20; ++i) {
    ProbeSet::Options options;
    options.objects = {"host"};
    auto set = ProbeSet::Create(options);
    ASSERT_TRUE(set.ok());
    HostProbes host(set->get());
    host.Watch(std::vector<HostWatch>{{.pid = pid_, .start_time = 1, .tids = {}}});
  }
  EXPECT_EQ(WaitForBpfCensus(before), before);
  // The kernel frees them a little later.
  for (int i = 0; i < 100 && StillInKernel(ids) != 0; ++i)
    std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(StillInKernel(ids), 0u);
}

TEST(HostTest, ExitCodesInWords) {
  EXPECT_EQ(ExitText(0, false), "exited with status 0");
  EXPECT_EQ(ExitText(0x8b, false), "killed by signal 11 (Segmentation fault)");
  EXPECT_EQ(ExitText(9, true), "killed by signal 9 (Killed), chosen by the OOM killer");
  EXPECT_EQ(ExitText(0x7e, false), "killed by signal 126 (?)");
}

TEST(HostTest, ConnectionsInWords) {
  mc_host_connection c = {};
  c.family = AF_INET;
  c.local_port = 1;
  c.remote_port = 65535;
  inet_pton(AF_INET, "10.0.0.1", c.local);
  inet_pton(AF_INET, "10.0.0.2", c.remote);
  EXPECT_EQ(ConnectionText(c), "10.0.0.1:1 to 10.0.0.2:65535");
  c.family = AF_INET6;
  inet_pton(AF_INET6, "fe80::1", c.local);
  inet_pton(AF_INET6, "::", c.remote);
  EXPECT_EQ(ConnectionText(c), "[fe80::1]:1 to [::]:65535");
  c.family = 1234;
  EXPECT_EQ(ConnectionText(c), "?:1 to ?:65535");
}

TEST(HostTest, RecordsOfOthersAreLeftAndShortOnesCounted) {
  ProbeSet::Options options;
  options.load = false;
  auto set = ProbeSet::Create(options);
  ASSERT_TRUE(set.ok());
  HostProbes host(set->get());
  mc_event header = {};
  header.kind = MC_EVENT_VERBS_ASYNC;
  EXPECT_FALSE(host.TakeRecord(header, std::as_bytes(std::span(&header, 1))));
  for (uint32_t kind : {MC_EVENT_HOST_EXIT, MC_EVENT_HOST_OOM}) {
    header.kind = kind;
    EXPECT_TRUE(host.TakeRecord(header, std::as_bytes(std::span(&header, 1))));
  }
  EXPECT_EQ(host.malformed_records(), 2u);
  EXPECT_TRUE(host.TakeEvents().empty());
  mc_event_host_oom oom = {};
  oom.header.kind = MC_EVENT_HOST_OOM;
  oom.kernel_pid = 42;
  std::memcpy(oom.comm, "py\nthon", 8);
  EXPECT_TRUE(host.TakeRecord(oom.header, std::as_bytes(std::span(&oom, 1))));
  const auto events = host.TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].text, "the OOM killer chose process 42 (py?thon)");
}

TEST(HostTest, WithoutProbesThereIsNothingAndNoHarm) {
  ProbeSet::Options options;
  options.load = false;
  auto set = ProbeSet::Create(options);
  ASSERT_TRUE(set.ok());
  HostProbes host(set->get());
  host.Watch(std::vector<HostWatch>{
      {.pid = static_cast<uint32_t>(getpid()), .start_time = 1, .tids = {}}});
  EXPECT_TRUE(host.Threads(NowNs()).empty());
  const auto rows = host.Processes();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].reclaims, std::nullopt);
  EXPECT_EQ(rows[0].retransmits, std::nullopt);
  EXPECT_FALSE(host.ArmStacks(std::vector<uint32_t>{static_cast<uint32_t>(getpid())}, 1).ok());
}

}  // namespace
}  // namespace mycroft
