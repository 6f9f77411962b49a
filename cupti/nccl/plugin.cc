// SPDX-License-Identifier: Apache-2.0
//
// What the library exports: the three tables that NCCL looks up, and the clock for
// tests and replays.
#include "cupti/nccl/clock.h"
#include "cupti/nccl/core.h"
#include "cupti/nccl/decode.h"
#include "cupti/nccl/mask.h"
#include "cupti/nccl/profiler_abi.h"

namespace mycroft::nccl {
namespace {

Result Init(int api_version, void** context, int* mask, const CommFacts& facts, DebugLogger log) {
  const uint64_t ours = InitComm(api_version, facts, log);
  if (context != nullptr) *context = ToPointer(ours);
  // Last: NCCL acts on the mask at once.
  if (mask != nullptr) g_mask.target.store(mask, std::memory_order_release);
  PublishMask();
  return kSuccess;
}

Result InitV4(void** context, int* mask, const char* name, uint64_t comm_id, int nnodes, int nranks,
              int rank, DebugLogger log) {
  return Init(4, context, mask, {comm_id, name, nnodes, nranks, rank}, log);
}
Result InitV5(void** context, uint64_t comm_id, int* mask, const char* name, int nnodes, int nranks,
              int rank, DebugLogger log) {
  return Init(5, context, mask, {comm_id, name, nnodes, nranks, rank}, log);
}
Result InitV6(void** context, uint64_t comm_id, int* mask, const char* name, int nnodes, int nranks,
              int rank, DebugLogger log) {
  return Init(6, context, mask, {comm_id, name, nnodes, nranks, rank}, log);
}

template <class Descr>
Result Start(void* context, void** handle, Descr* descr) {
  uint64_t ours = 0;
  if (descr != nullptr) {
    ours = StartDecoded(ToValue(context), ToValue(descr->parent), ToValue(ParentGroup(*descr)),
                        *descr);
  }
  if (handle != nullptr) *handle = ToPointer(ours);
  return kSuccess;
}

Result Stop(void* handle) {
  StopEvent(ToValue(handle));
  return kSuccess;
}

Result Record(void* handle, EventState state, StateArgs* args) {
  RecordState(ToValue(handle), state, args);
  return kSuccess;
}

Result Finalize(void* context) {
  FinalizeComm(ToValue(context));
  return kSuccess;
}

}  // namespace
}  // namespace mycroft::nccl

#define MYCROFT_EXPORT __attribute__((visibility("default")))

extern "C" {

MYCROFT_EXPORT mycroft::nccl::ProfilerV4 ncclProfiler_v4 = {
    "Mycroft",           mycroft::nccl::InitV4, mycroft::nccl::Start<mycroft::nccl::EventDescrV4>,
    mycroft::nccl::Stop, mycroft::nccl::Record, mycroft::nccl::Finalize,
};
MYCROFT_EXPORT mycroft::nccl::ProfilerV5 ncclProfiler_v5 = {
    "Mycroft",           mycroft::nccl::InitV5, mycroft::nccl::Start<mycroft::nccl::EventDescrV5>,
    mycroft::nccl::Stop, mycroft::nccl::Record, mycroft::nccl::Finalize,
};
MYCROFT_EXPORT mycroft::nccl::ProfilerV6 ncclProfiler_v6 = {
    "Mycroft",           mycroft::nccl::InitV6, mycroft::nccl::Start<mycroft::nccl::EventDescrV6>,
    mycroft::nccl::Stop, mycroft::nccl::Record, mycroft::nccl::Finalize,
};

// Replaces the clock of all callbacks; NULL brings the real one back.
MYCROFT_EXPORT void mycroftSetClock(uint64_t (*clock)(void)) {
  mycroft::nccl::g_clock.replaced.store(clock, std::memory_order_release);
}

}  // extern "C"
