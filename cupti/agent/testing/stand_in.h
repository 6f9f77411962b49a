// SPDX-License-Identifier: Apache-2.0
//
// A libcupti of our own for tests and benchmarks, loaded in place of the real one: it
// delivers what the test tells it to, in the order the test wants, also what the real
// one does rarely. It plays no GPU: time passes when the test says so.
//
// Built twice: as CUDA 13.0's (with cuptiSubscribe_v2 and the timestamp callback) and
// as one of CUDA 12 that has neither. The test loads a copy of it with dlopen and gets
// this table from mycroftStandIn().
//
// Thread safety: Callback from any number of threads; records and buffers are guarded
// by one mutex, which is not held while a callback of the client runs. Settings are
// made before the client starts. No allocation in Callback.
#ifndef MYCROFT_CUPTI_AGENT_TESTING_STAND_IN_H_
#define MYCROFT_CUPTI_AGENT_TESTING_STAND_IN_H_

#include <cupti.h>

#include <atomic>
#include <cstdint>

namespace mycroft::agent {

struct StandIn {
  // ---- settings ----
  uint32_t version = 0;
  const char* other_tool = nullptr;  // has subscribed already: error 39 and this name
  CUptiResult fail_enable_callback = CUPTI_SUCCESS;            // of every cuptiEnableCallback
  CUpti_ActivityKind fail_kind = CUPTI_ACTIVITY_KIND_INVALID;  // of cuptiActivityEnable
  bool fail_timestamp_callback = false;
  std::atomic<uint64_t> flush_sleep_ns{0};  // what a flush takes
  uint64_t own_clock_offset = 0;            // of cuptiGetTimestamp, from CLOCK_MONOTONIC
  size_t dropped = 0;                       // told once, then 0

  // ---- what the client did ----
  std::atomic<uint32_t> subscribed{0}, unsubscribed{0}, finalized{0}, flushes{0}, forced{0};
  std::atomic<uint32_t> kinds_enabled{0};  // now
  std::atomic<uint32_t> buffers_refused{0};
  std::atomic<uint32_t> dropped_asked_of_dead_context{0};
  std::atomic<bool> has_subscriber{false};
  char name_given[64] = {};

  // ---- what the test makes happen ----
  // To the subscriber, if it enabled that callback.
  void (*callback)(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) = nullptr;
  // A record into the current buffer of that context and stream (which it asks the client
  // for). False: its kind is not enabled, or there is no buffer.
  bool (*record)(CUcontext context, uint32_t stream_id, const void* record, size_t bytes) = nullptr;
  // Gives the filled buffers to the client, in the order they were begun or from the
  // last to the first.
  void (*complete)(bool reversed) = nullptr;
  // This buffer, whatever it is.
  void (*complete_raw)(CUcontext context, uint32_t stream_id, uint8_t* buffer, size_t size,
                       size_t valid) = nullptr;
  // A buffer as CUPTI would ask for it; null: refused.
  uint8_t* (*request)(size_t* size) = nullptr;
  void (*context_dies)(CUcontext context) = nullptr;  // asking of it is an error from now on
  uint64_t (*now)() = nullptr;                        // the clock that records are on
};

using StandInFn = StandIn* (*)();

}  // namespace mycroft::agent

#endif  // MYCROFT_CUPTI_AGENT_TESTING_STAND_IN_H_
