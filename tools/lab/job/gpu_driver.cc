// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/job/gpu_driver.h"

#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <cstdlib>

#include "cupti/agent/testing/driver_calls.h"
#include "tools/lab/job/clock.h"

namespace mycroft::lab {
namespace {

constexpr uint32_t kStreamId = 7;  // CUPTI's number
const uint64_t kStream = agent::DriverCalls::Stream(kStreamId);

int g_rank = 0;  // of this process

class StandInDriver final : public GpuDriver {
 public:
  explicit StandInDriver(agent::StandIn* cupti) : calls_(cupti) {
    calls_.Resource(CUPTI_CBID_RESOURCE_CONTEXT_CREATED, 1);
    calls_.Resource(CUPTI_CBID_RESOURCE_STREAM_CREATED, 1, kStream);
  }

  uint32_t Launched(const char* kernel) override { return calls_.Launch(kStream, kernel); }
  uint32_t CopyEnqueued(size_t bytes) override { return calls_.CopyToDevice(kStream, bytes); }
  void WaitBegins() override { calls_.BeginSync(&wait_, kStream); }
  void WaitEnds() override {
    calls_.End(&wait_);
    wait_ = {};
    calls_.cupti().complete(false);
  }
  void Ran(uint32_t correlation, const char* kernel, uint64_t start_ns, uint64_t end_ns) override {
    calls_.KernelRecord(kStreamId, correlation, OnClock(start_ns), OnClock(end_ns), kernel);
  }
  void Copied(uint32_t correlation, size_t bytes, uint64_t start_ns, uint64_t end_ns) override {
    calls_.CopyRecord(kStreamId, correlation, OnClock(start_ns), OnClock(end_ns), bytes);
  }

 private:
  // On the clock that records are on.
  uint64_t OnClock(uint64_t ns) {
    const uint64_t now = NowNs();
    return calls_.cupti().now() - (now - ns);
  }

  agent::DriverCalls calls_;
  agent::OpenCall wait_;
};

}  // namespace

std::unique_ptr<GpuDriver> GpuDriver::Load(int rank) {
  const char* injection = getenv("CUDA_INJECTION64_PATH");
  const char* stand_in = getenv("MYCROFT_CUPTI_LIBRARY");
  if (injection == nullptr || stand_in == nullptr || injection[0] == 0 || stand_in[0] == 0) {
    return nullptr;
  }
  void* cupti = dlopen(stand_in, RTLD_NOW | RTLD_LOCAL);
  if (cupti == nullptr) {
    fprintf(stderr, "mycroft-lab: MYCROFT_CUPTI_LIBRARY: %s\n", dlerror());
    return nullptr;
  }
  const auto table = reinterpret_cast<agent::StandInFn>(dlsym(cupti, "mycroftStandIn"));
  if (table == nullptr) return nullptr;
  g_rank = rank;
  void* library = dlopen(injection, RTLD_NOW | RTLD_LOCAL);
  const auto init = library != nullptr
                        ? reinterpret_cast<int (*)()>(dlsym(library, "InitializeInjection"))
                        : nullptr;
  if (init == nullptr || init() != 1) {
    fprintf(stderr, "mycroft-lab: CUDA_INJECTION64_PATH: %s cannot be loaded\n", injection);
    return nullptr;
  }
  return std::make_unique<StandInDriver>(table());
}

}  // namespace mycroft::lab

// What the library asks the driver: one GPU per rank.
extern "C" {
CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
  if (ordinal != 0) return CUDA_ERROR_INVALID_DEVICE;
  *device = 0;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGetUuid(CUuuid* uuid, CUdevice) {
  memset(uuid->bytes, 0x40 + mycroft::lab::g_rank, sizeof(uuid->bytes));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGetPCIBusId(char* pci, int bytes, CUdevice) {
  snprintf(pci, static_cast<size_t>(bytes), "0000:%02x:00.0",
           static_cast<unsigned>(0x40 + mycroft::lab::g_rank) & 0xff);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGetName(char* name, int bytes, CUdevice) {
  snprintf(name, static_cast<size_t>(bytes), "lab GPU");
  return CUDA_SUCCESS;
}
}
