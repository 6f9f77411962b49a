// SPDX-License-Identifier: Apache-2.0
//
// After init the plugin neither allocates nor makes a system call: counted by
// interposing the allocator and mmap, and proved by running the callbacks under a
// seccomp filter, where the kernel kills the process at the first system call
// other than exit. (How long a callback takes is measured in
// tests/bench/plugin.)
#include <signal.h>
#include <sys/wait.h>

#include <thread>

#include "cupti/board/testing/counting.h"
#include "cupti/nccl/plugin_driver.h"

namespace mycroft::nccl {
namespace {

using V5 = Driver<5>;

// Everything a running job does: collectives and p2p, flows that are new, operations
// that are queued, steps, kernels, level changes, things that are wrong.
void RunJob(V5& n, int iterations, int channels) {
  for (int i = 0; i < iterations; ++i) {
    if (i % 10 == 0) n.board().header().requested_level = 1 + static_cast<uint32_t>(i / 10 % 3);
    void* coll = n.Coll();
    for (int c = 0; c < channels; ++c) {
      for (bool send : {true, false}) {
        void* op = n.ProxyOp(coll, c, i % 7, send, 3);
        n.InProgress(op);
        for (int k = 0; k < 3; ++k) {
          void* s = n.Step(op, k);
          n.State(s, send ? kSendGpuWait : kRecvWait);
          n.State(s, send ? kSendPeerWait : kRecvFlushWait, 100);
          n.State(s, send ? kSendWait : kRecvGpuWait, 100);
          n.Stop(s);
        }
        n.Stop(op);
        n.Stop(op);
      }
      n.KernelStop(n.Kernel(coll, c, 1), 2);
    }
    n.Stop(n.Start(V5::P2pEvent(nullptr, "Send", i % 100)));
  }
}

TEST(Cost, NoAllocationAndNoMappingAfterInit) {
  if (Sanitized()) GTEST_SKIP() << "the sanitizer has its own allocator";
  const uint64_t mappings_before = t_mappings;
  V5 n;
  EXPECT_GE(t_mappings, mappings_before + 2) << "the counter does not count";
  void* probe = malloc(1);
  EXPECT_GT(t_allocations, 0u) << "the counter does not count";
  free(probe);
  n.RealClock();
  const uint64_t allocations = t_allocations;
  const uint64_t mappings = t_mappings;
  RunJob(n, 300, 8);
  EXPECT_EQ(t_allocations, allocations);
  EXPECT_EQ(t_mappings, mappings);
  // A thread that comes new to the plugin allocates nothing either.
  uint64_t in_thread = 1;
  std::thread([&] {
    const uint64_t before = t_allocations;
    n.ProxyOp(nullptr, 0, 1, true);
    in_thread = t_allocations - before;
  }).join();
  EXPECT_EQ(in_thread, 0u);
}

constexpr int kFine = 42;  // exit code of the child

int RunUnderSeccomp(bool cheat) {
  pid_t child = fork();
  if (child == 0) {
    V5 n;
    n.RealClock();
    n.Coll();  // this thread is known from here on
    if (!AllowExitOnly(SYS_exit)) _exit(1);
    RunJob(n, 3000, 8);  // long enough to renew the clock's anchor many times
    if (cheat) syscall(SYS_getpid);
    syscall(SYS_exit, n.board().header().next_op_id > 6000 ? kFine : 2);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST(Cost, NoSystemCallAfterInit) {
  if (Sanitized()) GTEST_SKIP() << "the sanitizer makes system calls of its own";
  // That the test can fail: one system call is death.
  EXPECT_EQ(RunUnderSeccomp(true), 1000 + SIGSYS);
  EXPECT_EQ(RunUnderSeccomp(false), kFine);
}

}  // namespace
}  // namespace mycroft::nccl
