// SPDX-License-Identifier: Apache-2.0
//
// A second profiler plugin behind ours: who gets which event, with whose handles.
#include <stdarg.h>
#include <sys/wait.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "cupti/nccl/plugin_driver.h"

namespace mycroft::nccl {
namespace {

using V5 = Driver<5>;

std::string g_logged;
void KeepLog(LogLevel level, unsigned long, const char*, int, const char* format, ...) {
  char text[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof(text), format, args);
  va_end(args);
  g_logged += std::to_string(level) + " " + text + "\n";
}

// A copy of the test plugin and ours, chained to it; `mask` is what it asks for.
class Chained {
 public:
  explicit Chained(int mask) : path_(CopyToTemporaryFile(MYCROFT_CHAINED_PATH)) {
    Env chain("MYCROFT_CHAIN_PLUGIN", path_);
    Env asked("MYCROFT_TEST_CHAIN_MASK", std::to_string(mask));
    nccl = std::make_unique<V5>();
    void* library = dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
    take_log_ = reinterpret_cast<const char* (*)()>(dlsym(library, "chainedTakeLog"));
    set_mask = reinterpret_cast<void (*)(int)>(dlsym(library, "chainedSetMask"));
    unlink(path_.c_str());
    EXPECT_EQ(TakeLog(), "init 1 comm 119 world 0/2\n");
  }
  std::string TakeLog() { return take_log_(); }

  std::unique_ptr<V5> nccl;
  void (*set_mask)(int) = nullptr;

 private:
  std::string path_;
  const char* (*take_log_)() = nullptr;
};

TEST(Chain, EachSideGetsWhatItAskedForWithItsOwnHandles) {
  Chained chain(kColl);
  V5& n = *chain.nccl;
  EXPECT_EQ(n.mask, kColl | kP2p | kProxyOp | kProxyStep);
  void* coll = n.Coll();
  // GroupApi 2, CollApi 3 below it, Group 4, Coll 5 below CollApi and in Group;
  // the states of the group are passed on.
  EXPECT_EQ(chain.TakeLog(),
            "start 2 type 256 ctx 1 parent 0 group 0\n"
            "state 2 23 0\n"
            "start 3 type 512 ctx 1 parent 2 group 0\n"
            "stop 3\n"
            "state 2 24 0\n"
            "start 4 type 1 ctx 1 parent 0 group 0\n"
            "start 5 type 2 ctx 1 parent 3 group 4\n"
            "stop 5\n"
            "stop 4\n"
            "stop 2\n");
  void* op = n.ProxyOp(coll, 0, 1, true, 1);
  n.InProgress(op);
  n.WholeStep(op, 0, true, 100, 10, 64);
  n.Stop(op);
  EXPECT_EQ(chain.TakeLog(), "");  // it did not ask for proxy operations
  const mc_board_op& o = n.last_op();
  EXPECT_EQ(o.api_ns, T(0));
  EXPECT_NE(o.group_id, 0u);
  EXPECT_EQ(o.bytes_sent, 64u);
  EXPECT_EQ(o.proxy_done, 1u);
  EXPECT_EQ(n.TotalLost(), 0u);
  n.Finalize(n.context);
  EXPECT_EQ(chain.TakeLog(), "finalize 1\n");
  EXPECT_EQ(n.board().comm(0).state, static_cast<uint32_t>(MC_COMM_FINALIZED));
}

TEST(Chain, EventsThatOnlyTheOtherAskedForDoNotReachUs) {
  Chained chain(kProxyCtrl | kKernelCh | kKernelLaunch);
  V5& n = *chain.nccl;
  void* coll = n.Coll();
  chain.TakeLog();
  void* ctrl = n.Start(V5::Event(kProxyCtrl));
  EXPECT_NE(ctrl, nullptr);
  n.State(ctrl, kProxyCtrlIdle);
  n.Stop(ctrl);
  EXPECT_EQ(chain.TakeLog(), "start 6 type 32 ctx 1 parent 0 group 0\nstate 6 13 0\nstop 6\n");
  void* kernel = n.Kernel(coll, 0, 100);
  n.KernelStop(kernel, 200);
  n.Stop(kernel);
  EXPECT_EQ(chain.TakeLog(), "start 7 type 64 ctx 1 parent 5 group 0\nstate 7 22 200\nstop 7\n");
  EXPECT_EQ(n.last_op().kernel_started, 0u);
  EXPECT_EQ(n.TotalLost(), 0u);
}

TEST(Chain, StepsReachBothAndArgumentsAreCopies) {
  Chained chain(kProxyStep);
  V5& n = *chain.nccl;
  void* coll = n.Coll();
  void* op = n.ProxyOp(coll, 0, 1, true, 1);
  n.InProgress(op);
  chain.TakeLog();
  V5::Descr d = V5::Event(kProxyStep, op);
  const V5::Descr before = d;
  void* s = nullptr;
  EXPECT_EQ(n.table()->start_event(n.context, &s, &d), kSuccess);
  EXPECT_EQ(d.parent, before.parent);
  EXPECT_EQ(d.rank, before.rank);
  StateArgs args = {};
  args.proxy_step.trans_size = 77;
  EXPECT_EQ(n.table()->record_event_state(s, kSendWait, &args), kSuccess);
  EXPECT_EQ(args.proxy_step.trans_size, 77u);
  n.Stop(s);
  n.Stop(s);  // twice for us, once for the other
  n.State(s, kSendWait, 5);
  n.Stop(op);
  EXPECT_EQ(chain.TakeLog(),
            "start 7 type 16 ctx 1 parent 6 group 0\nstate 7 9 77\nstop 7\nstop 6\n");
  EXPECT_EQ(n.last_op().bytes_sent, 77u);
  EXPECT_EQ(n.last_op().steps_done, 1u);
}

TEST(Chain, NothingOfAnotherProcessReachesTheOther) {
  Chained chain(kProxyStep);
  V5& n = *chain.nccl;
  // It would follow these as pointers.
  void* foreign = reinterpret_cast<void*>(0x7f1234567000);
  void* op = n.StartIn(foreign, V5::ProxyEvent(foreign, 0, 5, true, 2, getpid() + 1));
  ASSERT_NE(op, nullptr);
  n.InProgress(op);
  V5::Descr d = V5::Event(kProxyStep, op);
  void* s = n.StartIn(foreign, d);
  n.State(s, kSendWait, 9);
  n.Stop(s);
  n.Stop(op);
  n.Stop(foreign);
  n.State(foreign, kSendWait, 9);
  n.Finalize(foreign);
  EXPECT_EQ(chain.TakeLog(), "");
  EXPECT_EQ(n.board().lost(MC_LOSS_FOREIGN_PARENT), 1u);
  EXPECT_EQ(n.board().flow(0xFFFF, 0, 5, MC_SEND)->bytes, 9u);
}

TEST(Chain, MasksOfBothFollowTheirOwners) {
  Chained chain(kColl);
  V5& n = *chain.nccl;
  chain.set_mask(kNetPlugin);
  n.Coll();
  EXPECT_EQ(n.mask, kColl | kP2p | kProxyOp | kProxyStep | kNetPlugin);
  n.board().header().requested_level = MC_LEVEL_OPS;
  n.Coll();
  EXPECT_EQ(n.mask, kColl | kP2p | kNetPlugin);
  chain.set_mask(0);
  n.Coll();
  EXPECT_EQ(n.mask, kColl | kP2p);
  chain.TakeLog();
  void* coll = n.Coll();
  EXPECT_EQ(chain.TakeLog(), "");
  EXPECT_NE(coll, nullptr);
  EXPECT_EQ(n.last_op().ordinal, 3u);
}

TEST(Chain, AMaskHoldsForTheWholeOperation) {
  Chained chain(kProxyStep);
  V5& n = *chain.nccl;
  void* coll = n.Coll();
  chain.set_mask(0);
  n.board().header().requested_level = MC_LEVEL_OPS;
  n.Coll();
  chain.TakeLog();
  void* op = n.ProxyOp(coll, 0, 1, true, 1);  // announced when both still wanted it
  n.InProgress(op);
  n.WholeStep(op, 0, true, 10, 1, 3);
  n.Stop(op);
  const std::string log = chain.TakeLog();
  EXPECT_NE(log.find("type 8"), std::string::npos);
  EXPECT_NE(log.find("type 16"), std::string::npos);
  EXPECT_EQ(n.board().op(1).bytes_sent, 3u);
}

TEST(Chain, WorksWithOursSwitchedOff) {
  Env level("MYCROFT_LEVEL", "off");
  Chained chain(kColl | kProxyOp);
  V5& n = *chain.nccl;
  EXPECT_EQ(n.mask, kColl | kProxyOp);
  EXPECT_FALSE(n.has_board());
  void* op = n.ProxyOp(n.Coll(), 0, 1, true, 1);
  n.Stop(op);
  const std::string log = chain.TakeLog();
  EXPECT_NE(log.find("start 6 type 8 ctx 1 parent 5"), std::string::npos) << log;
  EXPECT_NE(log.find("stop 6"), std::string::npos);
}

TEST(Chain, LibraryThatCannotBeUsedIsOneWarning) {
  g_logged.clear();
  {
    Env chain("MYCROFT_CHAIN_PLUGIN", "/nonexistent/plugin.so");
    V5 n(false);
    n.context = n.Init(1, "a", 0, 2, KeepLog);
    n.Init(2, "b", 0, 2, KeepLog);
    EXPECT_EQ(n.mask, kColl | kP2p | kProxyOp | kProxyStep);
    n.Coll();
    EXPECT_EQ(n.last_op().id, 1u);
  }
  EXPECT_EQ(
      g_logged.find("2 Mycroft: MYCROFT_CHAIN_PLUGIN=/nonexistent/plugin.so cannot be loaded"), 0u);
  EXPECT_EQ(std::count(g_logged.begin(), g_logged.end(), '\n'), 1);
}

TEST(Chain, OtherVersionOnlyIsOneWarning) {
  g_logged.clear();
  Env chain("MYCROFT_CHAIN_PLUGIN", MYCROFT_CHAINED_PATH);  // has v5 only
  Driver<6> n(false);
  n.context = n.Init(1, "a", 0, 2, KeepLog);
  EXPECT_NE(g_logged.find("has no ncclProfiler_v6"), std::string::npos) << g_logged;
  n.Coll();
  EXPECT_EQ(n.last_op().id, 1u);
}

TEST(Chain, NotChainedToItself) {
  g_logged.clear();
  Env chain("MYCROFT_CHAIN_PLUGIN", MYCROFT_PLUGIN_PATH);
  // The library at its own path, not a copy.
  void* library = dlopen(MYCROFT_PLUGIN_PATH, RTLD_NOW | RTLD_LOCAL);
  auto* table = static_cast<ProfilerV5*>(dlsym(library, kSymbolV5));
  int mask = 0;
  void* context = nullptr;
  EXPECT_EQ(table->init(&context, 1, &mask, "x", 1, 2, 0, KeepLog), kSuccess);
  EXPECT_NE(g_logged.find("is this plugin itself"), std::string::npos) << g_logged;
  EXPECT_EQ(mask, kColl | kP2p | kProxyOp | kProxyStep);
  EXPECT_EQ(table->finalize(context), kSuccess);
}

TEST(Chain, RefusedInitLeavesOursRunning) {
  g_logged.clear();
  const std::string path = CopyToTemporaryFile(MYCROFT_CHAINED_PATH);
  Env chain("MYCROFT_CHAIN_PLUGIN", path);
  Env refuse("MYCROFT_TEST_CHAIN_REFUSE", "1");
  V5 n(false);
  n.context = n.Init(1, "a", 0, 2, KeepLog);
  unlink(path.c_str());
  EXPECT_NE(g_logged.find("refused"), std::string::npos);
  n.Coll();
  EXPECT_EQ(n.last_op().id, 1u);
  n.Finalize(n.context);
}

TEST(Chain, ManyEventsAndThreads) {
  Chained chain(kProxyStep);
  V5& n = *chain.nccl;
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 3000; ++i) {
        void* coll = n.Start(V5::CollEvent(nullptr));
        void* op = n.ProxyOp(coll, t, 1, true, 4);
        n.Stop(coll);
        for (int k = 0; k < 4; ++k) {
          void* s = n.Step(op, k);
          n.State(s, kSendWait, 1);
          n.Stop(s);
        }
        n.Stop(op);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  const std::string log = chain.TakeLog();  // it aborts on a handle that is not its own
  size_t starts = 0, stops = 0;
  for (size_t at = 0; (at = log.find("\nstart ", at)) != std::string::npos; ++at) ++starts;
  for (size_t at = 0; (at = log.find("\nstop ", at)) != std::string::npos; ++at) ++stops;
  EXPECT_EQ(starts + 1, 2u * 3000 * 6);
  EXPECT_EQ(stops, 2u * 3000 * 6);
  EXPECT_EQ(n.TotalLost(), 0u);
  n.board().ExpectSane();
}

}  // namespace
}  // namespace mycroft::nccl
