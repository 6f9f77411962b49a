// SPDX-License-Identifier: Apache-2.0
#include "userspace/decode/gpu_work.h"

#include <gtest/gtest.h>

namespace mycroft {
namespace {

constexpr uint64_t kMs = 1'000'000;

GpuNameSample Name(uint32_t index, const char* name, uint64_t count, uint64_t sum_ns) {
  GpuNameSample out;
  out.index = index;
  out.name = name;
  out.device = 0;
  out.count = count;
  out.sum_ns = sum_ns;
  return out;
}

GpuLaunch Launch(uint64_t ticket, mc_gpu_work work, const char* kernel) {
  GpuLaunch out;
  out.ticket = ticket;
  out.launch_ns = ticket * kMs;
  out.work = work;
  out.kernel = kernel;
  return out;
}

GpuSnapshot Watching() {
  GpuSnapshot s;
  s.state = MC_GPU_WATCHING;
  s.layout_known = true;
  s.names = {Name(0, "", 0, 0)};
  return s;
}

TEST(GpuWork, NamesAreShortened) {
  EXPECT_EQ(ShortKernelName("_Z4gemmPfS_S_"), "gemm");
  EXPECT_EQ(ShortKernelName("_ZN2at6native10vectorizedEv"), "at::native::vectorized");
  EXPECT_EQ(ShortKernelName("_ZNK2at1fEv"), "at::f");
  EXPECT_EQ(ShortKernelName("_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24nccl"),
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL");
  EXPECT_EQ(ShortKernelName("plain_c"), "plain_c");
  EXPECT_EQ(ShortKernelName("_Z"), "_Z");
  EXPECT_EQ(ShortKernelName("_ZN5"), "_ZN5");
  EXPECT_EQ(ShortKernelName("_Z9cut_of"), "cut_of");
  EXPECT_EQ(ShortKernelName(std::string(500, 'k')).size(), kMaxGpuWorkName);
}

// Of kernels whose mix changes: each against its own usual time.
TEST(GpuWork, SlowdownIsAgainstTheUsualTimeOfEachKernel) {
  GpuWorkSampler sampler;
  GpuSnapshot s = Watching();
  s.names.push_back(Name(1, "gemm", 10, 10 * 5 * kMs));
  s.names.push_back(Name(2, "small", 10, 10 * 1 * kMs));
  s.names.push_back(Name(3, "rare", 2, 2 * kMs));
  GpuWorkSample w = sampler.Sample(s);
  EXPECT_TRUE(w.devices.empty()) << "nothing to compare yet";
  s.names[1] = Name(1, "gemm", 11, 11 * 5 * kMs);
  s.names[2] = Name(2, "small", 30, 30 * 1 * kMs);
  s.names[3] = Name(3, "rare", 4, 400 * kMs);
  w = sampler.Sample(s);
  ASSERT_EQ(w.devices.size(), 1u);
  EXPECT_EQ(w.devices[0].kernels, 21u);
  EXPECT_EQ(w.devices[0].kernel_ns, 25 * kMs);
  EXPECT_EQ(w.devices[0].expected_ns, 25 * kMs);
  s.names[1] = Name(1, "gemm", 12, 11 * 5 * kMs + 15 * kMs);
  w = sampler.Sample(s);
  EXPECT_EQ(w.devices[0].kernel_ns, 40 * kMs);
  EXPECT_EQ(w.devices[0].expected_ns, 30 * kMs);
  EXPECT_EQ(sampler.Sample(s), w) << "nothing new";
}

TEST(GpuWork, StreamWithAKernelOfNcclBehindAnotherOne) {
  GpuSnapshot s = Watching();
  GpuStreamSample stream;
  stream.index = 3;
  stream.alive = true;
  stream.stream_id = 7;
  stream.launched = 4;
  stream.finished = 2;
  stream.pending = GpuPending::kUnfinished;
  stream.oldest = Launch(3, MC_GPU_WORK_KERNEL, "_Z4gemmPfS_S_");
  stream.behind = {Launch(4, MC_GPU_WORK_NCCL, "ncclDevKernel_AllReduce")};
  s.streams = {stream};
  GpuThreadSample thread;
  thread.call = MC_GPU_HOST_STREAM_SYNC;
  thread.stream = 3;
  thread.ticket = 4;
  s.threads = {thread};
  GpuWorkSample w = GpuWorkSampler().Sample(s);
  ASSERT_EQ(w.streams.size(), 1u);
  EXPECT_EQ(w.streams[0].oldest, "gemm");
  EXPECT_EQ(w.streams[0].oldest_ns, 3 * kMs);
  EXPECT_EQ(w.streams[0].nccl, "ncclDevKernel_AllReduce");
  EXPECT_EQ(w.streams[0].nccl_ns, 4 * kMs);
  EXPECT_FALSE(w.streams[0].oldest_proved) << "it may be the one behind that does not end";
  EXPECT_FALSE(w.streams[0].no_nccl);
  EXPECT_EQ(w.streams[0].front_work, MC_GPU_WORK_NONE);
  // One more between the two.
  s.streams[0].finished = 1;
  s.streams[0].oldest = Launch(2, MC_GPU_WORK_COPY, "");
  s.streams[0].behind.insert(s.streams[0].behind.begin(),
                             Launch(3, MC_GPU_WORK_KERNEL, "_Z4gemmPfS_S_"));
  w = GpuWorkSampler().Sample(s);
  EXPECT_EQ(w.streams[0].oldest_work, MC_GPU_WORK_COPY);
  EXPECT_EQ(w.streams[0].front_work, MC_GPU_WORK_KERNEL);
  EXPECT_EQ(w.streams[0].front, "gemm");
  s.streams = {stream};
  s.threads[0].ticket = 3;
  EXPECT_TRUE(GpuWorkSampler().Sample(s).streams[0].oldest_proved);
  // Nothing of NCCL's: whichever it is, it is not NCCL's.
  s.streams[0].behind[0].work = MC_GPU_WORK_KERNEL;
  w = GpuWorkSampler().Sample(s);
  EXPECT_TRUE(w.streams[0].no_nccl);
  EXPECT_EQ(w.streams[0].nccl_ns, 0u);
  // One that is not seen may be.
  s.streams[0].launched = 5;
  EXPECT_FALSE(GpuWorkSampler().Sample(s).streams[0].no_nccl);
}

TEST(GpuWork, KernelOfNcclThatWaitsForAnotherStream) {
  GpuSnapshot s = Watching();
  GpuStreamSample compute, nccl;
  compute.index = 0;
  nccl.index = 1;
  compute.alive = nccl.alive = true;
  compute.launched = nccl.launched = 1;
  compute.pending = nccl.pending = GpuPending::kUnknown;
  compute.oldest = Launch(1, MC_GPU_WORK_KERNEL, "gemm");
  nccl.oldest = Launch(1, MC_GPU_WORK_NCCL, "ncclDevKernel");
  nccl.waits_for_stream = 0;
  nccl.wait_ticket = 1;
  nccl.wait_at = 0;
  s.streams = {compute, nccl};
  GpuWorkSample w = GpuWorkSampler().Sample(s);
  ASSERT_EQ(w.streams.size(), 2u);
  EXPECT_EQ(w.streams[1].nccl_waits_for, 0u);
  s.streams[1].wait_at = 1;  // launched before the wait was put in
  EXPECT_FALSE(GpuWorkSampler().Sample(s).streams[1].nccl_waits_for.has_value());
}

TEST(GpuWork, ManyStreamsAreBoundedTheProvedOnesKept) {
  GpuSnapshot s = Watching();
  for (uint32_t i = 0; i < 40; ++i) {
    GpuStreamSample stream;
    stream.index = i;
    stream.alive = true;
    stream.launched = 1;
    stream.pending = i == 39 ? GpuPending::kUnfinished : GpuPending::kUnknown;
    s.streams.push_back(stream);
  }
  const GpuWorkSample w = GpuWorkSampler().Sample(s);
  EXPECT_EQ(w.streams.size(), kMaxGpuWorkStreams);
  EXPECT_EQ(w.streams_left_out, 40 - kMaxGpuWorkStreams);
  EXPECT_EQ(w.streams.back().stream, 39u);
}

// A line of the board that is given to another stream begins anew.
TEST(GpuWork, CopiesOfStreamsThatCameAndWent) {
  GpuWorkSampler sampler;
  GpuSnapshot s = Watching();
  GpuStreamSample stream;
  stream.alive = true;
  stream.device = 1;
  stream.done_copies[MC_GPU_COPY_HTOD] = 2;
  stream.done_copy_bytes[MC_GPU_COPY_HTOD] = 2000;
  stream.done_copy_ns[MC_GPU_COPY_HTOD] = 20;
  s.streams = {stream};
  sampler.Sample(s);
  s.streams[0].generation = 1;
  s.streams[0].done_copy_bytes[MC_GPU_COPY_HTOD] = 500;
  const GpuWorkSample w = sampler.Sample(s);
  ASSERT_EQ(w.devices.size(), 1u);
  EXPECT_EQ(w.devices[0].device, 1u);
  EXPECT_EQ(w.devices[0].copy_bytes[MC_GPU_COPY_HTOD], 2500u);
}

}  // namespace
}  // namespace mycroft
