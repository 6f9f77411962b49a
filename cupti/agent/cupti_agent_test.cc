// SPDX-License-Identifier: Apache-2.0
//
// The built library beside a stand-in libcupti, read through its board as the agent
// reads it: what streams were given, what is known of its end, and the manners.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include <functional>
#include <thread>
#include <vector>

#include "cupti/agent/testing/fake_gpu.h"
#include "userspace/decode/gpu_board_decode.h"
#include "userspace/source/gpu_board_map.h"

// The driver's side of a device, found by the library in this executable.
extern "C" {
CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
  if (ordinal > 1) return CUDA_ERROR_INVALID_DEVICE;
  *device = 100 + ordinal;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  memset(uuid->bytes, device, sizeof(uuid->bytes));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGetPCIBusId(char* pci, int bytes, CUdevice device) {
  snprintf(pci, static_cast<size_t>(bytes), "0000:%02x:00.0", device);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGetName(char* name, int bytes, CUdevice) {
  snprintf(name, static_cast<size_t>(bytes), "Test GPU");
  return CUDA_SUCCESS;
}
}

namespace mycroft::agent {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMs = 1'000'000;
constexpr int kNotReady = 600;
constexpr char kGemm[] = "_Z4gemmPfS_S_";
constexpr char kAllReduce[] =
    "_Z38ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE";

uint64_t NowNs() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(ts.tv_nsec);
}

class Gpu : public FakeGpu {
 public:
  explicit Gpu(const char* stand_in = MYCROFT_STAND_IN_PATH)
      : FakeGpu(MYCROFT_CUPTI_PATH, stand_in) {}

  void Start() {
    ASSERT_TRUE(Init()) << dlerror();
    auto map = GpuBoardMap::Open(board_path());
    ASSERT_TRUE(map.ok()) << map.status();
    board_.emplace(*std::move(map));
  }
  GpuBoardMap& board() { return *board_; }
  GpuSnapshot Read(uint64_t next_event = 1) { return ReadGpuBoard(board(), next_event, NowNs()); }
  // The only stream, or the one with CUPTI's number.
  GpuStreamSample Stream1(uint32_t id) {
    for (const GpuStreamSample& s : Read().streams) {
      if (s.stream_id == id && s.alive) return s;
    }
    ADD_FAILURE() << "no stream " << id;
    return {};
  }
  // Waits for what our own thread does in its own time.
  bool Until(const std::function<bool(const GpuSnapshot&)>& holds, uint64_t ms = 10'000) {
    const uint64_t end = NowNs() + ms * kMs;
    while (NowNs() < end) {
      if (holds(Read())) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return false;
  }
  void Arm(uint64_t ms = 60'000) {
    ASSERT_TRUE(board().RequestLevel(MC_GPU_LEVEL_ACTIVITY, NowNs() + ms * kMs));
    ASSERT_TRUE(Until([](const GpuSnapshot& s) { return s.state == MC_GPU_ARMED; }));
  }
  bool Records(uint64_t n) {
    return Until([n](const GpuSnapshot& s) { return s.records >= n; });
  }

 private:
  std::optional<GpuBoardMap> board_;
};

// ---- a kernel that never ends ------------------------------------------------------------

TEST(CuptiAgent, KernelThatNeverEndsIsSeenWhileTheHostWaits) {
  Gpu gpu;
  gpu.Start();
  gpu.Launch(Gpu::Stream(5), kGemm);
  gpu.Sync(Gpu::Stream(5));
  const uint64_t before = NowNs();
  gpu.Launch(Gpu::Stream(5), kAllReduce);
  gpu.Launch(Gpu::Stream(5), kGemm);
  GpuStreamSample s = gpu.Stream1(5);
  EXPECT_EQ(s.launched, 3u);
  EXPECT_EQ(s.finished, 1u);
  EXPECT_EQ(s.finished_by, MC_GPU_HOST_STREAM_SYNC);
  EXPECT_EQ(s.pending, GpuPending::kUnknown) << "nothing proves that it runs";

  OpenCall wait;
  gpu.BeginSync(&wait, Gpu::Stream(5));
  s = gpu.Stream1(5);
  EXPECT_EQ(s.pending, GpuPending::kUnfinished);
  EXPECT_GE(s.waited_since_ns, before);
  EXPECT_GE(s.proved_ns, s.waited_since_ns);
  ASSERT_TRUE(s.oldest.has_value());
  EXPECT_EQ(s.oldest->kernel, kAllReduce);
  EXPECT_EQ(s.oldest->work, MC_GPU_WORK_NCCL);
  EXPECT_EQ(s.oldest->ticket, 2u);
  EXPECT_GE(s.oldest->launch_ns, before);
  ASSERT_EQ(s.behind.size(), 1u);
  EXPECT_EQ(s.behind[0].kernel, kGemm);
  ASSERT_TRUE(s.last.has_value());
  EXPECT_EQ(s.last->ticket, 3u);
  const GpuSnapshot all = gpu.Read();
  ASSERT_EQ(all.threads.size(), 1u);
  EXPECT_EQ(all.threads[0].call, MC_GPU_HOST_STREAM_SYNC);
  EXPECT_EQ(all.threads[0].tid, static_cast<uint32_t>(gettid()));
  EXPECT_EQ(all.records, 0u) << "no activity record was needed";
  EXPECT_EQ(all.launches, 3u);
  EXPECT_EQ(all.nccl_launches, 1u);

  gpu.End(&wait);
  s = gpu.Stream1(5);
  EXPECT_EQ(s.pending, GpuPending::kNone);
  EXPECT_EQ(s.finished, 3u);
  EXPECT_FALSE(s.oldest.has_value());
  EXPECT_TRUE(s.behind.empty());
  EXPECT_EQ(s.last_wait, MC_GPU_HOST_STREAM_SYNC);
}

TEST(CuptiAgent, QueriesProveBothWays) {
  Gpu gpu;
  gpu.Start();
  gpu.Launch(Gpu::Stream(5), kGemm);
  gpu.Query(Gpu::Stream(5), kNotReady);
  GpuStreamSample s = gpu.Stream1(5);
  EXPECT_EQ(s.pending, GpuPending::kUnfinished);
  EXPECT_LE(s.proved_ns, NowNs());
  EXPECT_EQ(s.waited_since_ns, 0u);
  gpu.Query(Gpu::Stream(5), 0);
  s = gpu.Stream1(5);
  EXPECT_EQ(s.pending, GpuPending::kNone);
  EXPECT_EQ(s.finished_by, MC_GPU_HOST_STREAM_QUERY);
}

// What PyTorch's watchdog does for every collective.
TEST(CuptiAgent, EventsStandForWhatWasBeforeThem) {
  Gpu gpu;
  gpu.Start();
  gpu.Launch(Gpu::Stream(5), kAllReduce);
  gpu.RecordEvent(0xe00, Gpu::Stream(5));
  gpu.Launch(Gpu::Stream(5), kAllReduce);
  gpu.RecordEvent(0xe10, Gpu::Stream(5));
  gpu.QueryEvent(0xe00, 0);
  gpu.QueryEvent(0xe10, kNotReady);
  GpuStreamSample s = gpu.Stream1(5);
  EXPECT_EQ(s.finished, 1u);
  EXPECT_EQ(s.finished_by, MC_GPU_HOST_EVENT_QUERY);
  EXPECT_EQ(s.pending, GpuPending::kUnfinished);
  ASSERT_TRUE(s.oldest.has_value());
  EXPECT_EQ(s.oldest->ticket, 2u);
  // An event is used again.
  gpu.RecordEvent(0xe00, Gpu::Stream(5));
  gpu.QueryEvent(0xe00, 0);
  EXPECT_EQ(gpu.Stream1(5).finished, 2u);
  // Or destroyed: then it says nothing.
  gpu.Launch(Gpu::Stream(5), kAllReduce);
  gpu.RecordEvent(0xe00, Gpu::Stream(5));
  cuEventDestroy_v2_params p = {reinterpret_cast<CUevent>(0xe00)};
  gpu.Do(CUPTI_DRIVER_TRACE_CBID_cuEventDestroy_v2, 1, p);
  gpu.QueryEvent(0xe00, 0);
  EXPECT_EQ(gpu.Stream1(5).finished, 2u);
}

// NCCL's stream waits for the compute stream, whose kernel does not end.
TEST(CuptiAgent, StreamThatWaitsForAnother) {
  Gpu gpu;
  gpu.Start();
  gpu.Launch(Gpu::Stream(5), kGemm);
  gpu.RecordEvent(0xe00, Gpu::Stream(5));
  gpu.Launch(Gpu::Stream(6), kAllReduce);
  cuStreamWaitEvent_params p = {};
  p.hStream = reinterpret_cast<CUstream>(Gpu::Stream(6));
  p.hEvent = reinterpret_cast<CUevent>(0xe00);
  gpu.Do(CUPTI_DRIVER_TRACE_CBID_cuStreamWaitEvent, 1, p);
  gpu.Launch(Gpu::Stream(6), kAllReduce);
  const GpuStreamSample s = gpu.Stream1(6);
  EXPECT_EQ(s.waits_for_stream, gpu.Stream1(5).index);
  EXPECT_EQ(s.wait_ticket, 1u);
  EXPECT_EQ(s.wait_at, 1u);
  gpu.QueryEvent(0xe00, 0);
  EXPECT_EQ(gpu.Stream1(6).waits_for_stream, std::nullopt);
}

// A ticket is a lower bound even when a launch of another thread is under way.
TEST(CuptiAgent, WaitDoesNotProveALaunchStillUnderWay) {
  Gpu gpu;
  gpu.Start();
  gpu.Launch(Gpu::Stream(5), kGemm);
  OpenCall slow;
  cuLaunchKernel_params p = {};
  p.hStream = reinterpret_cast<CUstream>(Gpu::Stream(5));
  std::thread other(
      [&] { gpu.Begin(&slow, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, 1, &p, sizeof(p), kGemm); });
  other.join();
  gpu.Sync(Gpu::Stream(5));
  EXPECT_EQ(gpu.Stream1(5).finished, 1u);
  EXPECT_EQ(gpu.Stream1(5).launched, 2u);
}

TEST(CuptiAgent, LongQueueKeepsItsOldest) {
  Gpu gpu;
  gpu.Start();
  gpu.Launch(Gpu::Stream(5), kAllReduce);
  for (int i = 0; i < 500; ++i) gpu.Launch(Gpu::Stream(5), kGemm);
  GpuStreamSample s = gpu.Stream1(5);
  ASSERT_TRUE(s.oldest.has_value());
  EXPECT_EQ(s.oldest->ticket, 1u);
  EXPECT_EQ(s.oldest->kernel, kAllReduce);
  EXPECT_EQ(s.behind.size(), MC_GPU_QUEUE);
  // Half of it ends; the oldest has left the queue long ago.
  gpu.RecordEvent(0xe00, Gpu::Stream(5));
  for (int i = 0; i < 300; ++i) gpu.Launch(Gpu::Stream(5), kGemm);
  gpu.QueryEvent(0xe00, 0);
  s = gpu.Stream1(5);
  EXPECT_EQ(s.finished, 501u);
  ASSERT_TRUE(s.oldest.has_value());
  EXPECT_EQ(s.oldest->ticket, 502u);
  // So long that nothing is left of it: said, not guessed.
  gpu.RecordEvent(0xe00, Gpu::Stream(5));
  for (int i = 0; i < 1500; ++i) gpu.Launch(Gpu::Stream(5), kGemm);
  gpu.QueryEvent(0xe00, 0);
  s = gpu.Stream1(5);
  EXPECT_EQ(s.finished, 801u);
  EXPECT_FALSE(s.oldest.has_value());
  EXPECT_EQ(s.pending, GpuPending::kUnknown);
}

// ---- all kinds of work ---------------------------------------------------------------------

TEST(CuptiAgent, CountsEveryKindOfWork) {
  Gpu gpu;
  gpu.Start();
  const uint64_t stream = Gpu::Stream(9);
  gpu.Launch(stream, kGemm);
  cuLaunchCooperativeKernel_params cooperative = {};
  cooperative.hStream = reinterpret_cast<CUstream>(stream);
  gpu.Do(CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel, 1, cooperative, 0, kGemm);
  CUlaunchConfig config = {};
  config.hStream = reinterpret_cast<CUstream>(stream);
  cuLaunchKernelEx_params ex = {};
  ex.config = &config;
  gpu.Do(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, 1, ex, 0, kAllReduce);
  cuGraphLaunch_params graph = {};
  graph.hStream = reinterpret_cast<CUstream>(stream);
  gpu.Do(CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch, 1, graph);
  gpu.CopyToDevice(stream, 1000);
  cuMemcpyDtoHAsync_v2_params down = {};
  down.ByteCount = 2000;
  down.hStream = reinterpret_cast<CUstream>(stream);
  gpu.Do(CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoHAsync_v2, 1, down);
  CUDA_MEMCPY2D shape = {};
  shape.WidthInBytes = 100;
  shape.Height = 30;
  shape.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  shape.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  cuMemcpy2DAsync_v2_params flat = {&shape, reinterpret_cast<CUstream>(stream)};
  gpu.Do(CUPTI_DRIVER_TRACE_CBID_cuMemcpy2DAsync_v2, 1, flat);
  cuMemsetD32Async_params set = {};
  set.N = 512;
  set.hStream = reinterpret_cast<CUstream>(stream);
  gpu.Do(CUPTI_DRIVER_TRACE_CBID_cuMemsetD32Async, 1, set);

  const GpuStreamSample s = gpu.Stream1(9);
  EXPECT_EQ(s.launched, 8u);
  EXPECT_EQ(s.kernels, 3u);
  EXPECT_EQ(s.nccl_kernels, 1u);
  EXPECT_EQ(s.graphs, 1u);
  EXPECT_EQ(s.memsets, 1u);
  EXPECT_EQ(s.voids, 0u);
  EXPECT_EQ(s.copies[MC_GPU_COPY_HTOD], 1u);
  EXPECT_EQ(s.copy_bytes[MC_GPU_COPY_HTOD], 1000u);
  EXPECT_EQ(s.copy_bytes[MC_GPU_COPY_DTOH], 2000u);
  EXPECT_EQ(s.copy_bytes[MC_GPU_COPY_DTOD], 3000u);
  ASSERT_TRUE(s.last.has_value());
  EXPECT_EQ(s.last->work, MC_GPU_WORK_MEMSET);
  EXPECT_EQ(s.last->bytes, 2048u);
}

TEST(CuptiAgent, CopyToTheHostProvesWhatWasBeforeIt) {
  Gpu gpu;
  gpu.Start();
  gpu.Launch(0, kGemm);
  cuMemcpyHtoD_v2_params up = {};
  up.ByteCount = 64;
  gpu.Do(CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoD_v2, 1, up);
  EXPECT_EQ(gpu.Stream1(7).finished, 0u) << "it may return before the data has arrived";
  cuMemcpyDtoH_v2_params down = {};
  down.ByteCount = 64;
  OpenCall call;
  gpu.Begin(&call, CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoH_v2, 1, &down, sizeof(down));
  EXPECT_EQ(gpu.Stream1(7).pending, GpuPending::kUnfinished);
  gpu.End(&call);
  const GpuStreamSample s = gpu.Stream1(7);
  EXPECT_EQ(s.finished, 3u);
  EXPECT_EQ(s.kind, MC_GPU_STREAM_LEGACY);
  EXPECT_EQ(s.finished_by, MC_GPU_HOST_COPY);
}

TEST(CuptiAgent, FailedAndCapturedLaunchesAreNotWaitedFor) {
  Gpu gpu;
  gpu.Start();
  const uint64_t stream = Gpu::Stream(5);
  gpu.Launch(stream, kGemm, 1, 701);
  GpuStreamSample s = gpu.Stream1(5);
  EXPECT_EQ(s.voids, 1u);
  EXPECT_EQ(s.pending, GpuPending::kNone);
  // A stream that is captured.
  cuStreamBeginCapture_v2_params begin = {};
  begin.hStream = reinterpret_cast<CUstream>(stream);
  gpu.Do(CUPTI_DRIVER_TRACE_CBID_cuStreamBeginCapture_v2, 1, begin);
  EXPECT_TRUE(gpu.Stream1(5).capturing);
  gpu.Launch(stream, kAllReduce);
  cuStreamEndCapture_params end = {};
  end.hStream = reinterpret_cast<CUstream>(stream);
  gpu.Do(CUPTI_DRIVER_TRACE_CBID_cuStreamEndCapture, 1, end);
  s = gpu.Stream1(5);
  EXPECT_FALSE(s.capturing);
  EXPECT_EQ(s.pending, GpuPending::kNone);
  // Another stream drawn into the capture: only the node tells.
  OpenCall call;
  cuLaunchKernel_params p = {};
  p.hStream = reinterpret_cast<CUstream>(Gpu::Stream(6));
  gpu.Begin(&call, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, 1, &p, sizeof(p), kGemm);
  gpu.Resource(CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, 1);
  gpu.End(&call);
  s = gpu.Stream1(6);
  EXPECT_EQ(s.voids, 1u);
  EXPECT_EQ(s.pending, GpuPending::kNone);
  // And what comes after is real again.
  gpu.Launch(Gpu::Stream(6), kGemm);
  EXPECT_EQ(gpu.Stream1(6).pending, GpuPending::kUnknown);
}

// ---- streams, contexts, devices -----------------------------------------------------------

TEST(CuptiAgent, ContextsAndStreamsComeAndGo) {
  Gpu gpu;
  gpu.Start();
  gpu.Resource(CUPTI_CBID_RESOURCE_CONTEXT_CREATED, 1);
  gpu.Resource(CUPTI_CBID_RESOURCE_CONTEXT_CREATED, 3);
  gpu.Resource(CUPTI_CBID_RESOURCE_STREAM_CREATED, 3, Gpu::Stream(5));
  gpu.Launch(Gpu::Stream(5), kGemm, 3);
  gpu.Launch(0, kGemm, 1);
  gpu.Launch(0, kGemm, 3);
  GpuSnapshot all = gpu.Read();
  ASSERT_EQ(all.contexts.size(), 2u);
  EXPECT_EQ(all.contexts[1].device, 2u);
  ASSERT_EQ(all.devices.size(), 2u);
  EXPECT_EQ(all.devices[1].ordinal, 2u);
  ASSERT_EQ(all.streams.size(), 3u) << "default streams of two contexts are two";
  EXPECT_EQ(all.streams[0].device, 2u);
  // One name on two devices: two lines, since the devices may differ in speed.
  EXPECT_EQ(all.names.size(), 3u);

  // The whole context is waited for.
  OpenCall sync;
  gpu.Begin(&sync, CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize, 3, nullptr, 0);
  all = gpu.Read();
  EXPECT_EQ(all.streams[0].pending, GpuPending::kWaitedFor) << "this one or the default stream";
  EXPECT_EQ(all.streams[1].pending, GpuPending::kUnknown) << "another context";
  gpu.Launch(Gpu::Stream(5), kGemm, 3);  // meanwhile
  gpu.End(&sync);
  all = gpu.Read();
  EXPECT_EQ(all.streams[0].finished, 1u);
  EXPECT_EQ(all.streams[2].pending, GpuPending::kNone);

  gpu.Resource(CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING, 3);
  all = gpu.Read();
  EXPECT_FALSE(all.contexts[1].alive);
  EXPECT_FALSE(all.streams[0].alive);
  EXPECT_TRUE(all.streams[1].alive);
  // The same handle again is another stream.
  gpu.Resource(CUPTI_CBID_RESOURCE_STREAM_CREATED, 1, Gpu::Stream(5));
  all = gpu.Read();
  ASSERT_EQ(all.streams.size(), 4u);
  EXPECT_EQ(all.streams[3].launched, 0u);
  EXPECT_EQ(all.streams[3].device, 0u);
}

TEST(CuptiAgent, DevicesAreDescribed) {
  Gpu gpu;
  gpu.Start();
  gpu.Resource(CUPTI_CBID_RESOURCE_CONTEXT_CREATED, 2);
  gpu.Resource(CUPTI_CBID_RESOURCE_CONTEXT_CREATED, 5);  // the driver does not know it
  ASSERT_TRUE(gpu.Until(
      [](const GpuSnapshot& s) { return s.devices.size() == 2 && !s.devices[0].pci.empty(); }));
  const GpuSnapshot all = gpu.Read();
  EXPECT_EQ(all.devices[0].ordinal, 1u);
  EXPECT_EQ(all.devices[0].pci, "0000:65:00.0");
  EXPECT_EQ(all.devices[0].uuid, "GPU-65656565-6565-6565-6565-656565656565");
  EXPECT_EQ(all.devices[0].name, "Test GPU");
  EXPECT_EQ(all.devices[1].ordinal, 4u);
  EXPECT_EQ(all.devices[1].pci, "");
}

TEST(CuptiAgent, MoreStreamsThanLinesAreCounted) {
  Gpu gpu;
  gpu.Start();
  for (uint32_t i = 1; i <= MC_GPU_MAX_STREAMS + 10; ++i) gpu.Launch(Gpu::Stream(i), kGemm);
  EXPECT_EQ(gpu.Read().lost[MC_GPU_LOSS_STREAM_TABLE_FULL], 10u);
  // A destroyed one makes room; its line starts anew.
  gpu.Resource(CUPTI_CBID_RESOURCE_STREAM_DESTROY_STARTING, 1, Gpu::Stream(3));
  gpu.Launch(Gpu::Stream(9000), kGemm);
  const GpuStreamSample s = gpu.Stream1(9000);
  EXPECT_EQ(s.generation, 2u);
  EXPECT_EQ(s.kernels, 1u);
  EXPECT_EQ(s.launched, s.finished + 1);
  EXPECT_EQ(gpu.Read().lost[MC_GPU_LOSS_STREAM_TABLE_FULL], 10u);
}

TEST(CuptiAgent, MoreNamesThanLinesAreCounted) {
  Gpu gpu;
  gpu.Start();
  for (uint32_t i = 0; i < MC_GPU_MAX_NAMES + 50; ++i) {
    gpu.Launch(Gpu::Stream(1), ("kernel_" + std::to_string(i)).c_str());
  }
  const GpuSnapshot all = gpu.Read();
  EXPECT_EQ(all.names.size(), size_t{MC_GPU_MAX_NAMES});
  EXPECT_EQ(all.lost[MC_GPU_LOSS_NAME_TABLE_FULL], 51u);
  EXPECT_EQ(all.launches, MC_GPU_MAX_NAMES + 50u);
}

TEST(CuptiAgent, ManyThreadsLaunchAndWait) {
  Gpu gpu;
  gpu.Start();
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 8; ++i) {
    threads.emplace_back([&gpu, i] {
      for (int k = 0; k < 200; ++k) {
        gpu.Launch(Gpu::Stream(1 + i % 2), kGemm);
        if (k % 10 == 9) gpu.Sync(Gpu::Stream(1 + i % 2));
        if (k % 50 == 0) gpu.Launch(0, kAllReduce);
      }
    });
  }
  for (int i = 0; i < 50; ++i) gpu.Read();
  for (std::thread& t : threads) t.join();
  gpu.Sync(Gpu::Stream(1));
  gpu.Sync(Gpu::Stream(2));
  const GpuSnapshot all = gpu.Read();
  EXPECT_EQ(all.launches, 8u * 204);
  EXPECT_EQ(all.nccl_launches, 32u);
  EXPECT_EQ(gpu.Stream1(1).kernels, 800u);
  EXPECT_EQ(gpu.Stream1(1).finished, 800u);
  EXPECT_EQ(gpu.Stream1(2).finished, 800u);
  EXPECT_EQ(all.threads.size(), 9u);
  for (const GpuThreadSample& t : all.threads) EXPECT_EQ(t.call, MC_GPU_HOST_NONE);
}

// ---- NCCL's kernels by name ------------------------------------------------------------------

TEST(CuptiAgent, NcclKernelsByName) {
  const ScopedEnv more("MYCROFT_NCCL_KERNELS", "myRing*, exactName");
  Gpu gpu;
  gpu.Start();
  for (const char* name :
       {"ncclDevKernel_AllReduce_Sum_f32_RING_LL", kAllReduce, "ncclKernel_AllGather_RING_LL_Sum",
        "_Z38ncclSymkDevKernel_AllReduce_RSxLD_AGxST22ncclSymkDevWorkArgs4K",
        "ncclSymDevKernel_ReduceScatter_LD", "myRingKernel", "exactName", "_Z9exactNamev"}) {
    gpu.Launch(Gpu::Stream(1), name);
  }
  EXPECT_EQ(gpu.Read().nccl_launches, 8u);
  for (const char* name : {kGemm, "notncclDevKernel_x", "exactNameLonger", "", "ncclDev"}) {
    gpu.Launch(Gpu::Stream(1), name);
  }
  gpu.Launch(Gpu::Stream(1), nullptr);
  EXPECT_EQ(gpu.Read().nccl_launches, 8u);
}

TEST(CuptiAgent, NoNcclKernelIsSaid) {
  Gpu gpu;
  gpu.Start();
  EXPECT_EQ(DescribeGpuState(gpu.Read()), "");
  gpu.Launch(Gpu::Stream(1), kGemm);
  EXPECT_THAT(DescribeGpuState(gpu.Read()), HasSubstr("0 of 1 kernels have a name of NCCL's"));
}

// ---- activity ------------------------------------------------------------------------------

TEST(CuptiAgent, RecordsGiveTimes) {
  Gpu gpu;
  gpu.Start();
  gpu.Arm();
  EXPECT_EQ(gpu.cupti().kinds_enabled, 6u);
  const uint32_t a = gpu.Launch(Gpu::Stream(5), kGemm);
  const uint32_t b = gpu.Launch(Gpu::Stream(5), kAllReduce);
  const uint32_t c = gpu.CopyToDevice(Gpu::Stream(5), 4096);
  gpu.Launch(Gpu::Stream(5), kGemm);
  const uint64_t t = NowNs() + kMs;
  ASSERT_TRUE(gpu.KernelRecord(5, a, t, t + 1000, kGemm));
  ASSERT_TRUE(gpu.KernelRecord(5, b, t + 2000, t + 5000, kAllReduce));
  ASSERT_TRUE(gpu.CopyRecord(5, c, t + 6000, t + 6500, 4096));
  gpu.cupti().complete(false);
  ASSERT_TRUE(gpu.Records(3));
  const GpuStreamSample s = gpu.Stream1(5);
  EXPECT_EQ(s.finished, 3u);
  EXPECT_EQ(s.finished_by, MC_GPU_HOST_RECORD);
  EXPECT_EQ(s.kernel_count, 1u);
  EXPECT_EQ(s.kernel_ns, 1000u);
  EXPECT_EQ(s.nccl_count, 1u);
  EXPECT_EQ(s.nccl_ns, 3000u);
  EXPECT_EQ(s.delay_count, 2u);
  EXPECT_GE(s.delay_ns, kMs) << "from launch to start";
  EXPECT_EQ(s.done_copy_bytes[MC_GPU_COPY_HTOD], 4096u);
  EXPECT_EQ(s.done_copy_ns[MC_GPU_COPY_HTOD], 500u);
  EXPECT_EQ(s.last_end_ns, t + 6500);
  EXPECT_EQ(s.pending, GpuPending::kUnknown) << "no record of the last one proves nothing";
  const GpuSnapshot all = gpu.Read();
  EXPECT_EQ(all.clock, MC_GPU_CLOCK_MONOTONIC);
  EXPECT_EQ(all.matched_exact, 3u);
  ASSERT_EQ(all.events.size(), 3u);
  EXPECT_EQ(all.events[1].start_ns, t + 2000);
  EXPECT_EQ(all.events[1].work, MC_GPU_WORK_NCCL);
  EXPECT_EQ(all.names[all.events[1].name].name, kAllReduce);
  EXPECT_EQ(all.events[2].bytes, 4096u);
  EXPECT_EQ(all.next_event_id, 4u);
  EXPECT_TRUE(gpu.Read(all.next_event_id).events.empty());
  const GpuNameSample& gemm = all.names[1];
  EXPECT_EQ(gemm.name, kGemm);
  EXPECT_EQ(gemm.count, 1u);
  EXPECT_EQ(gemm.min_ns, 1000u);
  EXPECT_EQ(gemm.ewma_ns, 1000u);
  EXPECT_EQ(gemm.log2[9], 1u);
}

// The id may be that of the runtime's call around the driver's.
TEST(CuptiAgent, RecordsWithTheIdOfAnOuterCall) {
  Gpu gpu;
  gpu.Start();
  gpu.Arm();
  uint32_t ids[3];
  for (uint32_t& id : ids) {
    gpu.Query(Gpu::Stream(8), 0);  // takes the id before it
    id = gpu.Launch(Gpu::Stream(5), kGemm);
  }
  const uint64_t t = NowNs() + kMs;
  for (int i = 0; i < 2; ++i) gpu.KernelRecord(5, ids[i] - 1, t + i * 10, t + i * 10 + 5, kGemm);
  gpu.cupti().complete(false);
  ASSERT_TRUE(gpu.Records(2));
  EXPECT_EQ(gpu.Read().matched_near, 2u);
  EXPECT_EQ(gpu.Stream1(5).finished, 2u);
  // A far one is not taken for the next launch.
  gpu.KernelRecord(5, ids[2] - 100, t + 100, t + 105, kGemm);
  gpu.cupti().complete(false);
  ASSERT_TRUE(gpu.Records(3));
  EXPECT_EQ(gpu.Stream1(5).finished, 2u);
  EXPECT_EQ(gpu.Read().lost[MC_GPU_LOSS_UNMATCHED], 1u);
}

TEST(CuptiAgent, BuffersOutOfOrder) {
  Gpu gpu;
  gpu.Start();
  gpu.Arm();
  uint32_t ids[2][2];
  for (int i = 0; i < 2; ++i) {
    for (uint32_t k : {0u, 1u}) ids[i][k] = gpu.Launch(Gpu::Stream(5 + k), kGemm);
  }
  const uint64_t t = NowNs() + kMs;
  // The later buffer of stream 5 comes before the earlier one.
  gpu.KernelRecord(5, ids[1][0], t + 10, t + 20, kGemm);
  gpu.cupti().complete(true);
  ASSERT_TRUE(gpu.Records(1));
  EXPECT_EQ(gpu.Stream1(5).finished, 2u) << "a stream works in order";
  gpu.KernelRecord(6, ids[0][1], t, t + 5, kGemm);
  gpu.KernelRecord(5, ids[0][0], t, t + 5, kGemm);
  gpu.cupti().complete(true);
  ASSERT_TRUE(gpu.Records(3));
  EXPECT_EQ(gpu.Stream1(5).finished, 2u);
  EXPECT_EQ(gpu.Stream1(5).kernel_count, 2u);
  EXPECT_EQ(gpu.Stream1(6).finished, 1u);
  EXPECT_EQ(gpu.Read().matched_exact, 3u);
  EXPECT_EQ(gpu.Read().lost[MC_GPU_LOSS_UNMATCHED], 0u);
}

TEST(CuptiAgent, KernelsOfAGraphDoNotFinishIt) {
  Gpu gpu;
  gpu.Start();
  gpu.Arm();
  cuGraphLaunch_params graph = {};
  graph.hStream = reinterpret_cast<CUstream>(Gpu::Stream(5));
  const uint32_t id = gpu.Do(CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch, 1, graph);
  const uint64_t t = NowNs() + kMs;
  gpu.KernelRecord(5, id, t, t + 10, kAllReduce, 1, 77);
  gpu.cupti().complete(false);
  ASSERT_TRUE(gpu.Records(1));
  GpuStreamSample s = gpu.Stream1(5);
  EXPECT_EQ(s.finished, 0u);
  EXPECT_EQ(s.nccl_count, 1u) << "known by the record's own name";
  ASSERT_TRUE(s.oldest.has_value());
  EXPECT_EQ(s.oldest->work, MC_GPU_WORK_GRAPH);
  gpu.Sync(Gpu::Stream(5));
  EXPECT_EQ(gpu.Stream1(5).finished, 1u);
}

TEST(CuptiAgent, BadRecordsAreCounted) {
  Gpu gpu;
  gpu.Start();
  gpu.Arm();
  const uint32_t id = gpu.Launch(Gpu::Stream(5), kGemm);
  const uint64_t t = NowNs();
  gpu.KernelRecord(5, id, 0, 0, kGemm);       // no time: not ended, or no memory for it
  gpu.KernelRecord(99, id, t, t + 1, kGemm);  // a stream that is not known
  gpu.KernelRecord(5, id, t - 10'000 * kMs, t - 9'000 * kMs, kGemm);  // before its launch
  gpu.cupti().dropped = 17;
  gpu.cupti().complete(false);
  ASSERT_TRUE(gpu.Records(3));
  ASSERT_TRUE(gpu.Until([](const GpuSnapshot& s) { return s.lost[MC_GPU_LOSS_DROPPED] == 17; }));
  const GpuSnapshot all = gpu.Read();
  EXPECT_EQ(all.lost[MC_GPU_LOSS_NO_TIME], 1u);
  EXPECT_EQ(all.lost[MC_GPU_LOSS_UNKNOWN_STREAM], 1u);
  EXPECT_EQ(all.lost[MC_GPU_LOSS_BACKWARDS], 1u);
  EXPECT_EQ(gpu.Stream1(5).delay_count, 0u);
  // A buffer cut in the middle of a record, and one of somebody else.
  size_t size = 0;
  uint8_t* buffer = gpu.cupti().request(&size);
  ASSERT_NE(buffer, nullptr);
  memset(buffer, 0, 64);
  buffer[0] = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  gpu.cupti().complete_raw(Gpu::Context(1), 5, buffer, size, 60);
  alignas(8) static uint8_t foreign[1024];
  gpu.cupti().complete_raw(Gpu::Context(1), 5, foreign, sizeof(foreign), 100);
  gpu.cupti().complete_raw(Gpu::Context(1), 5, buffer, size, 60);  // a second time
  gpu.cupti().complete_raw(Gpu::Context(1), 5, nullptr, 0, 0);
  EXPECT_TRUE(
      gpu.Until([](const GpuSnapshot& s) { return s.lost[MC_GPU_LOSS_UNKNOWN_KIND] == 1; }));
  EXPECT_GE(gpu.Read().lost[MC_GPU_LOSS_FOREIGN_BUFFER], 1u);
}

TEST(CuptiAgent, BuffersAfterTheirContextIsGone) {
  Gpu gpu;
  gpu.Start();
  gpu.Arm();
  const uint32_t id = gpu.Launch(Gpu::Stream(5), kGemm, 2);
  const uint64_t t = NowNs() + kMs;
  gpu.KernelRecord(5, id, t, t + 10, kGemm, 2);
  gpu.Resource(CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING, 2);
  gpu.cupti().context_dies(Gpu::Context(2));
  gpu.cupti().complete(false);
  ASSERT_TRUE(gpu.Records(1));
  const GpuSnapshot all = gpu.Read();
  EXPECT_EQ(all.lost[MC_GPU_LOSS_LATE_BUFFER], 1u);
  EXPECT_EQ(all.streams[0].finished, 1u) << "read all the same";
  EXPECT_EQ(gpu.cupti().dropped_asked_of_dead_context, 0u);
}

TEST(CuptiAgent, PoolIsBounded) {
  Gpu gpu;
  gpu.Start();
  gpu.Arm();
  std::vector<uint8_t*> taken;
  size_t size = 0;
  while (uint8_t* buffer = gpu.cupti().request(&size)) {
    taken.push_back(buffer);
    ASSERT_LE(taken.size(), 1000u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer) % 8, 0u);
  }
  EXPECT_EQ(taken.size(), 64u);
  EXPECT_EQ(gpu.Read().lost[MC_GPU_LOSS_POOL_EMPTY], 1u);
  for (uint8_t* buffer : taken) gpu.cupti().complete_raw(Gpu::Context(1), 5, buffer, size, 0);
  EXPECT_TRUE(gpu.Until([&](const GpuSnapshot&) {
    uint8_t* again = gpu.cupti().request(&size);
    if (again != nullptr) gpu.cupti().complete_raw(Gpu::Context(1), 5, again, size, 0);
    return again != nullptr;
  })) << "they come back";
}

TEST(CuptiAgent, ActivityEndsByItself) {
  Gpu gpu;
  gpu.Start();
  gpu.Arm(300);
  const uint32_t id = gpu.Launch(Gpu::Stream(5), kGemm);
  const uint64_t t = NowNs() + kMs;
  gpu.KernelRecord(5, id, t, t + 10, kGemm);  // still with CUPTI
  ASSERT_TRUE(gpu.Until([](const GpuSnapshot& s) { return s.state == MC_GPU_WATCHING; }));
  EXPECT_EQ(gpu.cupti().kinds_enabled, 0u);
  EXPECT_GE(gpu.cupti().forced, 1u);
  EXPECT_EQ(gpu.cupti().finalized, 0u);
  const GpuSnapshot all = gpu.Read();
  EXPECT_EQ(all.records, 1u) << "what was left is flushed and read";
  EXPECT_EQ(all.level, MC_GPU_LEVEL_CALLBACKS);
  EXPECT_EQ(all.armed_ns, 0u);
  EXPECT_GT(all.armed_total_ns, 0u);
  // Callbacks go on.
  gpu.Launch(Gpu::Stream(5), kGemm);
  EXPECT_EQ(gpu.Stream1(5).launched, 2u);
  // The old request does not arm again.
  std::this_thread::sleep_for(std::chrono::milliseconds(250));
  EXPECT_EQ(gpu.cupti().kinds_enabled, 0u);
}

TEST(CuptiAgent, ActivityFromTheStartByVariable) {
  const ScopedEnv on("MYCROFT_CUPTI", "activity");
  Gpu gpu;
  gpu.Start();
  EXPECT_TRUE(gpu.Until([](const GpuSnapshot& s) { return s.state == MC_GPU_ARMED; }));
}

TEST(CuptiAgent, HungFlushIsSeen) {
  Gpu gpu;
  gpu.Start();
  gpu.cupti().flush_sleep_ns = 2'000 * kMs;
  gpu.Arm();
  EXPECT_TRUE(gpu.Until([](const GpuSnapshot& s) {
    return s.helper_call_ns != 0 && s.helper_call == MC_GPU_CALL_FLUSH;
  }));
  gpu.cupti().flush_sleep_ns = 0;
}

// ---- clocks and versions ------------------------------------------------------------------------

TEST(CuptiAgent, Cuda12WithoutTimestampCallback) {
  Gpu gpu(MYCROFT_STAND_IN_12_PATH);
  gpu.cupti().own_clock_offset = 1'700'000'000'000'000'000u;  // as CLOCK_REALTIME
  gpu.Start();
  gpu.Arm();
  const uint32_t id = gpu.Launch(Gpu::Stream(5), kGemm);
  const uint64_t t = NowNs() + kMs;
  const uint64_t offset = gpu.cupti().own_clock_offset;
  gpu.KernelRecord(5, id, t + offset, t + offset + 1000, kGemm);
  gpu.cupti().complete(false);
  ASSERT_TRUE(gpu.Records(1));
  const GpuSnapshot all = gpu.Read();
  EXPECT_EQ(all.clock, MC_GPU_CLOCK_PAIRED);
  EXPECT_EQ(all.cupti_version, 24u);
  ASSERT_EQ(all.events.size(), 1u);
  const uint64_t error =
      all.events[0].start_ns > t ? all.events[0].start_ns - t : t - all.events[0].start_ns;
  // The pair was renewed since; both are within their own widths.
  EXPECT_LE(error, 50 * kMs);
  EXPECT_GT(all.clock_error_ns, 0u);
  EXPECT_EQ(gpu.Stream1(5).kernel_ns, 1000u);
}

TEST(CuptiAgent, TimestampCallbackThatFailsFallsBackToPairs) {
  Gpu gpu;
  gpu.cupti().fail_timestamp_callback = true;
  gpu.Start();
  gpu.Arm();
  EXPECT_EQ(gpu.Read().clock, MC_GPU_CLOCK_PAIRED);
}

TEST(CuptiAgent, UnknownVersionGivesCallbacksOnly) {
  Gpu gpu;
  gpu.cupti().version = 990000;
  gpu.Start();
  ASSERT_TRUE(gpu.board().RequestLevel(MC_GPU_LEVEL_ACTIVITY, NowNs() + 60'000 * kMs));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const GpuSnapshot all = gpu.Read();
  EXPECT_EQ(all.state, MC_GPU_WATCHING);
  EXPECT_FALSE(all.layout_known);
  EXPECT_EQ(gpu.cupti().kinds_enabled, 0u);
  EXPECT_THAT(DescribeGpuState(all), HasSubstr("990000"));
  gpu.Launch(Gpu::Stream(5), kGemm);
  EXPECT_EQ(gpu.Stream1(5).launched, 1u);
}

// ---- others who use CUPTI ---------------------------------------------------------------------

TEST(CuptiAgent, AnotherSubscriberIsNamedAndLeftAlone) {
  Gpu gpu;
  gpu.cupti().other_tool = "Nsight Systems";
  gpu.Start();
  const GpuSnapshot all = gpu.Read();
  EXPECT_EQ(all.state, MC_GPU_TAKEN);
  EXPECT_EQ(all.other_subscriber, "Nsight Systems");
  EXPECT_EQ(all.error, static_cast<uint32_t>(CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED));
  EXPECT_THAT(DescribeGpuState(all), HasSubstr("Nsight Systems"));
  EXPECT_STREQ(gpu.cupti().name_given, "Mycroft");
  EXPECT_EQ(gpu.cupti().subscribed, 0u);
}

TEST(CuptiAgent, AnotherSubscriberOfCuda12HasNoName) {
  Gpu gpu(MYCROFT_STAND_IN_12_PATH);
  gpu.cupti().other_tool = "unnamed";
  gpu.Start();
  EXPECT_EQ(gpu.Read().state, MC_GPU_TAKEN);
  EXPECT_EQ(gpu.Read().other_subscriber, "");
}

TEST(CuptiAgent, ReleasedOnRequestFromTheExitOfACall) {
  Gpu gpu;
  gpu.Start();
  gpu.Launch(Gpu::Stream(5), kGemm);
  ASSERT_TRUE(gpu.board().RequestLevel(MC_GPU_LEVEL_OFF, 0));
  // Calls go on; one of them is the place.
  ASSERT_TRUE(gpu.Until([&](const GpuSnapshot& s) {
    gpu.Query(Gpu::Stream(8), kNotReady);
    return s.state == MC_GPU_RELEASED;
  }));
  EXPECT_EQ(gpu.cupti().unsubscribed, 1u);
  EXPECT_EQ(gpu.cupti().finalized, 1u);
  EXPECT_FALSE(gpu.cupti().has_subscriber);
  const uint64_t launched = gpu.Read().launches;
  gpu.Launch(Gpu::Stream(5), kGemm);
  EXPECT_EQ(gpu.Read().launches, launched) << "nothing is seen";
  // And back.
  ASSERT_TRUE(gpu.board().RequestLevel(MC_GPU_LEVEL_UNSET, 0));
  ASSERT_TRUE(gpu.Until([](const GpuSnapshot& s) { return s.state == MC_GPU_WATCHING; }));
  gpu.Launch(Gpu::Stream(5), kGemm);
  EXPECT_EQ(gpu.Read().launches, launched + 1);
}

TEST(CuptiAgent, ReleasedWithoutACallIsNotFinalized) {
  Gpu gpu;
  gpu.Start();
  ASSERT_TRUE(gpu.board().RequestLevel(MC_GPU_LEVEL_OFF, 0));
  ASSERT_TRUE(gpu.Until([](const GpuSnapshot& s) { return s.state == MC_GPU_RELEASED; }));
  EXPECT_EQ(gpu.cupti().unsubscribed, 1u);
  EXPECT_EQ(gpu.cupti().finalized, 0u);
}

TEST(CuptiAgent, ChainedLibraryIsLoadedFirst) {
  // Any library with the entry point: a second copy of ours.
  const std::string second = CopyLibrary(MYCROFT_CUPTI_PATH);
  Gpu gpu;
  const std::set<std::string> before = GpuBoardFds();
  {
    const ScopedEnv chain("MYCROFT_CHAIN_INJECTION", second);
    ASSERT_TRUE(gpu.Init());
  }
  unlink(second.c_str());
  EXPECT_EQ(GpuBoardFds().size(), before.size() + 2) << "both are there";
  uint32_t watching = 0, taken = 0, chained = 0;
  for (const std::string& path : GpuBoardFds()) {
    if (before.count(path) != 0) continue;
    auto board = GpuBoardMap::Open(path);
    ASSERT_TRUE(board.ok());
    const GpuSnapshot s = ReadGpuBoard(*board, 1, NowNs());
    watching += s.state == MC_GPU_WATCHING;
    taken += s.state == MC_GPU_TAKEN;
    chained += s.chained == 1;
  }
  EXPECT_EQ(watching, 1u);
  EXPECT_EQ(taken, 1u) << "and ours stands back";
  EXPECT_EQ(chained, 1u);
}

TEST(CuptiAgent, ChainedLibraryThatIsNotThere) {
  const ScopedEnv chain("MYCROFT_CHAIN_INJECTION", "/nonexistent/tool.so");
  Gpu gpu;
  gpu.Start();
  EXPECT_EQ(gpu.Read().chained, 2u);
  EXPECT_EQ(gpu.Read().state, MC_GPU_WATCHING);
}

// ---- what is missing, and off
// ---------------------------------------------------------------------

TEST(CuptiAgent, NoLibcuptiIsSaid) {
  Gpu gpu("");
  gpu.Start();
  EXPECT_EQ(gpu.Read().state, MC_GPU_NO_LIBRARY);
  EXPECT_THAT(DescribeGpuState(gpu.Read()), HasSubstr("CUDA_HOME"));
}

TEST(CuptiAgent, OffByVariable) {
  const ScopedEnv off("MYCROFT_CUPTI", "off");
  Gpu gpu;
  gpu.Start();
  EXPECT_EQ(gpu.Read().state, MC_GPU_OFF_BY_USER);
  EXPECT_EQ(gpu.cupti().subscribed, 0u);
}

TEST(CuptiAgent, CallbacksThatCannotBeEnabled) {
  Gpu gpu;
  gpu.cupti().fail_enable_callback = CUPTI_ERROR_NOT_INITIALIZED;
  gpu.Start();
  EXPECT_EQ(gpu.Read().state, MC_GPU_FAILED);
  EXPECT_EQ(gpu.Read().error_call, MC_GPU_CALL_ENABLE_CALLBACK);
  EXPECT_FALSE(gpu.cupti().has_subscriber);
}

TEST(CuptiAgent, ActivityThatCannotBeEnabled) {
  Gpu gpu;
  gpu.cupti().fail_kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  gpu.Start();
  ASSERT_TRUE(gpu.board().RequestLevel(MC_GPU_LEVEL_ACTIVITY, NowNs() + 60'000 * kMs));
  ASSERT_TRUE(gpu.Until([](const GpuSnapshot& s) { return s.error != 0; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(250));
  EXPECT_EQ(gpu.Read().state, MC_GPU_WATCHING);
  EXPECT_EQ(gpu.Read().error_call, MC_GPU_CALL_ACTIVITY_ENABLE);
  EXPECT_EQ(gpu.Read().armed_total_ns, 0u);
  EXPECT_EQ(gpu.cupti().kinds_enabled, 0u);
}

TEST(CuptiAgent, FatalErrorOfCuptiIsSaid) {
  Gpu gpu;
  gpu.Start();
  CUpti_StateData data = {};
  data.notification.result = CUPTI_ERROR_UNKNOWN;
  gpu.cupti().callback(CUPTI_CB_DOMAIN_STATE, CUPTI_CBID_STATE_FATAL_ERROR, &data);
  EXPECT_EQ(gpu.Read().state, MC_GPU_FATAL);
}

// ---- life of the process ------------------------------------------------------------------------

TEST(CuptiAgent, InjectedTwiceStartsOnce) {
  Gpu gpu;
  gpu.Start();
  const size_t boards = GpuBoardFds().size();
  EXPECT_EQ(gpu.InitAgain(), 1);
  EXPECT_EQ(GpuBoardFds().size(), boards);
  EXPECT_EQ(gpu.cupti().subscribed, 1u);
}

TEST(CuptiAgent, ChildGoesSilent) {
  if (MYCROFT_SANITIZED[0] != '\0') {
    GTEST_SKIP() << "a sanitizer's allocator may be locked for ever in the child of a process "
                    "with threads";
  }
  Gpu gpu;
  gpu.Start();
  gpu.Launch(Gpu::Stream(5), kGemm);
  const size_t boards = GpuBoardFds().size();
  const pid_t child = fork();
  if (child == 0) {
    for (int i = 0; i < 100; ++i) gpu.Launch(Gpu::Stream(5), kGemm);
    gpu.Sync(Gpu::Stream(5));
    gpu.Resource(CUPTI_CBID_RESOURCE_CONTEXT_CREATED, 9);
    size_t size = 0;
    const bool refused = gpu.cupti().request(&size) == nullptr;
    _exit(refused && GpuBoardFds().size() < boards ? 42 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 42);
  const GpuSnapshot all = gpu.Read();
  EXPECT_EQ(all.launches, 1u) << "the child must not write the parent's board";
  EXPECT_EQ(all.contexts.size(), 1u);
}

// Calls whose exit never comes (an exception, a thread that is cancelled) cost what they
// are, and no more.
TEST(CuptiAgent, ExitsThatNeverCome) {
  Gpu gpu;
  gpu.Start();
  std::vector<OpenCall> lost(10);
  for (OpenCall& call : lost) gpu.BeginSync(&call, Gpu::Stream(6));
  gpu.Launch(Gpu::Stream(5), kGemm);
  gpu.Sync(Gpu::Stream(5));
  EXPECT_EQ(gpu.Stream1(5).finished, 1u);
  // An exit without its entry says nothing.
  gpu.Launch(Gpu::Stream(5), kGemm);
  OpenCall call;
  gpu.BeginSync(&call, Gpu::Stream(5));
  gpu.End(&call);
  gpu.Launch(Gpu::Stream(5), kGemm);
  call.slot = ~uint64_t{0};
  gpu.End(&call);
  EXPECT_EQ(gpu.Stream1(5).finished, 2u);
  EXPECT_EQ(gpu.Stream1(5).launched, 3u);
}

TEST(CuptiAgent, StaysLoaded) {
  Gpu gpu;
  gpu.Start();
  gpu.Unload();
  gpu.Launch(Gpu::Stream(5), kGemm);
  EXPECT_EQ(gpu.Stream1(5).launched, 1u);
}

// In a process of its own: the threads of the tests before hold locks that a plain fork
// would copy, locked for ever.
TEST(CuptiAgent, ExitWhileArmedIsQuick) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const uint64_t begin = NowNs();
  EXPECT_EXIT(
      {
        Gpu gpu;
        gpu.Start();
        gpu.Arm();
        exit(42);  // NOLINT: with handlers
      },
      ::testing::ExitedWithCode(42), "");
  EXPECT_LT(NowNs() - begin, 20'000 * kMs);
}

}  // namespace
}  // namespace mycroft::agent
