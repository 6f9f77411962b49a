// SPDX-License-Identifier: Apache-2.0
//
// What happens in the application's threads.
#include <string.h>

#include "cupti/agent/state.h"

namespace mycroft::agent {
namespace {

constexpr int kSuccess = 0;
constexpr int kNotReady = 600;  // CUDA_ERROR_NOT_READY

uint64_t ReadU64(const void* params, uint8_t offset) {
  uint64_t value;
  memcpy(&value, static_cast<const char*>(params) + offset, sizeof(value));
  return value;
}

int ReturnValue(const CUpti_CallbackData& d) {
  int value = -1;
  if (d.functionReturnValue != nullptr) memcpy(&value, d.functionReturnValue, sizeof(value));
  return value;
}

uint64_t StreamHandle(const Call& call, const void* params) {
  if (params == nullptr) return 0;
  if (call.kind == CallKind::kKernelEx) {
    const auto* config = reinterpret_cast<const CUlaunchConfig*>(ReadU64(params, 0));
    return config != nullptr ? reinterpret_cast<uint64_t>(config->hStream) : 0;
  }
  return call.stream == kAbsent ? 0 : ReadU64(params, call.stream);
}

struct CopySize {
  uint64_t bytes = 0;
  uint8_t direction = MC_GPU_COPY_OTHER;
};

template <class Shape>
CopySize ShapedCopy(const Shape* shape, uint64_t bytes) {
  CopySize size;
  size.bytes = bytes;
  const bool from_host = shape->srcMemoryType == CU_MEMORYTYPE_HOST;
  const bool to_host = shape->dstMemoryType == CU_MEMORYTYPE_HOST;
  const bool unified = shape->srcMemoryType == CU_MEMORYTYPE_UNIFIED ||
                       shape->dstMemoryType == CU_MEMORYTYPE_UNIFIED;
  if (unified || (from_host && to_host)) return size;
  size.direction = from_host ? MC_GPU_COPY_HTOD : to_host ? MC_GPU_COPY_DTOH : MC_GPU_COPY_DTOD;
  return size;
}

CopySize SizeOf(const Call& call, const void* params) {
  CopySize size;
  size.direction = call.copy;
  if (params == nullptr) return size;
  if (call.kind == CallKind::kCopy2D) {
    const auto* shape = reinterpret_cast<const CUDA_MEMCPY2D*>(ReadU64(params, 0));
    return shape != nullptr ? ShapedCopy(shape, uint64_t{shape->WidthInBytes} * shape->Height)
                            : size;
  }
  if (call.kind == CallKind::kCopy3D) {
    const auto* shape = reinterpret_cast<const CUDA_MEMCPY3D*>(ReadU64(params, 0));
    return shape != nullptr
               ? ShapedCopy(shape, uint64_t{shape->WidthInBytes} * shape->Height * shape->Depth)
               : size;
  }
  if (call.bytes != kAbsent) size.bytes = ReadU64(params, call.bytes) * call.scale;
  return size;
}

// ---- which call a thread is inside of ----------------------------------------------------

mc_gpu_thread* LineOf(State& s, ThreadState* t) { return &s.board.threads[t - s.threads]; }

void EnterHost(State& s, ThreadState* t, mc_gpu_host_call call, uint32_t stream, uint32_t context,
               uint64_t ticket, uint64_t now) {
  if (t == nullptr) return;
  mc_gpu_thread* line = LineOf(s, t);
  LineWrite write(&line->seq);
  Set(&line->call, static_cast<uint32_t>(call));
  Set(&line->stream, stream);
  Set(&line->context, context);
  Set(&line->stream_generation,
      stream != MC_GPU_NONE ? Get(&s.board.streams[stream].generation) : 0);
  Set(&line->enter_ns, now);
  Set(&line->ticket, ticket);
}

// Returns when it was entered; 0: it was not.
uint64_t LeaveHost(State& s, ThreadState* t, uint64_t now) {
  if (t == nullptr) return 0;
  mc_gpu_thread* line = LineOf(s, t);
  if (Get(&line->call) == MC_GPU_HOST_NONE) return 0;
  LineWrite write(&line->seq);
  Set(&line->last_call, Get(&line->call));
  Set(&line->call, static_cast<uint32_t>(MC_GPU_HOST_NONE));
  Set(&line->last_leave_ns, now);
  board::Bump(&line->calls, uint64_t{1});
  return Get(&line->enter_ns);
}

// An exit whose entry we did not see (we subscribed in between) has nothing to tell.
void Open(ThreadState* t, uint32_t correlation) {
  if (t == nullptr) return;
  if (t->opened == kMaxOpen) {  // exits that never came: forget the oldest entry
    for (uint32_t i = 1; i < kMaxOpen; ++i) t->open[i - 1] = t->open[i];
    --t->opened;
  }
  t->open[t->opened++] = correlation;
}
bool Close(ThreadState* t, uint32_t correlation) {
  if (t == nullptr) return true;
  for (uint32_t i = t->opened; i > 0; --i) {
    if (t->open[i - 1] != correlation) continue;
    t->opened = i - 1;
    return true;
  }
  return false;
}

// ---- work ------------------------------------------------------------------------------

void WriteLaunch(Launch* to, uint64_t ticket, uint64_t now, uint32_t correlation, uint16_t name,
                 uint8_t work, uint8_t copy, uint32_t kib) {
  to->ticket.store(0, std::memory_order_relaxed);
  to->launch_ns.store(now, std::memory_order_release);
  to->correlation.store(correlation, std::memory_order_release);
  to->name.store(name, std::memory_order_release);
  to->work.store(work, std::memory_order_release);
  to->copy.store(copy, std::memory_order_release);
  to->kib.store(kib, std::memory_order_release);
  to->ticket.store(ticket, std::memory_order_release);
}

void WriteQueue(mc_gpu_launch* to, uint64_t ticket, uint64_t now, uint32_t correlation,
                uint16_t name, uint8_t work, uint8_t copy, uint32_t kib) {
  SharedLineWrite write(&to->seq);
  Set(&to->correlation, correlation);
  Set(&to->ticket, ticket);
  Set(&to->launch_ns, now);
  Set(&to->name, name);
  Set(&to->work, work);
  Set(&to->copy, copy);
  Set(&to->kib, kib);
}

uint64_t EnterWork(State& s, ThreadState* t, const Call& call, const CUpti_CallbackData& d,
                   uint64_t now) {
  if (t != nullptr) t->node_created = false;
  const uint32_t stream = FindStream(s, t, d.contextUid, d.context,
                                     StreamHandle(call, d.functionParams), call.per_thread, now);
  if (stream == kNotFound) return 0;
  mc_gpu_stream* line = &s.board.streams[stream];
  if (__builtin_expect(Get(&line->capturing) != 0, 0)) {
    SharedLineWrite write(&line->launch_seq);
    AddShared(&line->voids, uint64_t{1});
    return 0;
  }
  StreamState& state = s.streams[stream];
  uint16_t name = 0;
  uint8_t work = MC_GPU_WORK_KERNEL;
  CopySize size;
  uint64_t* counter = nullptr;
  switch (call.kind) {
    case CallKind::kKernel:
    case CallKind::kKernelEx:
      name = FindName(s, d.symbolName, state.device.load(std::memory_order_relaxed));
      if (Get(&s.board.names[name].nccl) != 0) {
        work = MC_GPU_WORK_NCCL;
        AddShared(&s.board.header->nccl_launches, uint64_t{1});
      }
      AddShared(&s.board.header->launches, uint64_t{1});
      counter = &line->kernels;
      break;
    case CallKind::kGraph:
      work = MC_GPU_WORK_GRAPH;
      counter = &line->graphs;
      break;
    case CallKind::kMemset:
      work = MC_GPU_WORK_MEMSET;
      size = SizeOf(call, d.functionParams);
      counter = &line->memsets;
      break;
    case CallKind::kCopy:
    case CallKind::kCopy2D:
    case CallKind::kCopy3D:
      work = MC_GPU_WORK_COPY;
      size = SizeOf(call, d.functionParams);
      counter = &line->copies[size.direction];
      break;
    case CallKind::kNone:
    case CallKind::kStreamSync:
    case CallKind::kContextSync:
    case CallKind::kEventSync:
    case CallKind::kStreamQuery:
    case CallKind::kEventQuery:
    case CallKind::kEventRecord:
    case CallKind::kEventDestroy:
    case CallKind::kStreamWait:
    case CallKind::kBeginCapture:
    case CallKind::kEndCapture:
      return 0;
  }
  const uint64_t kib = (size.bytes + 1023) >> 10;
  const auto kib32 = static_cast<uint32_t>(kib < UINT32_MAX ? kib : UINT32_MAX);
  uint64_t ticket;
  {
    SharedLineWrite write(&line->launch_seq);
    ticket = __atomic_fetch_add(&line->last_ticket, uint64_t{1}, __ATOMIC_RELEASE) + 1;
    Set(&line->last_launch_ns, now);
    AddShared(counter, uint64_t{1});
    if (work == MC_GPU_WORK_NCCL) AddShared(&line->nccl_kernels, uint64_t{1});
    if (work == MC_GPU_WORK_COPY) AddShared(&line->copy_bytes[size.direction], size.bytes);
  }
  WriteLaunch(&state.ring[ticket % kRing], ticket, now, d.correlationId, name, work, size.direction,
              kib32);
  // Do not lose the oldest to this one.
  if (ticket > MC_GPU_QUEUE && Get(&line->finished_ticket) + 1 == ticket - MC_GPU_QUEUE) {
    PinOldest(s, stream, ticket - MC_GPU_QUEUE);
  }
  WriteQueue(&line->queue[ticket % MC_GPU_QUEUE], ticket, now, d.correlationId, name, work,
             size.direction, kib32);
  EnterHost(s, t, call.waits ? MC_GPU_HOST_COPY : MC_GPU_HOST_LAUNCH, stream, MC_GPU_NONE, ticket,
            now);
  return Token(stream, ticket);
}

// It never reached the GPU.
void MakeVoid(State& s, uint32_t stream, uint64_t ticket) {
  mc_gpu_stream* line = &s.board.streams[stream];
  Launch& launch = s.streams[stream].ring[ticket % kRing];
  if (launch.ticket.load(std::memory_order_acquire) == ticket) {
    launch.work.store(MC_GPU_WORK_VOID, std::memory_order_release);
  }
  mc_gpu_launch* shown = &line->queue[ticket % MC_GPU_QUEUE];
  if (Get(&shown->ticket) == ticket) {
    SharedLineWrite write(&shown->seq);
    Set(&shown->work, static_cast<uint8_t>(MC_GPU_WORK_VOID));
  }
  SharedLineWrite write(&line->launch_seq);
  AddShared(&line->voids, uint64_t{1});
}

void ExitWork(State& s, ThreadState* t, const Call& call, const CUpti_CallbackData& d,
              uint64_t token, uint64_t now) {
  const uint64_t entered = LeaveHost(s, t, now);
  if (token == 0) return;
  const uint32_t stream = TokenStream(token);
  const uint64_t ticket = TokenTicket(token);
  mc_gpu_stream* line = &s.board.streams[stream];
  StreamState& state = s.streams[stream];
  const bool captured = t != nullptr && t->node_created && call.kind != CallKind::kGraph;
  const bool failed = ReturnValue(d) != kSuccess;
  if (__builtin_expect(failed || captured, 0)) MakeVoid(s, stream, ticket);
  const uint64_t exited = state.exited.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (exited == __atomic_load_n(&line->last_ticket, __ATOMIC_ACQUIRE)) {
    state.quiescent.store(exited, std::memory_order_release);
  }
  if (failed || captured) {
    if (Get(&line->finished_ticket) + 1 == ticket) {
      Finish(s, stream, ticket, static_cast<mc_gpu_host_call>(Get(&line->finished_by)), now);
    }
  } else if (call.waits) {
    const uint64_t known = state.quiescent.load(std::memory_order_acquire);
    Finish(s, stream, known < ticket ? known : ticket, MC_GPU_HOST_COPY, now);
    SharedLineWrite write(&line->finish_seq);
    Set(&line->last_wait, static_cast<uint32_t>(MC_GPU_HOST_COPY));
    Set(&line->last_wait_ns, now);
    Set(&line->last_wait_took_ns, entered != 0 && now > entered ? now - entered : 0);
  }
}

// ---- waits and queries ---------------------------------------------------------------------

uint64_t QuiescentToken(State& s, uint32_t stream) {
  return stream == kNotFound
             ? 0
             : Token(stream, s.streams[stream].quiescent.load(std::memory_order_acquire));
}

uint64_t EventToken(State& s, uint64_t event) {
  const uint32_t index = s.by_event.Find(event & kKeyMask);
  return index == kNotFound ? 0 : s.cuda_events[index].load(std::memory_order_acquire);
}

uint32_t ContextOf(State& s, const Call& call, const CUpti_CallbackData& d, uint64_t now) {
  (void)call;
#if CUDA_VERSION >= 13000
  if (call.cbid == CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize_v2 && d.functionParams != nullptr) {
    const uint64_t wanted = ReadU64(d.functionParams, 0);
    if (wanted != 0 && wanted != reinterpret_cast<uint64_t>(d.context)) {
      for (uint32_t i = 0; i < MC_GPU_MAX_CONTEXTS; ++i) {
        if (s.contexts[i].life.load(std::memory_order_acquire) == MC_GPU_ALIVE &&
            s.contexts[i].cu_context.load(std::memory_order_relaxed) == wanted) {
          return i;
        }
      }
      return kNotFound;
    }
  }
#endif
  return FindContext(s, d.contextUid, d.context, now);
}

mc_gpu_host_call HostCall(CallKind kind) {
  switch (kind) {
    case CallKind::kStreamSync:
      return MC_GPU_HOST_STREAM_SYNC;
    case CallKind::kContextSync:
      return MC_GPU_HOST_CONTEXT_SYNC;
    case CallKind::kEventSync:
      return MC_GPU_HOST_EVENT_SYNC;
    case CallKind::kStreamQuery:
      return MC_GPU_HOST_STREAM_QUERY;
    case CallKind::kEventQuery:
      return MC_GPU_HOST_EVENT_QUERY;
    case CallKind::kNone:
    case CallKind::kKernel:
    case CallKind::kKernelEx:
    case CallKind::kGraph:
    case CallKind::kCopy:
    case CallKind::kCopy2D:
    case CallKind::kCopy3D:
    case CallKind::kMemset:
    case CallKind::kEventRecord:
    case CallKind::kEventDestroy:
    case CallKind::kStreamWait:
    case CallKind::kBeginCapture:
    case CallKind::kEndCapture:
      break;
  }
  return MC_GPU_HOST_NONE;
}

uint64_t EnterWait(State& s, ThreadState* t, const Call& call, const CUpti_CallbackData& d,
                   uint64_t now) {
  uint64_t token = 0;
  uint32_t context = kNotFound;
  if (call.kind == CallKind::kContextSync) {
    context = ContextOf(s, call, d, now);
    if (t != nullptr) {
      const uint32_t used = Get(&s.board.header->streams_used);
      for (uint32_t i = 0; i < MC_GPU_MAX_STREAMS; ++i) {
        const bool ours = i < used && context != kNotFound &&
                          s.streams[i].life.load(std::memory_order_acquire) == MC_GPU_ALIVE &&
                          s.streams[i].context.load(std::memory_order_relaxed) == context;
        t->waits_for[i] = ours ? s.streams[i].quiescent.load(std::memory_order_acquire) : 0;
      }
    }
  } else if (call.kind == CallKind::kEventSync) {
    token = d.functionParams != nullptr ? EventToken(s, ReadU64(d.functionParams, 0)) : 0;
  } else {
    token =
        QuiescentToken(s, FindStream(s, t, d.contextUid, d.context,
                                     StreamHandle(call, d.functionParams), call.per_thread, now));
  }
  EnterHost(s, t, HostCall(call.kind), token != 0 ? TokenStream(token) : MC_GPU_NONE,
            context != kNotFound ? context : MC_GPU_NONE, TokenTicket(token), now);
  return token;
}

void ExitWait(State& s, ThreadState* t, const Call& call, const CUpti_CallbackData& d,
              uint64_t token, uint64_t now) {
  const uint64_t entered = LeaveHost(s, t, now);
  if (ReturnValue(d) != kSuccess) return;
  const mc_gpu_host_call by = HostCall(call.kind);
  const auto waited = [&](uint32_t stream) {
    mc_gpu_stream* line = &s.board.streams[stream];
    SharedLineWrite write(&line->finish_seq);
    Set(&line->last_wait, static_cast<uint32_t>(by));
    Set(&line->last_wait_ns, now);
    Set(&line->last_wait_took_ns, entered != 0 && now > entered ? now - entered : 0);
  };
  if (call.kind == CallKind::kContextSync) {
    if (t == nullptr) return;
    for (uint32_t i = 0; i < MC_GPU_MAX_STREAMS; ++i) {
      if (t->waits_for[i] == 0) continue;
      Finish(s, i, t->waits_for[i], by, now);
      waited(i);
      t->waits_for[i] = 0;
    }
  } else if (token != 0) {
    Finish(s, TokenStream(token), TokenTicket(token), by, now);
    waited(TokenStream(token));
  }
}

void ExitQuery(State& s, const Call& call, const CUpti_CallbackData& d, uint64_t token,
               uint64_t now) {
  if (token == 0) return;
  const int result = ReturnValue(d);
  if (result == kSuccess) {
    Finish(s, TokenStream(token), TokenTicket(token), HostCall(call.kind), now);
  } else if (result == kNotReady) {
    NoteBusy(s, TokenStream(token), TokenTicket(token), HostCall(call.kind), now);
  }
}

// An event stands for what was in the stream before it was recorded.
void RecordEvent(State& s, uint64_t event, uint64_t token) {
  const uint64_t key = event & kKeyMask;
  if (key == 0 || token == 0 || Get(&s.board.streams[TokenStream(token)].capturing) != 0) return;
  uint32_t index = s.by_event.Find(key);
  if (index == kNotFound) {
    const uint32_t fresh = s.event_pool.Take();
    if (fresh == board::kNoIndex) return Count(s, MC_GPU_LOSS_EVENT_TABLE_FULL);
    s.cuda_events[fresh].store(0, std::memory_order_relaxed);
    index = s.by_event.Insert(key, fresh);
    if (index != fresh) s.event_pool.Return(fresh);
    if (index == kNotFound) return Count(s, MC_GPU_LOSS_EVENT_TABLE_FULL);
  }
  s.cuda_events[index].store(token, std::memory_order_release);
}

void DestroyEvent(State& s, uint64_t event) {
  const uint64_t key = event & kKeyMask;
  const uint32_t index = s.by_event.Find(key);
  if (index == kNotFound) return;
  s.by_event.Remove(key, index);
  s.cuda_events[index].store(0, std::memory_order_relaxed);
  s.event_pool.Return(index);
}

void SetCapturing(State& s, ThreadState* t, const Call& call, const CUpti_CallbackData& d,
                  uint64_t now, uint32_t capturing) {
  const uint32_t stream = FindStream(s, t, d.contextUid, d.context,
                                     StreamHandle(call, d.functionParams), call.per_thread, now);
  if (stream == kNotFound) return;
  mc_gpu_stream* line = &s.board.streams[stream];
  SharedLineWrite write(&line->launch_seq);
  Set(&line->capturing, capturing);
}

// From here on `stream` waits for what the event stands for.
void NoteStreamWait(State& s, ThreadState* t, const Call& call, const CUpti_CallbackData& d,
                    uint64_t token, uint64_t now) {
  const uint32_t stream = FindStream(s, t, d.contextUid, d.context,
                                     StreamHandle(call, d.functionParams), call.per_thread, now);
  if (stream == kNotFound || stream == TokenStream(token)) return;
  mc_gpu_stream* line = &s.board.streams[stream];
  if (Get(&line->capturing) != 0) return;
  SharedLineWrite write(&line->launch_seq);
  Set(&line->wait_stream, TokenStream(token));
  Set(&line->wait_generation, Get(&s.board.streams[TokenStream(token)].generation));
  Set(&line->wait_ticket, TokenTicket(token));
  Set(&line->wait_at, Get(&line->last_ticket));
}

void Enter(State& s, ThreadState* t, const Call& call, const CUpti_CallbackData& d) {
  const uint64_t now = Now(t);
  uint64_t token = 0;
  switch (call.kind) {
    case CallKind::kKernel:
    case CallKind::kKernelEx:
    case CallKind::kGraph:
    case CallKind::kCopy:
    case CallKind::kCopy2D:
    case CallKind::kCopy3D:
    case CallKind::kMemset:
      token = EnterWork(s, t, call, d, now);
      break;
    case CallKind::kStreamSync:
    case CallKind::kContextSync:
    case CallKind::kEventSync:
      token = EnterWait(s, t, call, d, now);
      break;
    case CallKind::kStreamQuery:
    case CallKind::kEventRecord:
      token =
          QuiescentToken(s, FindStream(s, t, d.contextUid, d.context,
                                       StreamHandle(call, d.functionParams), call.per_thread, now));
      break;
    case CallKind::kEventQuery:
      token = d.functionParams != nullptr ? EventToken(s, ReadU64(d.functionParams, 0)) : 0;
      break;
    case CallKind::kStreamWait:
      token = d.functionParams != nullptr ? EventToken(s, ReadU64(d.functionParams, 8)) : 0;
      break;
    case CallKind::kEventDestroy:
      if (d.functionParams != nullptr) DestroyEvent(s, ReadU64(d.functionParams, 0));
      break;
    case CallKind::kEndCapture:
      SetCapturing(s, t, call, d, now, 0);
      break;
    case CallKind::kBeginCapture:
    case CallKind::kNone:
      break;
  }
  Open(t, d.correlationId);
  if (d.correlationData != nullptr) *d.correlationData = token;
  // Coarse: a line that all threads share.
  uint64_t* heartbeat = &s.board.header->last_callback_ns;
  if (now > Get(heartbeat) + 1'000'000) Set(heartbeat, now);
}

void Exit(State& s, ThreadState* t, const Call& call, const CUpti_CallbackData& d) {
  if (!Close(t, d.correlationId)) return;
  const uint64_t token = d.correlationData != nullptr ? *d.correlationData : 0;
  if (token != 0 && TokenStream(token) >= MC_GPU_MAX_STREAMS) return;
  const uint64_t now = Now(t);
  switch (call.kind) {
    case CallKind::kKernel:
    case CallKind::kKernelEx:
    case CallKind::kGraph:
    case CallKind::kCopy:
    case CallKind::kCopy2D:
    case CallKind::kCopy3D:
    case CallKind::kMemset:
      return ExitWork(s, t, call, d, token, now);
    case CallKind::kStreamSync:
    case CallKind::kContextSync:
    case CallKind::kEventSync:
      return ExitWait(s, t, call, d, token, now);
    case CallKind::kStreamQuery:
    case CallKind::kEventQuery:
      return ExitQuery(s, call, d, token, now);
    case CallKind::kEventRecord:
      if (d.functionParams != nullptr && ReturnValue(d) == kSuccess) {
        RecordEvent(s, ReadU64(d.functionParams, 0), token);
      }
      return;
    case CallKind::kStreamWait:
      if (token != 0 && ReturnValue(d) == kSuccess) NoteStreamWait(s, t, call, d, token, now);
      return;
    case CallKind::kBeginCapture:
      if (ReturnValue(d) == kSuccess) SetCapturing(s, t, call, d, now, 1);
      return;
    case CallKind::kEventDestroy:
    case CallKind::kEndCapture:
    case CallKind::kNone:
      return;
  }
}

void OnResource(State& s, CUpti_CallbackId id, const CUpti_ResourceData& d) {
  ThreadState* t = Self(s);
  uint32_t uid = 0;
  switch (id) {
    case CUPTI_CBID_RESOURCE_CONTEXT_CREATED:
      if (s.cupti.cuptiGetContextId(d.context, &uid) == CUPTI_SUCCESS) {
        FindContext(s, uid, d.context, Now(t));
      }
      break;
    case CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING:
      DestroyContext(s, d.context, Now(t));
      break;
    case CUPTI_CBID_RESOURCE_STREAM_CREATED:
      if (s.cupti.cuptiGetContextId(d.context, &uid) == CUPTI_SUCCESS) {
        FindStream(s, t, uid, d.context, reinterpret_cast<uint64_t>(d.resourceHandle.stream), false,
                   Now(t));
      }
      break;
    case CUPTI_CBID_RESOURCE_STREAM_DESTROY_STARTING:
      DestroyStream(s, reinterpret_cast<uint64_t>(d.resourceHandle.stream), Now(t));
      break;
    case CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED:
      if (t != nullptr) t->node_created = true;
      break;
    default:  // an id of CUPTI's, not an enum of ours
      break;
  }
}

}  // namespace

void CUPTIAPI OnCallback(void* user, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                         const void* data) {
  (void)user;
  State* s = Active();
  if (s == nullptr || data == nullptr) return;
  if (domain == CUPTI_CB_DOMAIN_DRIVER_API) {
    if (id >= kCallIds || s->call_of[id] == 0) return;
    const Call& call = kCalls[s->call_of[id] - 1];
    const auto& d = *static_cast<const CUpti_CallbackData*>(data);
    if (d.callbackSite == CUPTI_API_ENTER) {
      Enter(*s, Self(*s), call, d);
    } else {
      Exit(*s, Self(*s), call, d);
      if (__builtin_expect(s->releasing.load(std::memory_order_relaxed) == 1, 0)) {
        DetachFromCallback(*s);
      }
    }
  } else if (domain == CUPTI_CB_DOMAIN_RESOURCE) {
    OnResource(*s, id, *static_cast<const CUpti_ResourceData*>(data));
  } else if (domain == CUPTI_CB_DOMAIN_STATE && id == CUPTI_CBID_STATE_FATAL_ERROR) {
    // CUPTI has detached itself.
    const auto& d = *static_cast<const CUpti_StateData*>(data);
    Set(&s->board.header->error, static_cast<uint32_t>(d.notification.result));
    Set(&s->board.header->state, static_cast<uint32_t>(MC_GPU_FATAL));
  }
}

}  // namespace mycroft::agent
