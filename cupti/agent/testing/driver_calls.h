// SPDX-License-Identifier: Apache-2.0
//
// The CUDA driver's calls and a GPU's records as CUPTI reports them to its client, through
// a stand-in libcupti. For tests, benchmarks and the lab.
//
// Thread-safe where the stand-in is: calls from any thread.
#ifndef MYCROFT_CUPTI_AGENT_TESTING_DRIVER_CALLS_H_
#define MYCROFT_CUPTI_AGENT_TESTING_DRIVER_CALLS_H_

#include <cupti.h>
#include <string.h>

#include <atomic>

#include "cupti/agent/testing/stand_in.h"

namespace mycroft::agent {

// One driver call between its entry and its exit.
struct OpenCall {
  CUpti_CallbackData data = {};
  CUpti_CallbackId id = 0;
  uint64_t slot = 0;  // what CUPTI keeps for the client from entry to exit
  int result = 0;
  alignas(8) unsigned char params[96] = {};
};

class DriverCalls {
 public:
  explicit DriverCalls(StandIn* cupti = nullptr) : cupti_(cupti) {}

  StandIn& cupti() { return *cupti_; }

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

 protected:
  StandIn* cupti_;

 private:
  std::atomic<uint32_t> next_correlation_{1};
};

}  // namespace mycroft::agent

#endif  // MYCROFT_CUPTI_AGENT_TESTING_DRIVER_CALLS_H_
