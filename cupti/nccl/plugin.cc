// SPDX-License-Identifier: Apache-2.0
//
// What the library exports: the three tables that NCCL looks up, and the clock for
// tests and replays.
#include "cupti/nccl/chain.h"
#include "cupti/board/clock.h"
#include "cupti/nccl/core.h"
#include "cupti/nccl/decode.h"
#include "cupti/nccl/mask.h"
#include "cupti/nccl/profiler_abi.h"

extern "C" {
extern mycroft::nccl::ProfilerV4 ncclProfiler_v4;
extern mycroft::nccl::ProfilerV5 ncclProfiler_v5;
extern mycroft::nccl::ProfilerV6 ncclProfiler_v6;
}

namespace mycroft::nccl {
namespace {

Result Init(int api_version, const void* table, void** context, int* mask, const CommFacts& facts,
            DebugLogger log) {
  LoadChain(api_version, table, log);
  void* given = ToPointer(InitComm(api_version, facts, log));
  if (ChainActive()) given = InitChained(ToValue(given), facts, log);
  if (context != nullptr) *context = given;
  // Last: NCCL acts on the mask at once.
  if (mask != nullptr) g_mask.target.store(mask, std::memory_order_release);
  PublishMask();
  return kSuccess;
}

Result InitV4(void** context, int* mask, const char* name, uint64_t comm_id, int nnodes, int nranks,
              int rank, DebugLogger log) {
  return Init(4, &ncclProfiler_v4, context, mask, {comm_id, name, nnodes, nranks, rank}, log);
}
Result InitV5(void** context, uint64_t comm_id, int* mask, const char* name, int nnodes, int nranks,
              int rank, DebugLogger log) {
  return Init(5, &ncclProfiler_v5, context, mask, {comm_id, name, nnodes, nranks, rank}, log);
}
Result InitV6(void** context, uint64_t comm_id, int* mask, const char* name, int nnodes, int nranks,
              int rank, DebugLogger log) {
  return Init(6, &ncclProfiler_v6, context, mask, {comm_id, name, nnodes, nranks, rank}, log);
}

template <class Descr>
Result Start(void* context, void** handle, Descr* descr) {
  void* given = nullptr;
  if (descr != nullptr) {
    if (__builtin_expect(ChainActive(), 0)) {
      given = StartChained(context, *descr);
    } else {
      given = ToPointer(StartDecoded(ToValue(context), ToValue(descr->parent),
                                     ToValue(ParentGroup(*descr)), *descr));
    }
  }
  // Always written: NCCL may hold a stale value there, and would stop it.
  if (handle != nullptr) *handle = given;
  return kSuccess;
}

Result Stop(void* handle) {
  if (__builtin_expect(ChainActive(), 0)) {
    StopChained(handle);
  } else {
    StopEvent(ToValue(handle));
  }
  return kSuccess;
}

Result Record(void* handle, EventState state, StateArgs* args) {
  if (__builtin_expect(ChainActive(), 0)) {
    RecordChained(handle, state, args);
  } else {
    RecordState(ToValue(handle), state, args);
  }
  return kSuccess;
}

Result Finalize(void* context) {
  if (ChainActive()) {
    FinalizeChained(context);
  } else {
    FinalizeComm(ToValue(context));
  }
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
  mycroft::board::g_clock.replaced.store(clock, std::memory_order_release);
}

}  // extern "C"
