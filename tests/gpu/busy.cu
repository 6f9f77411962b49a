// SPDX-License-Identifier: Apache-2.0
//
// busy TRUTH-FILE [HANG-SECONDS]: a process without NCCL. Kernels and copies on streams of
// their own, then a kernel that hangs, while the others go on and then the host waits for it.
// At the end it stays until SIGTERM, so that its board can be read.
#include "common.cuh"

constexpr uint64_t kWorkNs = 1000000;
constexpr size_t kCopyBytes = 1 << 20;

// C names: what the board shows is then what stands here.
extern "C" __global__ void mycroft_test_work(uint64_t ns) { SpinNs(ns, nullptr); }
extern "C" __global__ void mycroft_test_hang(uint64_t ns, const volatile int* end_early) {
  SpinNs(ns, end_early);
}

int main(int argc, char** argv) {
  if (argc < 2) Die("usage: busy TRUTH-FILE [HANG-SECONDS]");
  const uint64_t hang_ns = static_cast<uint64_t>((argc > 2 ? atof(argv[2]) : 5.0) * 1e9);
  BoundMe(60);
  Truth truth(argv[1]);
  CUDA_OK(cudaSetDevice(0));
  cudaStream_t compute, to_device, to_host, hang;
  for (cudaStream_t* stream : {&compute, &to_device, &to_host, &hang}) {
    CUDA_OK(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
  }
  char *host_a, *host_b, *device_a, *device_b;
  int *end_early, *end_early_device;
  CUDA_OK(cudaMallocHost(&host_a, kCopyBytes));
  CUDA_OK(cudaMallocHost(&host_b, kCopyBytes));
  CUDA_OK(cudaMalloc(&device_a, kCopyBytes));
  CUDA_OK(cudaMalloc(&device_b, kCopyBytes));
  CUDA_OK(cudaHostAlloc(&end_early, sizeof(int), cudaHostAllocMapped));
  CUDA_OK(cudaHostGetDevicePointer(&end_early_device, end_early, 0));
  *end_early = 0;
  unsigned long long kernels = 0, h2d = 0, d2h = 0;
  const auto work_for = [&](uint64_t ns) {
    for (const uint64_t begin = NowNs(); NowNs() - begin < ns && !g_stop;) {
      mycroft_test_work<<<1, 32, 0, compute>>>(kWorkNs);
      CUDA_OK(cudaGetLastError());
      CUDA_OK(cudaMemcpyAsync(device_a, host_a, kCopyBytes, cudaMemcpyHostToDevice, to_device));
      CUDA_OK(cudaMemcpyAsync(host_b, device_b, kCopyBytes, cudaMemcpyDeviceToHost, to_host));
      ++kernels, ++h2d, ++d2h;
      for (cudaStream_t stream : {compute, to_device, to_host}) {
        CUDA_OK(cudaStreamSynchronize(stream));
      }
    }
  };
  int runtime = 0, driver = 0;
  CUDA_OK(cudaRuntimeGetVersion(&runtime));
  CUDA_OK(cudaDriverGetVersion(&driver));
  truth.Say("ready", NowNs(), ", \"pid\": %d, \"cuda_runtime\": %d, \"cuda_driver\": %d", getpid(),
            runtime, driver);
  work_for(1500000000);

  const uint64_t launched = NowNs();
  mycroft_test_hang<<<1, 1, 0, hang>>>(hang_ns, end_early_device);
  CUDA_OK(cudaGetLastError());
  ++kernels;
  truth.Say("hang", launched);
  work_for(1500000000);
  truth.Say("wait", NowNs());  // from here on a host thread waits for the kernel
  if (g_stop) *end_early = 1;
  CUDA_OK(cudaStreamSynchronize(hang));
  truth.Say("hang_end", NowNs());
  truth.Say("done", NowNs(), ", \"kernels\": %llu, \"h2d\": %llu, \"d2h\": %llu, \"work_ns\": %llu",
            kernels, h2d, d2h, static_cast<unsigned long long>(kWorkNs));
  while (!g_stop) SleepNs(20000000);
  return 0;
}
