// SPDX-License-Identifier: Apache-2.0
//
// Contexts, streams and kernel names: lines of the board found by what CUPTI gives us,
// and what is known of the end of a stream's work.
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cupti/agent/state.h"
#include "cupti/board/thread_table.h"

namespace mycroft::agent {
namespace {

constexpr uint64_t kSpecial = uint64_t{1} << 47;  // no pointer of a process has this bit
constexpr uint64_t kPerThread = uint64_t{1} << 46;
constexpr uint32_t kUnknownId = UINT32_MAX;

uint64_t ContextKey(uint32_t uid) { return (uint64_t{uid} + 1) & kKeyMask; }
uint64_t IdKey(uint32_t context_uid, uint32_t stream_id) {
  return (uint64_t{1} << 47 | uint64_t{context_uid & 0x7FFF} << 32 | stream_id) & kKeyMask;
}

// A line never used, else the one destroyed first. kNotFound: all are in use.
template <class Private, class Line>
uint32_t TakeLine(Private* states, const Line* lines, uint32_t capacity,
                  std::atomic<uint32_t>* next, uint32_t* used) {
  if (next->load(std::memory_order_relaxed) < capacity) {
    const uint32_t n = next->fetch_add(1, std::memory_order_relaxed);
    if (n < capacity) {
      states[n].life.store(MC_GPU_ALIVE, std::memory_order_relaxed);
      Raise(used, n + 1);
      return n;
    }
  }
  for (int tries = 0; tries < 4; ++tries) {
    uint32_t oldest = kNotFound;
    uint64_t oldest_ns = UINT64_MAX;
    for (uint32_t i = 0; i < capacity; ++i) {
      if (states[i].life.load(std::memory_order_acquire) != MC_GPU_DESTROYED) continue;
      const uint64_t t = Get(&lines[i].destroyed_ns);
      if (t < oldest_ns) {
        oldest_ns = t;
        oldest = i;
      }
    }
    if (oldest == kNotFound) return kNotFound;
    uint32_t expected = MC_GPU_DESTROYED;
    if (states[oldest].life.compare_exchange_strong(expected, MC_GPU_ALIVE,
                                                    std::memory_order_acq_rel)) {
      return oldest;
    }
  }
  return kNotFound;
}

// Tells equal from unequal streams without giving an address of the process away.
uint64_t HashHandle(uint64_t key) {
  const uint64_t x = Mix(key);
  return x != 0 ? x : 1;
}

uint32_t RegisterStream(State& s, uint64_t key, CUcontext context, uint32_t context_line,
                        uint64_t handle, bool per_thread, mc_gpu_stream_kind kind, uint64_t now) {
  if (s.streams_full.load(std::memory_order_relaxed) != 0) {
    Count(s, MC_GPU_LOSS_STREAM_TABLE_FULL);
    return kNotFound;
  }
  const uint32_t index = TakeLine(s.streams, s.board.streams, MC_GPU_MAX_STREAMS, &s.streams_next,
                                  &s.board.header->streams_used);
  if (index == kNotFound) {
    s.streams_full.store(1, std::memory_order_relaxed);
    Count(s, MC_GPU_LOSS_STREAM_TABLE_FULL);
    return kNotFound;
  }
  StreamState& state = s.streams[index];
  mc_gpu_stream* line = &s.board.streams[index];
  const ContextState* owner = context_line != kNotFound ? &s.contexts[context_line] : nullptr;
  // Tickets go on where the line's former stream ended, so that whatever still speaks of
  // that one (a CUDA event) says nothing of this one.
  const uint64_t last = Get(&line->last_ticket);
  state.key.store(key, std::memory_order_relaxed);
  state.id_key.store(0, std::memory_order_relaxed);
  state.cu_context.store(reinterpret_cast<uint64_t>(context), std::memory_order_relaxed);
  state.context.store(context_line, std::memory_order_relaxed);
  state.device.store(owner != nullptr ? owner->device.load(std::memory_order_relaxed) : MC_GPU_NONE,
                     std::memory_order_relaxed);
  state.exited.store(last, std::memory_order_relaxed);
  state.quiescent.store(last, std::memory_order_relaxed);
  {
    SharedLineWrite write(&line->launch_seq);
    for (uint64_t* field :
         {&line->last_launch_ns, &line->kernels, &line->nccl_kernels, &line->graphs, &line->memsets,
          &line->voids, &line->wait_ticket, &line->wait_at}) {
      Set(field, 0);
    }
    Set(&line->capturing, 0);
    for (int i = 0; i < MC_GPU_COPY_COUNT; ++i) {
      Set(&line->copies[i], 0);
      Set(&line->copy_bytes[i], 0);
    }
  }
  {
    SharedLineWrite write(&line->finish_seq);
    Set(&line->finished_ticket, last);
    for (uint64_t* field : {&line->finished_ns, &line->busy_ticket, &line->busy_ns,
                            &line->last_wait_ns, &line->last_wait_took_ns}) {
      Set(field, 0);
    }
    for (uint32_t* field : {&line->finished_by, &line->busy_by, &line->last_wait}) Set(field, 0);
  }
  {
    SharedLineWrite write(&line->record_seq);
    auto* words = reinterpret_cast<uint64_t*>(&line->record_seq);
    constexpr size_t kWords =
        (offsetof(mc_gpu_stream, oldest) - offsetof(mc_gpu_stream, record_seq)) / 8;
    for (size_t i = 1; i < kWords; ++i) Set(&words[i], 0);
  }
  uint32_t id = kUnknownId;
  if (s.cupti.cuptiGetStreamIdEx != nullptr && context != nullptr) {
    if (s.cupti.cuptiGetStreamIdEx(context, reinterpret_cast<CUstream>(handle), per_thread ? 1 : 0,
                                   &id) != CUPTI_SUCCESS) {
      id = kUnknownId;
    }
  }
  const uint32_t uid = owner != nullptr ? owner->uid.load(std::memory_order_relaxed) : 0;
  if (id != kUnknownId) {
    const uint64_t id_key = IdKey(uid, id);
    const uint32_t other = s.by_id.Find(id_key);
    if (other != kNotFound) s.by_id.Remove(id_key, other);
    s.by_id.Insert(id_key, index);
    state.id_key.store(id_key, std::memory_order_relaxed);
  }
  {
    LineWrite write(&line->seq);
    Set(&line->generation, Get(&line->generation) + 1);
    Set(&line->life, static_cast<uint32_t>(MC_GPU_ALIVE));
    Set(&line->context, context_line != kNotFound ? context_line : MC_GPU_NONE);
    Set(&line->stream_id, id);
    Set(&line->kind, static_cast<uint32_t>(kind));
    Set(&line->handle, HashHandle(key));
    Set(&line->created_ns, now);
    Set(&line->destroyed_ns, 0);
  }
  const uint32_t in_force = s.by_handle.Insert(key, index);
  if (in_force != index) {  // another thread was first, or the table is full
    LineWrite write(&line->seq);
    Set(&line->life, static_cast<uint32_t>(MC_GPU_DESTROYED));
    Set(&line->destroyed_ns, now);
    s.by_id.Remove(state.id_key.load(std::memory_order_relaxed), index);
    state.life.store(MC_GPU_DESTROYED, std::memory_order_release);
    if (in_force == kNotFound) {
      Count(s, MC_GPU_LOSS_STREAM_TABLE_FULL);
    } else if (id != kUnknownId) {
      s.by_id.Insert(IdKey(uid, id), in_force);
    }
  }
  return in_force;
}

void RetireStream(State& s, uint32_t index, uint64_t now) {
  StreamState& state = s.streams[index];
  mc_gpu_stream* line = &s.board.streams[index];
  s.by_handle.Remove(state.key.load(std::memory_order_relaxed), index);
  {
    LineWrite write(&line->seq);
    Set(&line->life, static_cast<uint32_t>(MC_GPU_DESTROYED));
    Set(&line->destroyed_ns, now);
  }
  // by_id stays until the line is used again: records of it may still come.
  state.life.store(MC_GPU_DESTROYED, std::memory_order_release);
  s.streams_full.store(0, std::memory_order_relaxed);
}

}  // namespace

uint32_t FindContext(State& s, uint32_t uid, CUcontext context, uint64_t now) {
  const uint64_t key = ContextKey(uid);
  const uint32_t found = s.by_uid.Find(key);
  if (found != kNotFound || context == nullptr) return found;
  const uint32_t index = TakeLine(s.contexts, s.board.contexts, MC_GPU_MAX_CONTEXTS,
                                  &s.contexts_next, &s.board.header->contexts_used);
  if (index == kNotFound) {
    Count(s, MC_GPU_LOSS_CONTEXT_TABLE_FULL);
    return kNotFound;
  }
  uint32_t device = MC_GPU_NONE;
  if (s.cupti.cuptiGetDeviceId(context, &device) != CUPTI_SUCCESS || device >= MC_GPU_MAX_DEVICES) {
    device = MC_GPU_NONE;
  }
  ContextState& state = s.contexts[index];
  const uint32_t old_uid = state.uid.load(std::memory_order_relaxed);
  if (old_uid != uid) s.by_uid.Remove(ContextKey(old_uid), index);
  state.uid.store(uid, std::memory_order_relaxed);
  state.device.store(device, std::memory_order_relaxed);
  state.cu_context.store(reinterpret_cast<uint64_t>(context), std::memory_order_relaxed);
  mc_gpu_context* line = &s.board.contexts[index];
  {
    LineWrite write(&line->seq);
    Set(&line->uid, uid);
    Set(&line->device, device);
    Set(&line->life, static_cast<uint32_t>(MC_GPU_ALIVE));
    Set(&line->created_ns, now);
    Set(&line->destroyed_ns, 0);
  }
  if (device != MC_GPU_NONE) {
    mc_gpu_device* gpu = &s.board.devices[device];
    if (Get(&gpu->known) == 0) {
      SharedLineWrite write(&gpu->seq);
      Set(&gpu->ordinal, device);
      Set(&gpu->known, 1);
    }
    Raise(&s.board.header->devices_used, device + 1);
  }
  const uint32_t in_force = s.by_uid.Insert(key, index);
  if (in_force != index) {
    LineWrite write(&line->seq);
    Set(&line->life, static_cast<uint32_t>(MC_GPU_DESTROYED));
    Set(&line->destroyed_ns, now);
    state.life.store(MC_GPU_DESTROYED, std::memory_order_release);
  }
  return in_force;
}

uint32_t FindStream(State& s, ThreadState* t, uint32_t context_uid, CUcontext context,
                    uint64_t handle, bool per_thread, uint64_t now) {
  uint64_t key = handle & kKeyMask;
  mc_gpu_stream_kind kind = MC_GPU_STREAM_CREATED;
  if (handle <= 2) {  // default streams: CU_STREAM_LEGACY is 1, CU_STREAM_PER_THREAD 2
    key = kSpecial | (context_uid & 0xFFFFF);
    kind = MC_GPU_STREAM_LEGACY;
    if (handle == 2 || (handle == 0 && per_thread)) {
      kind = MC_GPU_STREAM_PER_THREAD;
      const uint64_t tid = t != nullptr ? t->tid.load(std::memory_order_relaxed) : 0;
      key |= kPerThread | (tid & 0x3FFFFF) << 20;
    }
  }
  const uint32_t found = s.by_handle.Find(key);
  if (__builtin_expect(found != kNotFound, 1)) return found;
  return RegisterStream(s, key, context, FindContext(s, context_uid, context, now), handle,
                        per_thread, kind, now);
}

uint32_t FindStreamById(State& s, uint32_t context_uid, uint32_t stream_id) {
  return s.by_id.Find(IdKey(context_uid, stream_id));
}

void DestroyStream(State& s, uint64_t handle, uint64_t now) {
  if (handle <= 2) return;
  const uint32_t index = s.by_handle.Find(handle & kKeyMask);
  if (index != kNotFound) RetireStream(s, index, now);
}

void DestroyContext(State& s, CUcontext context, uint64_t now) {
  const auto wanted = reinterpret_cast<uint64_t>(context);
  for (uint32_t i = 0; i < MC_GPU_MAX_CONTEXTS; ++i) {
    ContextState& state = s.contexts[i];
    if (state.life.load(std::memory_order_acquire) != MC_GPU_ALIVE ||
        state.cu_context.load(std::memory_order_relaxed) != wanted) {
      continue;
    }
    for (uint32_t k = 0; k < MC_GPU_MAX_STREAMS; ++k) {
      if (s.streams[k].life.load(std::memory_order_acquire) == MC_GPU_ALIVE &&
          s.streams[k].context.load(std::memory_order_relaxed) == i) {
        RetireStream(s, k, now);
      }
    }
    s.by_uid.Remove(ContextKey(state.uid.load(std::memory_order_relaxed)), i);
    mc_gpu_context* line = &s.board.contexts[i];
    {
      LineWrite write(&line->seq);
      Set(&line->life, static_cast<uint32_t>(MC_GPU_DESTROYED));
      Set(&line->destroyed_ns, now);
    }
    state.life.store(MC_GPU_DESTROYED, std::memory_order_release);
  }
}

// ---- names ----------------------------------------------------------------------------

namespace {

uint64_t Fold(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t Word(const char* at) {
  uint64_t word;
  memcpy(&word, at, 8);
  return word;
}

// All of the name, 16 bytes a step: names of one template differ in the middle.
uint64_t HashName(const char* name, size_t length, uint64_t seed) {
  uint64_t hash = seed ^ (length * 0x9e3779b97f4a7c15ULL);
  for (; length >= 16; length -= 16, name += 16) {
    hash = Fold(Word(name) ^ 0xa0761d6478bd642fULL, Word(name + 8) ^ hash);
  }
  char rest[16] = {};
  memcpy(rest, name, length);
  return Fold(Word(rest) ^ 0xe7037ed1a0b428dbULL, Word(rest + 8) ^ hash);
}

constexpr size_t kLongestName = 4096;

}  // namespace

uint16_t FindName(State& s, const char* name, uint32_t device) {
  if (name == nullptr) return 0;
  const size_t length = strnlen(name, kLongestName);
  const uint64_t key = Mix(HashName(name, length, device + 1)) & kKeyMask;
  if (key == 0) return 0;
  const uint32_t found = s.by_name.Find(key);
  if (__builtin_expect(found != kNotFound, 1)) return static_cast<uint16_t>(found);
  if (s.names_next.load(std::memory_order_relaxed) >= MC_GPU_MAX_NAMES - 1) {
    Count(s, MC_GPU_LOSS_NAME_TABLE_FULL);
    return 0;
  }
  const uint32_t index = s.names_next.fetch_add(1, std::memory_order_relaxed) + 1;
  if (index >= MC_GPU_MAX_NAMES) {
    Count(s, MC_GPU_LOSS_NAME_TABLE_FULL);
    return 0;
  }
  mc_gpu_name* line = &s.board.names[index];
  {
    LineWrite write(&line->seq);
    Set(&line->device, device);
    Set(&line->nccl, s.nccl.Match(name) ? 1 : 0);
    Set(&line->length, static_cast<uint32_t>(length));
    // Words, not bytes: the reader copies words.
    char text[sizeof(line->name)] = {};
    memcpy(text, name, length < sizeof(text) ? length : sizeof(text) - 1);
    auto* words = reinterpret_cast<uint64_t*>(line->name);
    for (size_t i = 0; i < sizeof(text) / 8; ++i) Set(&words[i], Word(text + i * 8));
  }
  Raise(&s.board.header->names_used, index + 1);
  const uint32_t in_force = s.by_name.Insert(key, index);
  return in_force == kNotFound ? 0 : static_cast<uint16_t>(in_force);
}

// ---- the end of work --------------------------------------------------------------------

void PinOldest(State& s, uint32_t stream, uint64_t ticket) {
  const Launch& from = s.streams[stream].ring[ticket % kRing];
  if (from.ticket.load(std::memory_order_acquire) != ticket) return;
  mc_gpu_launch* to = &s.board.streams[stream].oldest;
  SharedLineWrite write(&to->seq);
  Set(&to->correlation, from.correlation.load(std::memory_order_acquire));
  Set(&to->launch_ns, from.launch_ns.load(std::memory_order_acquire));
  Set(&to->name, from.name.load(std::memory_order_acquire));
  Set(&to->work, from.work.load(std::memory_order_acquire));
  Set(&to->copy, from.copy.load(std::memory_order_acquire));
  Set(&to->kib, from.kib.load(std::memory_order_acquire));
  Set(&to->ticket, from.ticket.load(std::memory_order_acquire) == ticket ? ticket : 0);
}

void Finish(State& s, uint32_t stream, uint64_t ticket, mc_gpu_host_call by, uint64_t now) {
  mc_gpu_stream* line = &s.board.streams[stream];
  uint64_t seen = Get(&line->finished_ticket);
  const uint64_t last = __atomic_load_n(&line->last_ticket, __ATOMIC_ACQUIRE);
  if (ticket > last) ticket = last;
  if (ticket <= seen) return;
  uint64_t next = ticket + 1;
  {
    SharedLineWrite write(&line->finish_seq);
    // What never reached the GPU needs no proof.
    while (next <= last) {
      const Launch& launch = s.streams[stream].ring[next % kRing];
      if (launch.ticket.load(std::memory_order_acquire) != next ||
          launch.work.load(std::memory_order_relaxed) != MC_GPU_WORK_VOID) {
        break;
      }
      ++next;
    }
    while (seen < next - 1 &&
           !__atomic_compare_exchange_n(&line->finished_ticket, &seen, next - 1, false,
                                        __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
    }
    if (seen >= next - 1) return;  // others knew more
    Set(&line->finished_by, static_cast<uint32_t>(by));
    Set(&line->finished_ns, now);
  }
  // Soon it will have left the queue.
  if (last >= next + MC_GPU_QUEUE / 2) PinOldest(s, stream, next);
}

void NoteBusy(State& s, uint32_t stream, uint64_t ticket, mc_gpu_host_call by, uint64_t now) {
  mc_gpu_stream* line = &s.board.streams[stream];
  if (ticket == 0 || ticket <= Get(&line->finished_ticket)) return;
  SharedLineWrite write(&line->finish_seq);
  Set(&line->busy_ticket, ticket);
  Set(&line->busy_ns, now);
  Set(&line->busy_by, static_cast<uint32_t>(by));
}

// ---- threads --------------------------------------------------------------------------

ThreadState* RegisterThread(State& s) {
  const auto tid = static_cast<uint32_t>(syscall(SYS_gettid));
  const uint32_t index = board::ClaimThread(s.threads, s.threads_next, s.pid, tid);
  t_slot.epoch = s.epoch;
  t_slot.index = index;
  if (index == MC_GPU_MAX_THREADS) {
    Count(s, MC_GPU_LOSS_THREAD_TABLE_FULL);
    return nullptr;
  }
  ThreadState* t = &s.threads[index];
  t->anchor = board::Anchor{};
  t->depth = 0;
  t->node_created = false;
  t->opened = 0;
  mc_gpu_thread* line = &s.board.threads[index];
  {
    LineWrite write(&line->seq);
    Set(&line->tid, tid);
    Set(&line->call, static_cast<uint32_t>(MC_GPU_HOST_NONE));
    Set(&line->stream, MC_GPU_NONE);
    Set(&line->context, MC_GPU_NONE);
    for (uint64_t* field : {&line->enter_ns, &line->ticket, &line->last_leave_ns, &line->calls}) {
      Set(field, 0);
    }
    Set(&line->last_call, static_cast<uint32_t>(MC_GPU_HOST_NONE));
  }
  Raise(&s.board.header->threads_used, index + 1);
  return t;
}

}  // namespace mycroft::agent
