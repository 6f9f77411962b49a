// SPDX-License-Identifier: Apache-2.0
//
// Activity records: buffers from the pool to CUPTI, from CUPTI to our own thread, and
// what is read from them. Handing over is wait-free: the completed buffers form a
// stack of indexes, which our thread takes as a whole.
//
// CUPTI holds a buffer back as long as one record in it is incomplete. So beside a
// kernel that never ends, the records of others that have ended may be missing too:
// the absence of a record proves nothing.
#include <string.h>

#include "cupti/agent/state.h"

namespace mycroft::agent {
namespace {

// A record may carry the correlation id of the runtime's call around the driver's call
// that we saw. Ids grow, so the nearest later launch of that stream is meant; a gap
// larger than this is not bridged.
constexpr int32_t kNearIds = 16;

struct Work {
  uint64_t start = 0, end = 0;
  uint32_t context = 0, stream_id = 0, correlation = 0, graph = 0, device = 0;
};

uint64_t OnOurClock(const State& s, uint64_t t) {
  return t == 0 ? 0 : t + static_cast<uint64_t>(s.clock_offset);
}

Work ReadWork(const State& s, const void* record, const WorkLayout& at) {
  Work work;
  work.start = OnOurClock(s, Field<uint64_t>(record, at.start));
  work.end = OnOurClock(s, Field<uint64_t>(record, at.end));
  work.device = Field<uint32_t>(record, at.device);
  work.context = Field<uint32_t>(record, at.context);
  work.stream_id = Field<uint32_t>(record, at.stream);
  work.correlation = Field<uint32_t>(record, at.correlation);
  work.graph = Field<uint32_t>(record, at.graph);
  return work;
}

bool SameClass(uint8_t launched, mc_gpu_work recorded) {
  if (launched == MC_GPU_WORK_NCCL) launched = MC_GPU_WORK_KERNEL;
  return launched == recorded;
}

// The launch that a record belongs to: its ticket, or 0.
uint64_t FindLaunch(State& s, uint32_t stream, uint32_t correlation, mc_gpu_work work) {
  StreamState& state = s.streams[stream];
  const uint64_t last = __atomic_load_n(&s.board.streams[stream].last_ticket, __ATOMIC_ACQUIRE);
  const uint64_t first = last > kRing ? last - kRing + 1 : 1;
  uint64_t at = first;
  // In order, as a rule; buffers may come out of order.
  if (state.matched_ticket >= first &&
      static_cast<int32_t>(correlation - state.matched_correlation) > 0) {
    at = state.matched_ticket + 1;
  }
  for (; at <= last; ++at) {
    const Launch& launch = state.ring[at % kRing];
    if (launch.ticket.load(std::memory_order_acquire) != at) continue;
    const uint32_t id = launch.correlation.load(std::memory_order_acquire);
    const auto later = static_cast<int32_t>(id - correlation);
    if (later < 0) continue;
    const uint8_t launched = launch.work.load(std::memory_order_acquire);
    if (later > 0 && launched == MC_GPU_WORK_VOID) continue;
    if (later > kNearIds || !SameClass(launched, work)) return 0;
    if (launch.ticket.load(std::memory_order_acquire) != at) continue;
    AddShared(later == 0 ? &s.board.header->matched_exact : &s.board.header->matched_near,
              uint64_t{1});
    state.matched_ticket = at;
    state.matched_correlation = correlation;
    return at;
  }
  return 0;
}

void WriteEvent(State& s, const Work& work, mc_gpu_work kind, uint32_t stream, uint16_t name,
                uint64_t launch_ns, uint64_t bytes, uint8_t copy) {
  mc_gpu_header* h = s.board.header;
  const uint64_t id = Get(&h->next_event_id);
  mc_gpu_event* e = &s.board.events[id & (MC_GPU_MAX_EVENTS - 1)];
  {
    LineWrite write(&e->seq);
    Set(&e->correlation, work.correlation);
    Set(&e->id, id);
    Set(&e->launch_ns, launch_ns);
    Set(&e->start_ns, work.start);
    Set(&e->end_ns, work.end);
    Set(&e->bytes, bytes);
    Set(&e->stream, static_cast<uint16_t>(stream));
    Set(&e->name, name);
    Set(&e->work, static_cast<uint8_t>(kind));
    Set(&e->copy, copy);
    Set(&e->graph, static_cast<uint8_t>(work.graph != 0 ? 1 : 0));
  }
  Set(&h->next_event_id, id + 1);
}

void AddTime(mc_gpu_name* line, uint64_t ns, uint64_t end) {
  LineWrite write(&line->time_seq);
  const uint64_t count = Get(&line->count);
  Set(&line->count, count + 1);
  board::Bump(&line->sum_ns, ns);
  if (count == 0 || ns < Get(&line->min_ns)) Set(&line->min_ns, ns);
  if (ns > Get(&line->max_ns)) Set(&line->max_ns, ns);
  const uint64_t ewma = Get(&line->ewma_ns);
  Set(&line->ewma_ns, count == 0 ? ns : ewma - ewma / 16 + ns / 16);
  Set(&line->last_ns, ns);
  Set(&line->last_end_ns, end);
  const int bit = 63 - __builtin_clzll(ns | 1);
  board::Bump(&line->log2[bit < 31 ? bit : 31], 1u);
}

// Whatever the kind: stream and launch. False: it says nothing that can be used.
struct Found {
  uint32_t stream = kNotFound;
  uint64_t ticket = 0;
  uint64_t launch_ns = 0;
  uint16_t name = 0;
};

bool Locate(State& s, const Work& work, mc_gpu_work kind, Found* found) {
  if (work.start == 0 || work.end == 0 || work.end < work.start) {
    // Also what a forced flush delivers of work that has not ended.
    Count(s, MC_GPU_LOSS_NO_TIME);
    return false;
  }
  found->stream = FindStreamById(s, work.context, work.stream_id);
  if (found->stream == kNotFound) {
    Count(s, MC_GPU_LOSS_UNKNOWN_STREAM);
    return false;
  }
  if (work.graph != 0) return true;  // it was launched with its graph
  found->ticket = FindLaunch(s, found->stream, work.correlation, kind);
  if (found->ticket == 0) {
    Count(s, MC_GPU_LOSS_UNMATCHED);
    return true;
  }
  const Launch& launch = s.streams[found->stream].ring[found->ticket % kRing];
  found->launch_ns = launch.launch_ns.load(std::memory_order_acquire);
  found->name = launch.name.load(std::memory_order_acquire);
  return true;
}

void OnKernel(State& s, const void* record, uint64_t now) {
  const Work work = ReadWork(s, record, s.layout->kernel);
  Found found;
  if (!Locate(s, work, MC_GPU_WORK_KERNEL, &found)) return;
  if (found.name == 0) {
    const auto* name = Field<const char*>(record, s.layout->kernel_name);
    found.name = FindName(s, name, work.device < MC_GPU_MAX_DEVICES ? work.device : MC_GPU_NONE);
  }
  mc_gpu_name* name = &s.board.names[found.name];
  const bool nccl = Get(&name->nccl) != 0;
  const uint64_t ns = work.end - work.start;
  if (found.name != 0) AddTime(name, ns, work.end);
  mc_gpu_stream* line = &s.board.streams[found.stream];
  {
    SharedLineWrite write(&line->record_seq);
    board::Bump(&line->records, uint64_t{1});
    if (work.end > Get(&line->last_end_ns)) Set(&line->last_end_ns, work.end);
    board::Bump(nccl ? &line->nccl_count : &line->kernel_count, uint64_t{1});
    board::Bump(nccl ? &line->nccl_ns : &line->kernel_ns, ns);
    if (found.ticket != 0 && work.start >= found.launch_ns) {
      const uint64_t delay = work.start - found.launch_ns;
      board::Bump(&line->delay_count, uint64_t{1});
      board::Bump(&line->delay_ns, delay);
      if (delay > Get(&line->delay_max_ns)) Set(&line->delay_max_ns, delay);
    }
  }
  if (found.ticket != 0 && work.start < found.launch_ns) Count(s, MC_GPU_LOSS_BACKWARDS);
  WriteEvent(s, work, nccl ? MC_GPU_WORK_NCCL : MC_GPU_WORK_KERNEL, found.stream, found.name,
             found.launch_ns, 0, 0);
  if (found.ticket != 0) Finish(s, found.stream, found.ticket, MC_GPU_HOST_RECORD, now);
}

mc_gpu_copy Direction(uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOA:
      return MC_GPU_COPY_HTOD;
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
    case CUPTI_ACTIVITY_MEMCPY_KIND_ATOH:
      return MC_GPU_COPY_DTOH;
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
    case CUPTI_ACTIVITY_MEMCPY_KIND_ATOA:
    case CUPTI_ACTIVITY_MEMCPY_KIND_ATOD:
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOA:
      return MC_GPU_COPY_DTOD;
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP:
      return MC_GPU_COPY_PEER;
    default:  // a byte of CUPTI's
      return MC_GPU_COPY_OTHER;
  }
}

void OnCopyOrSet(State& s, const void* record, const WorkLayout& at, mc_gpu_work kind,
                 uint64_t now) {
  const Work work = ReadWork(s, record, at);
  Found found;
  if (!Locate(s, work, kind, &found)) return;
  const bool copy = kind == MC_GPU_WORK_COPY;
  const uint64_t bytes = Field<uint64_t>(record, copy ? s.layout->copy_bytes : s.layout->set_bytes);
  const mc_gpu_copy direction =
      copy ? Direction(Field<uint8_t>(record, s.layout->copy_kind)) : MC_GPU_COPY_OTHER;
  mc_gpu_stream* line = &s.board.streams[found.stream];
  {
    SharedLineWrite write(&line->record_seq);
    board::Bump(&line->records, uint64_t{1});
    if (work.end > Get(&line->last_end_ns)) Set(&line->last_end_ns, work.end);
    if (copy) {
      board::Bump(&line->done_copies[direction], uint64_t{1});
      board::Bump(&line->done_copy_bytes[direction], bytes);
      board::Bump(&line->done_copy_ns[direction], work.end - work.start);
    }
  }
  WriteEvent(s, work, kind, found.stream, 0, found.launch_ns, bytes,
             static_cast<uint8_t>(direction));
  if (found.ticket != 0) Finish(s, found.stream, found.ticket, MC_GPU_HOST_RECORD, now);
}

void OnRecord(State& s, const CUpti_Activity* record, uint64_t now) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
    case CUPTI_ACTIVITY_KIND_KERNEL:
      return OnKernel(s, record, now);
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return OnCopyOrSet(s, record, s.layout->copy, MC_GPU_WORK_COPY, now);
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
      return OnCopyOrSet(s, record, s.layout->peer, MC_GPU_WORK_COPY, now);
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return OnCopyOrSet(s, record, s.layout->set, MC_GPU_WORK_MEMSET, now);
    case CUPTI_ACTIVITY_KIND_OVERHEAD: {
      const auto start = Field<uint64_t>(record, s.layout->overhead_start);
      const auto end = Field<uint64_t>(record, s.layout->overhead_end);
      if (end > start) board::Bump(&s.board.header->overhead_ns, end - start);
      return;
    }
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION:
      return;  // counted as a record; the callbacks say the same, earlier
    default:   // an enum of CUPTI's
      Count(s, MC_GPU_LOSS_UNKNOWN_KIND);
  }
}

uint64_t ReadBuffer(State& s, uint32_t index, uint64_t now) {
  BufferState& state = s.buffer_state[index];
  uint8_t* bytes = s.buffers + size_t{index} * kBufferBytes;
  const uint64_t valid = state.valid_bytes.load(std::memory_order_relaxed);
  const uint64_t context = state.context.load(std::memory_order_relaxed);
  uint64_t records = 0;
  if (s.layout != nullptr && valid > 0) {
    CUpti_Activity* record = nullptr;
    CUptiResult result;
    while ((result = s.cupti.cuptiActivityGetNextRecord(bytes, valid, &record)) == CUPTI_SUCCESS) {
      OnRecord(s, record, now);
      ++records;
    }
    if (result != CUPTI_ERROR_MAX_LIMIT_REACHED) Count(s, MC_GPU_LOSS_UNKNOWN_KIND);
  }
  // CUPTI must not be asked about a context that is gone.
  bool alive = context == 0;
  for (uint32_t i = 0; i < MC_GPU_MAX_CONTEXTS && !alive; ++i) {
    alive = s.contexts[i].life.load(std::memory_order_acquire) == MC_GPU_ALIVE &&
            s.contexts[i].cu_context.load(std::memory_order_relaxed) == context;
  }
  if (alive) {
    size_t dropped = 0;
    if (s.cupti.cuptiActivityGetNumDroppedRecords(reinterpret_cast<CUcontext>(context),
                                                  state.stream_id.load(std::memory_order_relaxed),
                                                  &dropped) == CUPTI_SUCCESS &&
        dropped > 0) {
      Count(s, MC_GPU_LOSS_DROPPED, dropped);
    }
  } else {
    Count(s, MC_GPU_LOSS_LATE_BUFFER);
  }
  return records;
}

}  // namespace

uint64_t CUPTIAPI OnTimestamp() { return board::SystemClock(); }

void CUPTIAPI OnBufferRequested(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = nullptr;
  *size = 0;
  *max_records = 0;
  State* s = Active();
  if (s == nullptr) return;
  const uint32_t index = s->buffer_pool.Take();
  if (index == board::kNoIndex) return Count(*s, MC_GPU_LOSS_POOL_EMPTY);
  s->buffer_state[index].lent.store(1, std::memory_order_release);
  *buffer = s->buffers + size_t{index} * kBufferBytes;
  *size = kBufferBytes;
}

void CUPTIAPI OnBufferCompleted(CUcontext context, uint32_t stream_id, uint8_t* buffer, size_t size,
                                size_t valid_size) {
  (void)size;
  State* s = Active();
  if (s == nullptr || buffer == nullptr) return;
  const auto at = static_cast<uint64_t>(buffer - s->buffers);
  if (buffer < s->buffers || at >= uint64_t{kBuffers} * kBufferBytes || at % kBufferBytes != 0) {
    return Count(*s, MC_GPU_LOSS_FOREIGN_BUFFER);
  }
  const auto index = static_cast<uint32_t>(at / kBufferBytes);
  BufferState& state = s->buffer_state[index];
  if (state.lent.exchange(0, std::memory_order_acq_rel) == 0) {
    return Count(*s, MC_GPU_LOSS_FOREIGN_BUFFER);
  }
  state.context.store(reinterpret_cast<uint64_t>(context), std::memory_order_relaxed);
  state.stream_id.store(stream_id, std::memory_order_relaxed);
  state.valid_bytes.store(valid_size < kBufferBytes ? valid_size : kBufferBytes,
                          std::memory_order_relaxed);
  uint32_t head = s->completed.load(std::memory_order_relaxed);
  do {
    state.next.store(head, std::memory_order_relaxed);
  } while (!s->completed.compare_exchange_weak(head, index + 1, std::memory_order_acq_rel,
                                               std::memory_order_relaxed));
}

uint64_t ReadBuffers(State& s) {
  // Newest first; turned around, so that they are read in the order they came.
  uint32_t at = s.completed.exchange(0, std::memory_order_acq_rel);
  uint32_t first = 0;
  while (at != 0) {
    const uint32_t next = s.buffer_state[at - 1].next.load(std::memory_order_relaxed);
    s.buffer_state[at - 1].next.store(first, std::memory_order_relaxed);
    first = at;
    at = next;
  }
  const uint64_t now = board::SystemClock();
  uint64_t records = 0;
  while (first != 0) {
    const uint32_t index = first - 1;
    first = s.buffer_state[index].next.load(std::memory_order_relaxed);
    records += ReadBuffer(s, index, now);
    s.buffer_pool.Return(index);
  }
  if (records > 0) board::Bump(&s.board.header->records, records);
  return records;
}

void ReclaimBuffers(State& s) {
  for (uint32_t i = 0; i < kBuffers; ++i) {
    if (s.buffer_state[i].lent.exchange(0, std::memory_order_acq_rel) != 0) {
      s.buffer_pool.Return(i);
    }
  }
}

}  // namespace mycroft::agent
