// SPDX-License-Identifier: Apache-2.0
//
// For tests and benchmarks: the built libmycroft-cupti.so as the CUDA driver loads it,
// beside a stand-in libcupti, and the driver's calls as CUPTI would report them.
//
// Every FakeGpu is a copy of both libraries under other names, so that each test has
// an instance with a board of its own. Instances stay loaded.
#ifndef MYCROFT_CUPTI_AGENT_TESTING_FAKE_GPU_H_
#define MYCROFT_CUPTI_AGENT_TESTING_FAKE_GPU_H_

#include <cupti.h>
#include <dirent.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <set>
#include <string>

#include "bpf/abi/gpu_board.h"
#include "cupti/agent/testing/stand_in.h"

namespace mycroft::agent {

inline std::string CopyLibrary(const std::string& path) {
  char name[] = "/tmp/mycroft-cupti-XXXXXX";
  close(mkstemp(name));
  std::ifstream in(path, std::ios::binary);
  std::ofstream out(name, std::ios::binary | std::ios::trunc);
  out << in.rdbuf();
  return name;
}

inline std::set<std::string> GpuBoardFds() {
  std::set<std::string> found;
  DIR* dir = opendir("/proc/self/fd");
  while (dirent* e = readdir(dir)) {
    char target[256];
    const std::string path = std::string("/proc/self/fd/") + e->d_name;
    const ssize_t n = readlink(path.c_str(), target, sizeof(target));
    if (n > 0 && std::string(target, static_cast<size_t>(n)) == "/memfd:" MC_GPU_BOARD_MEMFD_NAME
                                                                " (deleted)") {
      found.insert(path);
    }
  }
  closedir(dir);
  return found;
}

// One driver call between its entry and its exit.
struct OpenCall {
  CUpti_CallbackData data = {};
  CUpti_CallbackId id = 0;
  uint64_t slot = 0;  // what CUPTI keeps for the client from entry to exit
  int result = 0;
  alignas(8) unsigned char params[96] = {};
};

class FakeGpu {
 public:
  // `agent`, `stand_in`: paths of the built libraries; empty stand_in: none is found.
  FakeGpu(const std::string& agent, const std::string& stand_in) {
    stand_in_path_ = stand_in.empty() ? "/nonexistent/libcupti.so" : CopyLibrary(stand_in);
    agent_path_ = CopyLibrary(agent);
    if (!stand_in.empty()) {
      void* handle = dlopen(stand_in_path_.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle != nullptr) {
        cupti_ = reinterpret_cast<StandInFn>(dlsym(handle, "mycroftStandIn"))();
      }
    }
  }
  ~FakeGpu() {
    unlink(agent_path_.c_str());
    if (cupti_ != nullptr) unlink(stand_in_path_.c_str());
  }
  FakeGpu(const FakeGpu&) = delete;
  FakeGpu& operator=(const FakeGpu&) = delete;

  // What the driver does in cuInit. False: the library could not be loaded.
  bool Init() {
    setenv("MYCROFT_CUPTI_LIBRARY", stand_in_path_.c_str(), 1);
    const std::set<std::string> before = GpuBoardFds();
    handle_ = dlopen(agent_path_.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) return false;
    init_ = reinterpret_cast<int (*)()>(dlsym(handle_, "InitializeInjection"));
    if (init_ == nullptr || init_() != 1) return false;
    for (const std::string& path : GpuBoardFds()) {
      if (before.count(path) == 0) board_path_ = path;
    }
    return true;
  }
  int InitAgain() { return init_(); }
  void Unload() { dlclose(handle_); }

  StandIn& cupti() { return *cupti_; }
  const std::string& board_path() const { return board_path_; }

  static CUcontext Context(uint32_t uid) {
    return reinterpret_cast<CUcontext>(static_cast<uintptr_t>(uid) << 12);
  }
  // A stream with CUPTI's number `id`.
  static uint64_t Stream(uint32_t id) { return uint64_t{id} << 4; }

  void Resource(CUpti_CallbackIdResource id, uint32_t context, uint64_t stream = 0) {
    CUpti_ResourceData data = {};
    data.context = Context(context);
    data.resourceHandle.stream = reinterpret_cast<CUstream>(stream);
    cupti_->callback(CUPTI_CB_DOMAIN_RESOURCE, id, &data);
  }

  // ---- any call ----
  void Begin(OpenCall* call, CUpti_driver_api_trace_cbid_enum id, uint32_t context,
             const void* params, size_t bytes, const char* symbol = nullptr) {
    call->id = id;
    if (bytes > 0) memcpy(call->params, params, bytes);
    call->data.callbackSite = CUPTI_API_ENTER;
    call->data.functionParams = call->params;
    call->data.functionReturnValue = nullptr;
    call->data.symbolName = symbol;
    call->data.context = Context(context);
    call->data.contextUid = context;
    call->data.correlationData = &call->slot;
    call->data.correlationId = next_correlation_.fetch_add(1);
    cupti_->callback(CUPTI_CB_DOMAIN_DRIVER_API, id, &call->data);
  }
  void End(OpenCall* call, int result = 0) {
    call->result = result;
    call->data.callbackSite = CUPTI_API_EXIT;
    call->data.functionReturnValue = &call->result;
    cupti_->callback(CUPTI_CB_DOMAIN_DRIVER_API, call->id, &call->data);
  }
  template <class Params>
  uint32_t Do(CUpti_driver_api_trace_cbid_enum id, uint32_t context, const Params& params,
              int result = 0, const char* symbol = nullptr) {
    static_assert(sizeof(Params) <= sizeof(OpenCall::params));
    OpenCall call;
    Begin(&call, id, context, &params, sizeof(params), symbol);
    End(&call, result);
    return call.data.correlationId;
  }

  // ---- the usual ones; each returns its correlation id ----
  uint32_t Launch(uint64_t stream, const char* kernel, uint32_t context = 1, int result = 0) {
    cuLaunchKernel_params p = {};
    p.hStream = reinterpret_cast<CUstream>(stream);
    return Do(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, context, p, result, kernel);
  }
  uint32_t CopyToDevice(uint64_t stream, size_t bytes, uint32_t context = 1) {
    cuMemcpyHtoDAsync_v2_params p = {};
    p.ByteCount = bytes;
    p.hStream = reinterpret_cast<CUstream>(stream);
    return Do(CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoDAsync_v2, context, p);
  }
  void BeginSync(OpenCall* call, uint64_t stream, uint32_t context = 1) {
    cuStreamSynchronize_params p = {reinterpret_cast<CUstream>(stream)};
    Begin(call, CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize, context, &p, sizeof(p));
  }
  void Sync(uint64_t stream, uint32_t context = 1, int result = 0) {
    OpenCall call;
    BeginSync(&call, stream, context);
    End(&call, result);
  }
  void Query(uint64_t stream, int result, uint32_t context = 1) {
    cuStreamQuery_params p = {reinterpret_cast<CUstream>(stream)};
    Do(CUPTI_DRIVER_TRACE_CBID_cuStreamQuery, context, p, result);
  }
  void RecordEvent(uint64_t event, uint64_t stream, uint32_t context = 1) {
    cuEventRecord_params p = {reinterpret_cast<CUevent>(event), reinterpret_cast<CUstream>(stream)};
    Do(CUPTI_DRIVER_TRACE_CBID_cuEventRecord, context, p);
  }
  void QueryEvent(uint64_t event, int result, uint32_t context = 1) {
    cuEventQuery_params p = {reinterpret_cast<CUevent>(event)};
    Do(CUPTI_DRIVER_TRACE_CBID_cuEventQuery, context, p, result);
  }

  // ---- records ----
  bool KernelRecord(uint32_t stream_id, uint32_t correlation, uint64_t start, uint64_t end,
                    const char* name, uint32_t context = 1, uint32_t graph = 0) {
    // A Kernel9 is the beginning of a Kernel10.
    CUpti_ActivityKernel10 r = {};
    r.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
    r.start = start;
    r.end = end;
    r.deviceId = context - 1;
    r.contextId = context;
    r.streamId = stream_id;
    r.correlationId = correlation;
    r.graphId = graph;
    r.name = name;
    const size_t bytes =
        cupti_->version >= 130000 ? sizeof(CUpti_ActivityKernel10) : sizeof(CUpti_ActivityKernel9);
    return cupti_->record(Context(context), stream_id, &r, bytes);
  }
  bool CopyRecord(uint32_t stream_id, uint32_t correlation, uint64_t start, uint64_t end,
                  uint64_t bytes, uint8_t kind = CUPTI_ACTIVITY_MEMCPY_KIND_HTOD,
                  uint32_t context = 1) {
    CUpti_ActivityMemcpy6 r = {};
    r.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
    r.copyKind = kind;
    r.bytes = bytes;
    r.start = start;
    r.end = end;
    r.deviceId = context - 1;
    r.contextId = context;
    r.streamId = stream_id;
    r.correlationId = correlation;
    const size_t size =
        cupti_->version >= 130000 ? sizeof(CUpti_ActivityMemcpy6) : sizeof(CUpti_ActivityMemcpy5);
    return cupti_->record(Context(context), stream_id, &r, size);
  }

 private:
  StandIn* cupti_ = nullptr;
  void* handle_ = nullptr;
  int (*init_)() = nullptr;
  std::string agent_path_, stand_in_path_, board_path_;
  std::atomic<uint32_t> next_correlation_{1};
};

// A variable of the environment, while this lives.
class ScopedEnv {
 public:
  ScopedEnv(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  ~ScopedEnv() { unsetenv(name_); }
  ScopedEnv(const ScopedEnv&) = delete;
  ScopedEnv& operator=(const ScopedEnv&) = delete;

 private:
  const char* name_;
};

}  // namespace mycroft::agent

#endif  // MYCROFT_CUPTI_AGENT_TESTING_FAKE_GPU_H_
