// SPDX-License-Identifier: Apache-2.0
//
// Real processes of this test own boards; the source finds them in the real /proc.
// Where the rules of sampling are tested, the test moves the clock.
#include "userspace/decode/live_source.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <thread>

#include "userspace/source/proc.h"
#include "userspace/source/testing/fixture_host.h"
#include "userspace/source/testing/test_board.h"
#include "userspace/source/testing/test_gpu_board.h"

namespace mycroft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr uint64_t kMs = 1'000'000;

// A child process that runs `body` and then waits to be told to end. Ended and
// reaped by the destructor.
class Child {
 public:
  // `body` gets a function that tells the parent that it is ready and returns when
  // Continue() is called.
  using Pause = std::function<void()>;
  explicit Child(const std::function<void(const Pause&)>& body) {
    int up[2], down[2];
    if (pipe(up) != 0 || pipe(down) != 0) abort();
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(up[0]);
      close(down[1]);
      const auto pause = [&] {
        char c = 'r';
        if (write(up[1], &c, 1) != 1) _exit(3);
        if (read(down[0], &c, 1) != 1) _exit(0);
      };
      body(pause);
      pause();
      _exit(0);
    }
    close(up[1]);
    close(down[0]);
    up_ = up[0];
    down_ = down[1];
    WaitReady();
  }
  ~Child() {
    Kill();
    Reap();
    close(up_);
    close(down_);
  }
  // Goes on after a pause, and returns at the next one.
  void Continue() {
    char c = 'c';
    if (write(down_, &c, 1) != 1) abort();
    WaitReady();
  }
  void Kill() {
    if (!reaped_) kill(pid_, SIGKILL);
  }
  void Reap() {
    if (!reaped_) waitpid(pid_, nullptr, 0);
    reaped_ = true;
  }
  void AwaitZombie() {
    siginfo_t info{};
    waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
  }
  uint32_t pid() const { return static_cast<uint32_t>(pid_); }

 private:
  void WaitReady() {
    char c = 0;
    if (read(up_, &c, 1) != 1) abort();
    // And it has come to wait: between its two calls it still runs.
    for (int i = 0; i < 10'000; ++i) {
      const auto stat = ReadProcStat("/proc", pid());
      if (!stat || stat->state == 'S') break;
      usleep(1000);
    }
  }
  pid_t pid_ = -1;
  int up_ = -1, down_ = -1;
  bool reaped_ = false;
};

class LiveSourceTest : public ::testing::Test {
 protected:
  LiveOptions Options(uint32_t pid = static_cast<uint32_t>(getpid())) {
    LiveOptions options;
    options.hardware = false;
    options.pids = {pid};
    options.host_samples = false;
    options.now_ns = [this] { return now_; };
    options.wall_ns = [this] { return now_ + 5; };
    return options;
  }
  std::unique_ptr<LiveSource> Make(const LiveOptions& options) {
    auto source = LiveSource::Create(options);
    if (!source.ok()) {
      ADD_FAILURE() << source.status();
      abort();
    }
    return *std::move(source);
  }
  Snapshot Tick(LiveSource& source, uint64_t ms = 100) {
    now_ += ms * kMs;
    auto next = source.Next();
    if (!next.ok() || !*next) {
      ADD_FAILURE() << "no snapshot";
      return {};
    }
    return **std::move(next);
  }
  // The one process that has something to say; an empty one when there is none.
  ProcessSample Only(const Snapshot& snapshot) {
    EXPECT_LE(snapshot.processes.size(), 1u);
    return snapshot.processes.empty() ? ProcessSample() : snapshot.processes[0];
  }

  mc_board_comm Comm() const {
    mc_board_comm line{};
    line.generation = 1;
    line.comm_id = 0xabc;
    line.rank = 0;
    line.nranks = 2;
    line.state = MC_COMM_ACTIVE;
    std::strcpy(line.name, "world");
    return line;
  }
  mc_board_op Op(uint64_t id) const {
    mc_board_op line{};
    line.id = id;
    line.comm_generation = 1;
    line.kind = MC_OP_COLL;
    line.func = MC_FUNC_ALLREDUCE;
    line.start_ns = now_;
    line.stop_ns = now_ + 1;
    line.proxy_started = 2;
    return line;
  }
  mc_board_flow Flow() const {
    mc_board_flow line{};
    line.comm_generation = 1;
    line.peer = 1;
    line.state = MC_FLOW_SEND_GPU;
    line.open_ops = 1;
    line.op_id = 1;
    line.total = 100;
    line.moved_ns = now_;
    return line;
  }

  uint64_t now_ = 1'000'000'000'000;
};

TEST_F(LiveSourceTest, OptionsOutOfRange) {
  LiveOptions options = Options();
  for (uint64_t ms : {0, 9, 1001, 60'000}) {
    options.interval_ns = ms * kMs;
    const auto source = LiveSource::Create(options);
    EXPECT_EQ(source.status().code(), absl::StatusCode::kInvalidArgument) << ms;
    EXPECT_THAT(std::string(source.status().message()),
                AllOf(HasSubstr("10 ms to 1 s"), HasSubstr(std::to_string(ms))));
  }
  for (uint64_t ms : {10, 1000}) {
    options.interval_ns = ms * kMs;
    EXPECT_TRUE(LiveSource::Create(options).ok()) << ms;
  }
  options.proc_root = "/nonexistent";
  const auto source = LiveSource::Create(options);
  EXPECT_EQ(source.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(source.status().message()), HasSubstr("/nonexistent"));
}

TEST_F(LiveSourceTest, NothingToObserve) {
  auto source = Make(Options());
  const Snapshot first = Tick(*source);
  EXPECT_THAT(first.processes, IsEmpty());
  EXPECT_TRUE(first.blind_spots_changed);
  EXPECT_EQ(source->process_count(), 0u);
  EXPECT_EQ(first.t_ns, now_);
  EXPECT_EQ(first.wall_ns, now_ + 5);
  EXPECT_EQ(first.interval_ns, 100 * kMs);
  EXPECT_NE(first.host, "");
  EXPECT_NE(first.host_id, "/");
  EXPECT_FALSE(Tick(*source).blind_spots_changed);
  EXPECT_FALSE(source->saw_process_without_plugin());
}

TEST_F(LiveSourceTest, FindsTheBoardAndAnnouncesTheProcess) {
  TestBoard board;
  board.WriteComm(0, Comm());
  auto source = Make(Options());
  const ProcessSample process = Only(Tick(*source));
  EXPECT_EQ(source->process_count(), 1u);
  EXPECT_EQ(process.key.pid, static_cast<uint32_t>(getpid()));
  EXPECT_GT(process.key.start_time, 0u);
  EXPECT_EQ(process.status, ProcessStatus::kRunning);
  EXPECT_THAT(process.name, HasSubstr("live_source"));
  EXPECT_EQ(process.profiler_api, 5u);
  EXPECT_EQ(process.level, static_cast<uint32_t>(MC_LEVEL_STEPS));
  ASSERT_THAT(process.comms, SizeIs(1));
  EXPECT_EQ(process.comms[0].comm_id, 0xabcu);
  EXPECT_EQ(process.comms[0].name, "world");
  EXPECT_THAT(process.ops, IsEmpty());
  EXPECT_THAT(process.flows, IsEmpty());
  EXPECT_FALSE(process.host);
  // Then there is nothing new to say, until there is.
  EXPECT_THAT(Tick(*source).processes, IsEmpty());
  board.header().lost[MC_LOSS_FLOW_TABLE_FULL] = 3;
  const ProcessSample loss = Only(Tick(*source));
  EXPECT_EQ(loss.lost[MC_LOSS_FLOW_TABLE_FULL], 3u);
  EXPECT_EQ(loss.name, "");
  EXPECT_THAT(loss.comms, IsEmpty());
}

TEST_F(LiveSourceTest, FindsABoardThatIsMadeLater) {
  LiveOptions options = Options();
  options.scan_interval_ns = 500 * kMs;
  auto source = Make(options);
  EXPECT_THAT(Tick(*source).processes, IsEmpty());
  TestBoard board;
  board.WriteComm(0, Comm());
  for (int i = 0; i < 20 && source->process_count() == 0; ++i) Tick(*source);
  EXPECT_EQ(source->process_count(), 1u);
}

TEST_F(LiveSourceTest, OperationsWhenTheyChange) {
  TestBoard board;
  board.WriteComm(0, Comm());
  auto source = Make(Options());
  Tick(*source);
  mc_board_op op = Op(1);
  board.WriteOp(op);
  ProcessSample process = Only(Tick(*source));
  ASSERT_THAT(process.ops, SizeIs(1));  // new: at once
  EXPECT_EQ(process.ops[0].id, 1u);
  EXPECT_EQ(process.ops[0].proxy_started, 2);

  // It moves at every tick: sampled so often that it never looks as if it stood still.
  int samples = 0;
  for (int i = 0; i < 20; ++i) {
    ++op.steps_done;
    op.steps_total = 1000;
    board.WriteOp(op);
    samples += static_cast<int>(Only(Tick(*source)).ops.size());
  }
  EXPECT_EQ(samples, 6);

  // It stands still: what was held back comes after 300 ms, once.
  samples = 0;
  for (int i = 0; i < 10; ++i) {
    process = Only(Tick(*source));
    samples += static_cast<int>(process.ops.size());
    for (const OpSample& sample : process.ops) EXPECT_EQ(sample.steps_done, op.steps_done);
  }
  EXPECT_LE(samples, 1);

  // Complete: at once, and never again.
  op.proxy_done = 2;
  board.WriteOp(op);
  process = Only(Tick(*source));
  ASSERT_THAT(process.ops, SizeIs(1));
  EXPECT_EQ(process.ops[0].proxy_done, 2);
  for (int i = 0; i < 30; ++i) EXPECT_THAT(Tick(*source).processes, IsEmpty());
}

TEST_F(LiveSourceTest, OperationThatChangesAndThenStandsStillIsSampled) {
  TestBoard board;
  board.WriteComm(0, Comm());
  mc_board_op op = Op(1);
  board.WriteOp(op);
  auto source = Make(Options());
  ASSERT_THAT(Only(Tick(*source)).ops, SizeIs(1));
  op.proxy_progress = 1;
  board.WriteOp(op);
  EXPECT_THAT(Only(Tick(*source)).ops, IsEmpty());  // less than a second ago
  ProcessSample seen;
  int ticks = 0;
  for (; ticks < 10 && seen.ops.empty(); ++ticks) seen = Only(Tick(*source));
  ASSERT_THAT(seen.ops, SizeIs(1));
  EXPECT_EQ(seen.ops[0].proxy_progress, 1);
  EXPECT_LE(ticks, 4);
}

TEST_F(LiveSourceTest, ManyOperationsBetweenTwoTicks) {
  TestBoard board;  // 64 slots
  board.WriteComm(0, Comm());
  auto source = Make(Options());
  Tick(*source);
  for (uint64_t id = 1; id <= 200; ++id) {
    mc_board_op op = Op(id);
    op.proxy_done = 2;
    board.WriteOp(op);
  }
  const ProcessSample process = Only(Tick(*source));
  ASSERT_THAT(process.ops, SizeIs(64));  // what the ring still holds
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(process.ops[i].id, 137 + i);
}

TEST_F(LiveSourceTest, AnOperationWhoseSlotIsGivenAwayIsForgotten) {
  TestBoard board;
  board.WriteComm(0, Comm());
  board.WriteOp(Op(1));
  auto source = Make(Options());
  ASSERT_THAT(Only(Tick(*source)).ops, SizeIs(1));
  board.WriteOp(Op(65));  // the same slot
  const ProcessSample process = Only(Tick(*source));
  ASSERT_THAT(process.ops, SizeIs(1));
  EXPECT_EQ(process.ops[0].id, 65u);
}

TEST_F(LiveSourceTest, FlowsOfOneOperationOftenOfManyOnceASecond) {
  TestBoard board;
  board.WriteComm(0, Comm());
  board.WriteOp(Op(1));
  auto source = Make(Options());
  Tick(*source);
  mc_board_flow flow = Flow();
  std::vector<uint32_t> seen;
  auto step = [&] {
    flow.posted = ++flow.done;
    flow.ready = flow.transmitted = flow.done;
    flow.moved_ns = now_ + 50 * kMs;
    board.WriteFlow(0, flow);
    for (const FlowSample& sample : Only(Tick(*source)).flows) {
      EXPECT_EQ(sample.index, 0u);
      seen.push_back(sample.done);
    }
  };
  flow.op_id = 100;
  for (; flow.done < 20; ++flow.op_id) step();
  EXPECT_THAT(seen, ElementsAre(1, 11));
  seen.clear();
  flow.done = 0;
  while (flow.done < 20) step();
  EXPECT_THAT(seen, ElementsAre(1, 4, 7, 10, 13, 16, 19));
  // It stops after step 20: that is said at the first tick at which it is still.
  seen.clear();
  uint64_t said = 0;
  for (int i = 0; i < 20; ++i) {
    for (const FlowSample& sample : Only(Tick(*source)).flows) {
      seen.push_back(sample.done);
      said = now_;
    }
  }
  EXPECT_THAT(seen, ElementsAre(20));
  EXPECT_LE(said - flow.moved_ns, 400 * kMs);
}

TEST_F(LiveSourceTest, ChangesOfACommunicator) {
  TestBoard board;
  board.WriteComm(0, Comm());
  auto source = Make(Options());
  ASSERT_THAT(Only(Tick(*source)).comms, SizeIs(1));
  mc_board_comm line = Comm();
  line.coll_count = 1000;  // counters alone are no news
  line.api_enter_ns = now_;
  board.WriteComm(0, line);
  EXPECT_THAT(Tick(*source).processes, IsEmpty());
  line.state = MC_COMM_FINALIZED;
  line.finalize_ns = now_;
  board.WriteComm(0, line);
  ProcessSample process = Only(Tick(*source));
  ASSERT_THAT(process.comms, SizeIs(1));
  EXPECT_EQ(process.comms[0].state, MC_COMM_FINALIZED);
  EXPECT_EQ(process.comms[0].coll_count, 1000u);
  line = Comm();
  line.generation = 2;
  line.comm_id = 0xdef;
  board.WriteComm(0, line);
  process = Only(Tick(*source));
  ASSERT_THAT(process.comms, SizeIs(1));
  EXPECT_EQ(process.comms[0].comm_id, 0xdefu);
}

TEST_F(LiveSourceTest, TornLinesAreCountedAndDoNotHang) {
  TestBoard board;
  board.WriteComm(0, Comm());
  board.WriteFlow(0, Flow());
  board.WriteOp(Op(1));
  *reinterpret_cast<uint32_t*>(board.FlowLine(0)) |= 1;
  *reinterpret_cast<uint32_t*>(board.OpLine(1)) |= 1;
  *reinterpret_cast<uint32_t*>(board.CommLine(0)) |= 1;
  auto source = Make(Options());
  ProcessSample process = Only(Tick(*source));
  EXPECT_EQ(process.torn_reads, 3u);
  EXPECT_THAT(process.comms, IsEmpty());
  EXPECT_THAT(process.ops, IsEmpty());
  EXPECT_THAT(process.flows, IsEmpty());
  board.WriteComm(0, Comm());  // the writers finish their lines
  board.WriteFlow(0, Flow());
  board.WriteOp(Op(1));
  process = Only(Tick(*source));
  EXPECT_THAT(process.comms, SizeIs(1));
  EXPECT_THAT(process.ops, SizeIs(1));
  EXPECT_THAT(process.flows, SizeIs(1));
}

// Header and lines turn to garbage, again and again, while they are read.
TEST_F(LiveSourceTest, GarbageUnderTheReader) {
  TestBoard board;
  board.WriteComm(0, Comm());
  board.WriteOp(Op(1));
  auto source = Make(Options());
  Tick(*source);
  std::mt19937_64 random(11);
  for (int round = 0; round < 60; ++round) {
    for (size_t at = 0; at < board.size(); ++at) {
      board.bytes()[at] = round % 3 == 0 ? std::byte{0xff} : static_cast<std::byte>(random() >> 32);
    }
    if (round % 3 == 1) {  // at rest, so that the lines are taken
      for (uint32_t i = 0; i < 64; ++i) {
        *reinterpret_cast<uint32_t*>(board.FlowLine(i)) &= ~1u;
        for (size_t part :
             {size_t{0}, offsetof(mc_board_op, proxy_seq), offsetof(mc_board_op, kernel_seq)}) {
          *reinterpret_cast<uint32_t*>(board.OpLine(i) + part) &= ~1u;
        }
      }
    }
    const ProcessSample process = Only(Tick(*source));
    EXPECT_LE(process.ops.size(), 64u);
    EXPECT_LE(process.flows.size(), 64u);
    EXPECT_LE(process.comms.size(), 8u);
    for (const FlowSample& flow : process.flows) EXPECT_LE(flow.state, MC_FLOW_RECV_GPU);
  }
  EXPECT_EQ(source->process_count(), 1u);
}

TEST_F(LiveSourceTest, DescriptorReplacedUnderTheReader) {
  TestBoard board;
  board.WriteComm(0, Comm());
  auto source = Make(Options());
  Tick(*source);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  ASSERT_GE(null, 0);
  ASSERT_EQ(dup2(null, board.fd()), board.fd());
  close(null);
  board.WriteOp(Op(1));  // still goes to the mapping that both have
  EXPECT_THAT(Only(Tick(*source)).ops, SizeIs(1));
  source->RequestLevel(MC_LEVEL_KERNELS);
  EXPECT_EQ(board.header().requested_level, 0u);
  const Snapshot snapshot = Tick(*source);
  ASSERT_TRUE(snapshot.blind_spots_changed);
  ASSERT_THAT(snapshot.blind_spots, SizeIs(1));
  EXPECT_THAT(snapshot.blind_spots[0].what, HasSubstr("cannot be opened for writing"));
}

TEST_F(LiveSourceTest, RequestsALevelNowAndOfThoseThatComeLater) {
  TestBoard board;
  auto source = Make(Options());
  source->RequestLevel(MC_LEVEL_OPS);
  Tick(*source);
  EXPECT_EQ(board.header().requested_level, static_cast<uint32_t>(MC_LEVEL_OPS));
  source->RequestLevel(MC_LEVEL_KERNELS);
  EXPECT_EQ(board.header().requested_level, static_cast<uint32_t>(MC_LEVEL_KERNELS));
  board.header().level = MC_LEVEL_KERNELS;
  EXPECT_EQ(Only(Tick(*source)).level, static_cast<uint32_t>(MC_LEVEL_KERNELS));
}

TEST_F(LiveSourceTest, ExitGivesALastSample) {
  Child child([&](const Child::Pause& pause) {
    TestBoard board;
    board.WriteComm(0, Comm());
    mc_board_op op = Op(1);
    board.WriteOp(op);
    board.WriteFlow(0, Flow());
    pause();
    op.proxy_progress = 2;  // less than a second after the first sample
    board.WriteOp(op);
    mc_board_flow flow = Flow();
    flow.posted = 5;
    board.WriteFlow(0, flow);
    pause();
  });
  auto source = Make(Options(child.pid()));
  ProcessSample process = Only(Tick(*source));
  EXPECT_EQ(process.key.pid, child.pid());
  ASSERT_THAT(process.ops, SizeIs(1));
  child.Continue();
  child.Kill();
  child.AwaitZombie();  // dead, and not reaped by its parent
  process = Only(Tick(*source));
  EXPECT_EQ(process.status, ProcessStatus::kExited);
  EXPECT_EQ(process.key.pid, child.pid());
  ASSERT_THAT(process.ops, SizeIs(1));  // its last words
  EXPECT_EQ(process.ops[0].proxy_progress, 2);
  ASSERT_THAT(process.flows, SizeIs(1));
  EXPECT_EQ(process.flows[0].posted, 5u);
  EXPECT_EQ(source->process_count(), 0u);
  child.Reap();
  for (int i = 0; i < 15; ++i) EXPECT_THAT(Tick(*source).processes, IsEmpty());
}

TEST_F(LiveSourceTest, ForkedChildIsNotASecondProcess) {
  TestBoard board;
  board.WriteComm(0, Comm());
  Child heir([](const Child::Pause& pause) { pause(); });  // inherits descriptor and mapping
  auto source = Make(Options());
  const ProcessSample process = Only(Tick(*source));
  EXPECT_EQ(process.key.pid, static_cast<uint32_t>(getpid()));
  EXPECT_EQ(source->process_count(), 1u);
}

TEST_F(LiveSourceTest, ForkedChildWithABoardOfItsOwnIsOne) {
  TestBoard board;
  board.WriteComm(0, Comm());
  Child child([&](const Child::Pause& pause) {
    TestBoard own;  // beside the inherited one
    mc_board_comm line = Comm();
    line.rank = 1;
    own.WriteComm(0, line);
    pause();
  });
  auto source = Make(Options());
  const Snapshot snapshot = Tick(*source);
  EXPECT_EQ(source->process_count(), 2u);
  ASSERT_THAT(snapshot.processes, SizeIs(2));
  for (const ProcessSample& process : snapshot.processes) {
    ASSERT_THAT(process.comms, SizeIs(1));
    EXPECT_EQ(process.comms[0].rank, process.key.pid == child.pid() ? 1 : 0);
  }
}

TEST_F(LiveSourceTest, PidsFilter) {
  const auto with_board = [&](const Child::Pause& pause) {
    TestBoard board;
    board.WriteComm(0, Comm());
    pause();
  };
  Child a(with_board), b(with_board);
  // Of a grandchild, the grandparent is named.
  int link[2];
  ASSERT_EQ(pipe(link), 0);
  Child parent([&](const Child::Pause& pause) {
    Child grandchild(with_board);
    const uint32_t pid = grandchild.pid();
    if (write(link[1], &pid, sizeof(pid)) != sizeof(pid)) _exit(3);
    pause();
  });
  uint32_t grandchild = 0;
  ASSERT_EQ(read(link[0], &grandchild, sizeof(grandchild)), 4);
  close(link[0]);
  close(link[1]);

  auto only_a = Make(Options(a.pid()));
  EXPECT_EQ(Only(Tick(*only_a)).key.pid, a.pid());
  auto below = Make(Options(parent.pid()));
  EXPECT_EQ(Only(Tick(*below)).key.pid, grandchild);
  LiveOptions options = Options(a.pid());
  options.pids.insert(b.pid());
  auto both = Make(options);
  EXPECT_THAT(Tick(*both).processes, SizeIs(2));
  options.pids.clear();  // everybody on this machine
  auto all = Make(options);
  Tick(*all);
  EXPECT_GE(all->process_count(), 3u);
}

TEST_F(LiveSourceTest, TwoSourcesSeeTheSame) {
  TestBoard board;
  board.WriteComm(0, Comm());
  auto one = Make(Options());
  auto two = Make(Options());
  mc_board_flow flow = Flow();
  for (int i = 0; i < 30; ++i) {
    if (i % 3 == 0) board.WriteOp(Op(1 + i));
    flow.posted = i;
    board.WriteFlow(i % 5, flow);
    now_ += 100 * kMs;
    const auto a = one->Next();
    const auto b = two->Next();
    ASSERT_TRUE(a.ok() && b.ok() && *a && *b);
    EXPECT_EQ(**a, **b) << i;
  }
}

TEST_F(LiveSourceTest, HostSamples) {
  Child child([&](const Child::Pause& pause) {
    TestBoard board;
    board.WriteComm(0, Comm());
    mc_board_thread thread{};
    thread.tid = static_cast<uint32_t>(getpid());
    thread.roles = MC_THREAD_LAUNCH | 0x80;
    board.WriteThread(0, thread);
    thread.tid = 4'000'000'000u;  // ended, or never was
    thread.roles = MC_THREAD_PROGRESS;
    board.WriteThread(1, thread);
    volatile uint64_t x = 0;
    for (int i = 0; i < 2'000'000; ++i) x = x + i;
    pause();
  });
  LiveOptions options = Options(child.pid());
  options.host_samples = true;
  auto source = Make(options);
  ProcessSample process = Only(Tick(*source));
  ASSERT_TRUE(process.host);
  EXPECT_EQ(process.host->state, 'S');
  ASSERT_THAT(process.host->threads, SizeIs(1));
  const ThreadSample& thread = process.host->threads[0];
  EXPECT_EQ(thread.tid, child.pid());
  EXPECT_EQ(thread.roles, static_cast<uint32_t>(MC_THREAD_LAUNCH));
  EXPECT_EQ(thread.state, 'S');
  EXPECT_GT(thread.run_ns, 0u);
  // Once a second while all is well.
  int samples = 0;
  for (int i = 0; i < 20; ++i) {
    process = Only(Tick(*source));
    samples += process.host ? 1 : 0;
  }
  EXPECT_EQ(samples, 2);
  ASSERT_EQ(kill(static_cast<pid_t>(child.pid()), SIGSTOP), 0);
  waitpid(static_cast<pid_t>(child.pid()), nullptr, WUNTRACED);
  char state = '?';
  for (int i = 0; i < 11; ++i) {
    process = Only(Tick(*source));
    if (process.host) state = process.host->state;
  }
  EXPECT_EQ(state, 'T');
  EXPECT_EQ(process.status, ProcessStatus::kRunning);
}

TEST_F(LiveSourceTest, InterruptEndsTheSleep) {
  LiveOptions options = Options();
  options.now_ns = nullptr;
  options.wall_ns = nullptr;
  options.interval_ns = 1000 * kMs;
  auto source = Make(options);
  auto first = source->Next();  // at once
  ASSERT_TRUE(first.ok() && *first);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    source->Interrupt();
  });
  const auto begin = std::chrono::steady_clock::now();
  auto next = source->Next();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(900));
  ASSERT_TRUE(next.ok());
  EXPECT_FALSE(*next);
  other.join();
  next = source->Next();  // and stays interrupted
  ASSERT_TRUE(next.ok());
  EXPECT_FALSE(*next);
}

TEST_F(LiveSourceTest, TicksInRealTime) {
  TestBoard board;
  board.WriteComm(0, Comm());
  LiveOptions options = Options();
  options.now_ns = nullptr;
  options.wall_ns = nullptr;
  options.interval_ns = 20 * kMs;
  auto source = Make(options);
  uint64_t first = 0, last = 0;
  for (int i = 0; i < 11; ++i) {
    auto next = source->Next();
    ASSERT_TRUE(next.ok() && *next);
    EXPECT_GT((*next)->t_ns, last);
    last = (*next)->t_ns;
    if (i == 0) first = last;
  }
  EXPECT_GE(last - first, 180 * kMs);  // no tick comes early
}

TEST_F(LiveSourceTest, BlindSpotOfAProcessWithoutThePlugin) {
  char folder[] = "/tmp/mycroft-live-source-test-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string library = std::string(folder) + "/libnccl.so.2";
  Child child([&](const Child::Pause& pause) {
    const int fd = open(library.c_str(), O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, 4096) != 0 ||
        mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED) {
      _exit(3);
    }
    pause();
  });
  auto source = Make(Options(child.pid()));
  const Snapshot snapshot = Tick(*source);
  EXPECT_TRUE(source->saw_process_without_plugin());
  ASSERT_THAT(snapshot.blind_spots, SizeIs(1));
  EXPECT_THAT(snapshot.blind_spots[0].what,
              AllOf(HasSubstr("without the plugin"), HasSubstr(std::to_string(child.pid()))));
  EXPECT_THAT(snapshot.blind_spots[0].fix, HasSubstr("mycroft run"));
  child.Kill();
  child.Reap();
  Snapshot later;
  for (int i = 0; i < 20 && !later.blind_spots_changed; ++i) later = Tick(*source);
  EXPECT_TRUE(later.blind_spots_changed);
  EXPECT_THAT(later.blind_spots, IsEmpty());
  EXPECT_FALSE(source->saw_process_without_plugin());
  std::filesystem::remove_all(folder);
}

TEST_F(LiveSourceTest, BlindSpotOfABoardThatCannotBeUsed) {
  TestBoardOptions other;
  other.edit = [](mc_board_header& h) { h.version = 9; };
  TestBoard board(other);
  auto source = Make(Options());
  Snapshot snapshot = Tick(*source);
  EXPECT_EQ(source->process_count(), 0u);
  ASSERT_THAT(snapshot.blind_spots, SizeIs(1));
  EXPECT_THAT(snapshot.blind_spots[0].what,
              AllOf(HasSubstr("pid " + std::to_string(getpid())), HasSubstr("version 9")));
  EXPECT_NE(snapshot.blind_spots[0].lost, "");
  // A good board in the same process: found beside the other one.
  TestBoard good;
  good.WriteComm(0, Comm());
  snapshot = {};
  for (int i = 0; i < 30 && snapshot.processes.empty(); ++i) snapshot = Tick(*source);
  EXPECT_EQ(source->process_count(), 1u);
  ASSERT_TRUE(snapshot.blind_spots_changed);
  EXPECT_THAT(snapshot.blind_spots, IsEmpty());
}

TEST_F(LiveSourceTest, BlindSpotOfProcessesThatMayNotBeRead) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to look as somebody else";
  TestBoard board;
  board.WriteComm(0, Comm());
  int link[2];
  ASSERT_EQ(pipe(link), 0);
  Child nobody([&](const Child::Pause& pause) {
    if (setgid(65534) != 0 || setuid(65534) != 0) _exit(3);
    LiveOptions options = Options(static_cast<uint32_t>(getppid()));
    auto source = LiveSource::Create(options);
    std::string text = "no source";
    if (source.ok()) {
      auto next = (*source)->Next();
      text = std::to_string((*source)->process_count()) + " processes";
      for (const BlindSpot& spot : (*next)->blind_spots) text += "; " + spot.what + "; " + spot.fix;
      for (int i = 0; i < 50; ++i) {  // and stays so
        now_ += 100 * kMs;
        if ((*source)->Next()->value().blind_spots_changed) text += "; changed";
      }
    }
    if (write(link[1], text.data(), text.size()) < 0) _exit(3);
    pause();
  });
  char text[1024] = {};
  ASSERT_GT(read(link[0], text, sizeof(text) - 1), 0);
  close(link[0]);
  close(link[1]);
  EXPECT_THAT(std::string(text), AllOf(HasSubstr("0 processes"), HasSubstr("cannot be read"),
                                       HasSubstr("run as root")));
}

// /proc is this host's, /sys is made of files: the hardware part rides on the ticks.
TEST_F(LiveSourceTest, HardwareOfTheProcesses) {
  const FixtureHost host;
  TestBoard board;
  LiveOptions options = Options();
  options.hardware = true;
  options.sys_root = host.sys();
  auto source = Make(options);
  const Snapshot first = Tick(*source);
  ASSERT_TRUE(first.hardware);
  EXPECT_EQ(first.hardware->iommu, "off");
  EXPECT_THAT(first.hardware->pci, IsEmpty());
  const ProcessSample sample = Only(first);
  ASSERT_TRUE(sample.hardware);
  EXPECT_TRUE(sample.hardware->memlock_limit);
  EXPECT_TRUE(sample.hardware->locked_bytes);
  EXPECT_EQ(sample.profiler_api, Only(first).profiler_api);
  // Between its ticks nothing.
  for (int i = 0; i < 5; ++i) {
    const Snapshot next = Tick(*source);
    EXPECT_FALSE(next.hardware);
    for (const ProcessSample& process : next.processes) EXPECT_FALSE(process.hardware);
  }
}

// ---- GPU boards -------------------------------------------------------------------------

class GpuBoards : public LiveSourceTest {
 protected:
  static void Watch(TestGpuBoard& gpu) {
    gpu.header().state = MC_GPU_WATCHING;
    gpu.header().level = MC_GPU_LEVEL_CALLBACKS;
    gpu.header().layout_known = 1;
    gpu.header().launches = 5;
    gpu.header().nccl_launches = 1;
  }
  TestBoard board_;
};

TEST_F(GpuBoards, AreSampledWhenTheyChange) {
  TestGpuBoard gpu;
  Watch(gpu);
  auto source = Make(Options());
  const ProcessSample first = Only(Tick(*source));
  ASSERT_TRUE(first.gpu_work);
  EXPECT_EQ(first.gpu_work->state, MC_GPU_WATCHING);
  EXPECT_EQ(first.gpu_work->launches, 5u);
  EXPECT_EQ(first.gpu_work->problem, "");
  EXPECT_THAT(Tick(*source, 1000).processes, IsEmpty()) << "nothing new";
  gpu.header().launches = 6;
  EXPECT_THAT(Tick(*source, 100).processes, IsEmpty()) << "once a second";
  const ProcessSample next = Only(Tick(*source, 1000));
  ASSERT_TRUE(next.gpu_work);
  EXPECT_EQ(next.gpu_work->launches, 6u);
}

TEST_F(GpuBoards, ThatComeLaterAreFound) {
  auto source = Make(Options());
  EXPECT_FALSE(Only(Tick(*source)).gpu_work);
  TestGpuBoard gpu;
  Watch(gpu);
  bool found = false;
  for (int i = 0; i < 15 && !found; ++i) {
    const Snapshot snapshot = Tick(*source, 1000);
    for (const ProcessSample& process : snapshot.processes) found |= process.gpu_work.has_value();
  }
  EXPECT_TRUE(found);
}

TEST_F(GpuBoards, AbsenceIsNoBlindSpotABadOneIs) {
  auto source = Make(Options());
  EXPECT_THAT(Tick(*source).blind_spots, IsEmpty());
  TestGpuBoardOptions options;
  options.edit = [](mc_gpu_header& h) { h.version = 99; };
  TestGpuBoard gpu(options);
  Snapshot snapshot;
  for (int i = 0; i < 15 && snapshot.blind_spots.empty(); ++i) snapshot = Tick(*source, 1000);
  ASSERT_THAT(snapshot.blind_spots, SizeIs(1));
  EXPECT_THAT(snapshot.blind_spots[0].what, HasSubstr("version 99"));
  EXPECT_EQ(source->process_count(), 1u) << "the rest goes on";
}

TEST_F(GpuBoards, CuptiInOtherHandsIsABlindSpotWithItsName) {
  TestGpuBoard gpu;
  Watch(gpu);
  gpu.header().state = MC_GPU_TAKEN;
  std::strcpy(gpu.header().other_subscriber, "nsys");
  auto source = Make(Options());
  const Snapshot snapshot = Tick(*source);
  ASSERT_THAT(snapshot.blind_spots, SizeIs(1));
  EXPECT_THAT(snapshot.blind_spots[0].what, HasSubstr("CUPTI is in use by nsys"));
}

TEST_F(GpuBoards, SuspectsAreArmedUntilThenAndDisarmed) {
  TestGpuBoard gpu;
  Watch(gpu);
  auto source = Make(Options());
  const ProcessKey key = Only(Tick(*source)).key;
  source->ArmDeep({{key.pid + 1, 1}}, now_ + 1000);
  EXPECT_EQ(gpu.header().requested_level, static_cast<uint32_t>(MC_GPU_LEVEL_UNSET));
  source->ArmDeep({key}, now_ + 1000);
  EXPECT_EQ(gpu.header().requested_level, static_cast<uint32_t>(MC_GPU_LEVEL_ACTIVITY));
  EXPECT_EQ(gpu.header().requested_until_ns, now_ + 1000);
  source->ArmDeep({}, 0);
  EXPECT_EQ(gpu.header().requested_level, static_cast<uint32_t>(MC_GPU_LEVEL_UNSET));
}

TEST_F(GpuBoards, AreAskedForRecordsInTurn) {
  TestGpuBoard gpu;
  Watch(gpu);
  LiveOptions options = Options();
  options.gpu_sampling_ns = 20'000 * kMs;
  auto source = Make(options);
  Only(Tick(*source));
  uint64_t asked_ticks = 0, turns = 0;
  bool asked = false;
  for (int i = 0; i < 600; ++i) {  // a minute
    Tick(*source);
    const bool now_asked =
        gpu.header().requested_level == static_cast<uint32_t>(MC_GPU_LEVEL_ACTIVITY);
    if (now_asked) {
      ++asked_ticks;
      EXPECT_GT(gpu.header().requested_until_ns, now_);
      EXPECT_LE(gpu.header().requested_until_ns, now_ + 2000 * kMs);
    }
    turns += now_asked && !asked;
    asked = now_asked;
  }
  EXPECT_GE(turns, 3u);
  EXPECT_LE(turns, 4u);  // one may have been going on at the start
  EXPECT_GE(asked_ticks, 58u);
  EXPECT_LE(asked_ticks, 62u);
}

}  // namespace
}  // namespace mycroft
