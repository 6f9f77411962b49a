// SPDX-License-Identifier: Apache-2.0
//
// After a thread's and a stream's first call, callbacks neither allocate nor make a
// system call: counted by interposing the allocator and mmap, and proved by running
// them under a seccomp filter, where the kernel kills the process at the first system
// call other than exit. (How long a callback takes is measured in tests/bench/cupti.)
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "cupti/agent/testing/fake_gpu.h"
#include "cupti/board/testing/counting.h"

namespace mycroft::agent {
namespace {

class Gpu : public FakeGpu {
 public:
  Gpu() : FakeGpu(MYCROFT_CUPTI_PATH, MYCROFT_STAND_IN_PATH) {}
};

constexpr char kNames[4][48] = {"gemm_a", "gemm_b", "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                                "reduce"};

// What a training step does: launches that are new and known, copies, events, waits,
// failures, a capture, streams that come and go, buffers that change hands.
void RunJob(Gpu& gpu, int steps) {
  for (int i = 0; i < steps; ++i) {
    for (uint32_t k = 0; k < 20; ++k) gpu.Launch(Gpu::Stream(1 + k % 4), kNames[k % 4]);
    gpu.CopyToDevice(Gpu::Stream(2), 1 << 20);
    gpu.RecordEvent(0xe000 + static_cast<uint64_t>(i % 50) * 16, Gpu::Stream(1));
    gpu.QueryEvent(0xe000 + static_cast<uint64_t>(i % 50) * 16, i % 2 == 0 ? 0 : 600);
    gpu.Query(Gpu::Stream(2), 600);
    gpu.Launch(Gpu::Stream(1), kNames[0], 1, 700);
    if (i % 5 == 0) gpu.Sync(Gpu::Stream(1));
    if (i % 7 == 0)
      gpu.Do(CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize, 1, cuCtxSynchronize_v2_params{});
    const uint64_t other = Gpu::Stream(100 + static_cast<uint32_t>(i));
    gpu.Resource(CUPTI_CBID_RESOURCE_STREAM_CREATED, 1, other);
    gpu.Launch(other, kNames[1]);
    gpu.Resource(CUPTI_CBID_RESOURCE_STREAM_DESTROY_STARTING, 1, other);
  }
}

TEST(CuptiCost, NoAllocationAndNoMappingInCallbacks) {
  if (Sanitized()) GTEST_SKIP() << "the sanitizer has its own allocator";
  Gpu gpu;
  const uint64_t mappings_before = t_mappings;
  ASSERT_TRUE(gpu.Init());
  EXPECT_GE(t_mappings, mappings_before + 3) << "the counter does not count";
  free(malloc(1));
  EXPECT_GT(t_allocations, 0u) << "the counter does not count";
  const uint64_t allocations = t_allocations;
  const uint64_t mappings = t_mappings;
  RunJob(gpu, 300);
  EXPECT_EQ(t_allocations, allocations);
  EXPECT_EQ(t_mappings, mappings);
  // A thread that comes new to the library allocates nothing either.
  uint64_t in_thread = 1;
  std::thread([&] {
    const uint64_t before = t_allocations;
    gpu.Launch(Gpu::Stream(1), kNames[0]);
    gpu.Launch(0, kNames[0]);
    in_thread = t_allocations - before;
  }).join();
  EXPECT_EQ(in_thread, 0u);
}

TEST(CuptiCost, NoAllocationWhereBuffersChangeHands) {
  if (Sanitized()) GTEST_SKIP() << "the sanitizer has its own allocator";
  const ScopedEnv on("MYCROFT_CUPTI", "activity");
  Gpu gpu;
  ASSERT_TRUE(gpu.Init());
  for (int i = 0; i < 10'000 && gpu.cupti().kinds_enabled.load() < 6; ++i) usleep(1000);
  ASSERT_EQ(gpu.cupti().kinds_enabled.load(), 6u);
  const uint64_t allocations = t_allocations;
  for (int i = 0; i < 1000; ++i) {
    size_t size = 0;
    uint8_t* buffer = gpu.cupti().request(&size);
    if (buffer != nullptr) gpu.cupti().complete_raw(nullptr, 0, buffer, size, 0);
  }
  EXPECT_EQ(t_allocations, allocations);
}

constexpr int kFine = 42;  // exit code

[[noreturn]] void RunUnderSeccomp(bool cheat) {
  Gpu gpu;
  if (!gpu.Init()) _exit(3);
  gpu.Launch(Gpu::Stream(1), kNames[0]);  // this thread is known from here on
  // This thread only: our own thread of the library waits and reads as it must.
  if (!AllowExitOnly(SYS_exit_group)) _exit(1);
  RunJob(gpu, 3000);  // long enough to renew the clock's anchor many times
  size_t size = 0;
  gpu.cupti().request(&size);
  if (cheat) syscall(SYS_getpid);
  syscall(SYS_exit_group, kFine);
  __builtin_unreachable();
}

TEST(CuptiCost, NoSystemCallInCallbacks) {
  if (Sanitized()) GTEST_SKIP() << "the sanitizer makes system calls of its own";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // That the test can fail: one system call is death.
  EXPECT_EXIT(RunUnderSeccomp(true), ::testing::KilledBySignal(SIGSYS), "");
  EXPECT_EXIT(RunUnderSeccomp(false), ::testing::ExitedWithCode(kFine), "");
}

}  // namespace
}  // namespace mycroft::agent
