// SPDX-License-Identifier: Apache-2.0
#include "cupti/agent/testing/stand_in.h"

#include <string.h>
#include <time.h>

#include <mutex>

namespace mycroft::agent {
namespace {

#ifdef MYCROFT_STAND_IN_CUDA12
constexpr uint32_t kVersion = 24;
using Kernel = CUpti_ActivityKernel9;
using Copy = CUpti_ActivityMemcpy5;
#else
constexpr uint32_t kVersion = 130001;
using Kernel = CUpti_ActivityKernel10;
using Copy = CUpti_ActivityMemcpy6;
#endif

constexpr uint32_t kIds = 1024;
constexpr uint32_t kMaxBuffers = 256;

struct Buffer {
  CUcontext context;
  uint32_t stream_id;
  uint8_t* bytes;
  size_t size, used;
};

std::atomic<CUpti_CallbackFunc> g_callback{nullptr};
std::atomic<bool> g_enabled[8][kIds];
std::atomic<bool> g_kinds[64];
std::atomic<CUpti_BuffersCallbackRequestFunc> g_request{nullptr};
std::atomic<CUpti_BuffersCallbackCompleteFunc> g_complete{nullptr};
std::atomic<CUpti_TimestampCallbackFunc> g_timestamp{nullptr};
std::mutex g_lock;  // the rest
Buffer g_buffers[kMaxBuffers];
uint32_t g_count = 0;
CUcontext g_dead[16];
uint32_t g_dead_count = 0;

StandIn& Self();

uint64_t Monotonic() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(ts.tv_nsec);
}

uint64_t RecordNow() {
  if (CUpti_TimestampCallbackFunc f = g_timestamp.load()) return f();
  return Monotonic() + Self().own_clock_offset;
}

size_t SizeOf(CUpti_ActivityKind kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      return sizeof(Kernel);
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return sizeof(Copy);
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
      return sizeof(CUpti_ActivityMemcpyPtoP4);
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return sizeof(CUpti_ActivityMemset4);
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION:
      return sizeof(CUpti_ActivitySynchronization);
    case CUPTI_ACTIVITY_KIND_OVERHEAD:
      return sizeof(CUpti_ActivityOverhead);
    case CUPTI_ACTIVITY_KIND_NAME:  // of a kind that nobody asked for
      return 64;
    default:
      return 0;
  }
}

void Callback(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
  if (id >= kIds || domain >= 8 || !g_enabled[domain][id].load(std::memory_order_relaxed)) return;
  if (CUpti_CallbackFunc f = g_callback.load(std::memory_order_acquire)) {
    f(nullptr, domain, id, data);
  }
}

uint8_t* Request(size_t* size) {
  uint8_t* buffer = nullptr;
  size_t max_records = 0;
  *size = 0;
  CUpti_BuffersCallbackRequestFunc f = g_request.load();
  if (f == nullptr) return nullptr;
  f(&buffer, size, &max_records);
  if (buffer == nullptr || *size == 0) {
    Self().buffers_refused.fetch_add(1);
    return nullptr;
  }
  return buffer;
}

void CompleteRaw(CUcontext context, uint32_t stream_id, uint8_t* buffer, size_t size,
                 size_t valid) {
  if (CUpti_BuffersCallbackCompleteFunc f = g_complete.load()) {
    f(context, stream_id, buffer, size, valid);
  }
}

bool Record(CUcontext context, uint32_t stream_id, const void* record, size_t bytes) {
  const auto kind = static_cast<const CUpti_Activity*>(record)->kind;
  if (!g_kinds[kind].load()) return false;
  {
    std::lock_guard<std::mutex> lock(g_lock);
    for (uint32_t i = g_count; i > 0; --i) {
      Buffer& b = g_buffers[i - 1];
      if (b.context != context || b.stream_id != stream_id) continue;
      if (b.size - b.used < bytes) break;
      memcpy(b.bytes + b.used, record, bytes);
      b.used += bytes;
      return true;
    }
  }
  size_t size = 0;
  uint8_t* fresh = Request(&size);
  if (fresh == nullptr || size < bytes) return false;
  memcpy(fresh, record, bytes);
  std::lock_guard<std::mutex> lock(g_lock);
  if (g_count == kMaxBuffers) return false;
  g_buffers[g_count++] = {context, stream_id, fresh, size, bytes};
  return true;
}

void Complete(bool reversed) {
  static Buffer out[kMaxBuffers];  // one thread completes
  uint32_t count = 0;
  {
    std::lock_guard<std::mutex> lock(g_lock);
    count = g_count;
    memcpy(out, g_buffers, sizeof(Buffer) * count);
    g_count = 0;
  }
  for (uint32_t i = 0; i < count; ++i) {
    const Buffer& b = out[reversed ? count - 1 - i : i];
    CompleteRaw(b.context, b.stream_id, b.bytes, b.size, b.used);
  }
}

void ContextDies(CUcontext context) {
  std::lock_guard<std::mutex> lock(g_lock);
  g_dead[g_dead_count++ % 16] = context;
}

StandIn& Self() {
  static StandIn s;
  static const bool made = [] {
    s.version = kVersion;
    s.callback = Callback;
    s.record = Record;
    s.complete = Complete;
    s.complete_raw = CompleteRaw;
    s.request = Request;
    s.context_dies = ContextDies;
    s.now = RecordNow;
    return true;
  }();
  (void)made;
  return s;
}

CUptiResult SubscribeAs(CUpti_SubscriberHandle* subscriber, CUpti_CallbackFunc callback) {
  StandIn& s = Self();
  if (s.other_tool != nullptr) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  if (s.has_subscriber.exchange(true)) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  s.subscribed.fetch_add(1);
  *subscriber = reinterpret_cast<CUpti_SubscriberHandle>(&s);
  g_callback.store(callback, std::memory_order_release);
  return CUPTI_SUCCESS;
}

void ForgetCallbacks() {
  g_callback.store(nullptr);
  for (auto& domain : g_enabled) {
    for (auto& id : domain) id.store(false);
  }
}

}  // namespace
}  // namespace mycroft::agent

using mycroft::agent::Self;

#define EXPORT __attribute__((visibility("default")))

extern "C" {

EXPORT mycroft::agent::StandIn* mycroftStandIn() { return &Self(); }

EXPORT CUptiResult cuptiGetVersion(uint32_t* version) {
  *version = Self().version;
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* subscriber, CUpti_CallbackFunc callback,
                                  void*) {
  return mycroft::agent::SubscribeAs(subscriber, callback);
}

#ifndef MYCROFT_STAND_IN_CUDA12
EXPORT CUptiResult cuptiSubscribe_v2(CUpti_SubscriberHandle* subscriber,
                                     CUpti_CallbackFunc callback, void*,
                                     CUpti_SubscriberParams* params) {
  mycroft::agent::StandIn& s = Self();
  if (params->structSize != CUpti_SubscriberParams_STRUCT_SIZE) {
    return CUPTI_ERROR_INVALID_PARAMETER;
  }
  if (s.other_tool != nullptr && params->oldSubscriberName != nullptr) {
    strncpy(params->oldSubscriberName, s.other_tool, params->oldSubscriberSize);
  }
  if (params->subscriberName != nullptr) {
    strncpy(s.name_given, params->subscriberName, sizeof(s.name_given) - 1);
  }
  return mycroft::agent::SubscribeAs(subscriber, callback);
}

EXPORT CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc f) {
  if (Self().fail_timestamp_callback) return CUPTI_ERROR_UNKNOWN;
  mycroft::agent::g_timestamp.store(f);
  return CUPTI_SUCCESS;
}
#endif

EXPORT CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle) {
  Self().unsubscribed.fetch_add(1);
  mycroft::agent::ForgetCallbacks();
  Self().has_subscriber.store(false);
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiEnableCallback(uint32_t enable, CUpti_SubscriberHandle,
                                       CUpti_CallbackDomain domain, CUpti_CallbackId id) {
  if (Self().fail_enable_callback != CUPTI_SUCCESS) return Self().fail_enable_callback;
  if (domain >= 8 || id >= mycroft::agent::kIds) return CUPTI_ERROR_INVALID_PARAMETER;
  mycroft::agent::g_enabled[domain][id].store(enable != 0);
  return CUPTI_SUCCESS;
}

// A context is a number here: CUcontext 0x1000 * uid, on device uid - 1.
EXPORT CUptiResult cuptiGetContextId(CUcontext context, uint32_t* id) {
  *id = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(context) >> 12);
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiGetDeviceId(CUcontext context, uint32_t* id) {
  *id = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(context) >> 12) - 1;
  return CUPTI_SUCCESS;
}
// Default streams have number 7 (13 when per thread), created ones their handle >> 4.
EXPORT CUptiResult cuptiGetStreamIdEx(CUcontext, CUstream stream, uint8_t per_thread,
                                      uint32_t* id) {
  const auto handle = reinterpret_cast<uintptr_t>(stream);
  *id = handle > 2 ? static_cast<uint32_t>(handle >> 4) : per_thread != 0 || handle == 2 ? 13 : 7;
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiGetTimestamp(uint64_t* timestamp) {
  *timestamp = mycroft::agent::Monotonic() + Self().own_clock_offset;
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                                  CUpti_BuffersCallbackCompleteFunc complete) {
  mycroft::agent::g_request.store(request);
  mycroft::agent::g_complete.store(complete);
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  if (kind == Self().fail_kind) return CUPTI_ERROR_NOT_COMPATIBLE;
  if (!mycroft::agent::g_kinds[kind].exchange(true)) Self().kinds_enabled.fetch_add(1);
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
  if (mycroft::agent::g_kinds[kind].exchange(false)) Self().kinds_enabled.fetch_sub(1);
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiActivityFlushAll(uint32_t flag) {
  (flag != 0 ? Self().forced : Self().flushes).fetch_add(1);
  const uint64_t ns = Self().flush_sleep_ns.load();
  if (ns != 0) {
    timespec pause = {static_cast<time_t>(ns / 1'000'000'000u),
                      static_cast<long>(ns % 1'000'000'000u)};
    nanosleep(&pause, nullptr);
  }
  if (flag != 0) mycroft::agent::Complete(false);
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid,
                                              CUpti_Activity** record) {
  size_t at = 0;
  if (*record != nullptr) {
    const size_t size = mycroft::agent::SizeOf((*record)->kind);
    at = static_cast<size_t>(reinterpret_cast<uint8_t*>(*record) - buffer) + size;
  }
  if (at >= valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  auto* next = reinterpret_cast<CUpti_Activity*>(buffer + at);
  if (valid - at < sizeof(CUpti_Activity)) return CUPTI_ERROR_INVALID_KIND;
  const size_t size = mycroft::agent::SizeOf(next->kind);
  if (size == 0 || size > valid - at) return CUPTI_ERROR_INVALID_KIND;
  *record = next;
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t, size_t* dropped) {
  std::lock_guard<std::mutex> lock(mycroft::agent::g_lock);
  for (CUcontext dead : mycroft::agent::g_dead) {
    if (context != nullptr && dead == context) Self().dropped_asked_of_dead_context.fetch_add(1);
  }
  *dropped = Self().dropped;
  Self().dropped = 0;
  return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiFinalize(void) {
  Self().finalized.fetch_add(1);
  std::lock_guard<std::mutex> lock(mycroft::agent::g_lock);
  mycroft::agent::g_count = 0;  // buffers that were out are gone
  return CUPTI_SUCCESS;
}

}  // extern "C"
