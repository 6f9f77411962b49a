// SPDX-License-Identifier: Apache-2.0
//
// What the library remembers, and who may write what. One State per process, mapped in
// init and never freed (a callback may be under way at any time); all zero is its
// initial value.
//
//   application's threads   callbacks.cc: launches, waits, queries, streams, contexts
//   CUPTI's threads         records.cc: take a buffer from the pool, hand it over
//   our own thread          helper.cc: arms and releases; records.cc: reads the buffers
//
// Callbacks are wait-free: no lock, no allocation, no system call, except the first of a
// thread (its number) and the first use of a stream or context (CUPTI is asked for its
// number; it may do what it likes).
#ifndef MYCROFT_CUPTI_AGENT_STATE_H_
#define MYCROFT_CUPTI_AGENT_STATE_H_

#include <atomic>
#include <cstdint>

#include "cupti/agent/calls.h"
#include "cupti/agent/cupti_library.h"
#include "cupti/agent/layout.h"
#include "cupti/agent/nccl_kernels.h"
#include "cupti/agent/packed_table.h"
#include "cupti/board/clock.h"
#include "cupti/board/gpu_board.h"
#include "cupti/board/line.h"
#include "cupti/board/pool.h"

namespace mycroft::agent {

using board::AddShared;
using board::Get;
using board::LineWrite;
using board::Raise;
using board::Set;
using board::SharedLineWrite;

constexpr uint32_t kRing = 1024;  // launches remembered per stream: slot = ticket % kRing
constexpr uint32_t kCudaEvents = 8192;
constexpr uint32_t kMaxOpen = 4;   // calls of the driver within each other
constexpr uint32_t kBuffers = 64;  // activity buffers
constexpr uint32_t kBufferBytes = 256u << 10;
constexpr uint32_t kBufferAlign = 64;  // CUPTI wants 8

// A launch that may still be unfinished. `ticket` is stored last (0 while it is written).
struct Launch {
  std::atomic<uint64_t> ticket;
  std::atomic<uint64_t> launch_ns;
  std::atomic<uint32_t> correlation;
  std::atomic<uint16_t> name;
  std::atomic<uint8_t> work;  // enum mc_gpu_work
  std::atomic<uint8_t> copy;
  std::atomic<uint32_t> kib;
};

struct StreamState {
  // Launch calls that were left. Where it equals last_ticket no call is under way, and
  // all tickets so far are in the stream: that ticket is kept as `quiescent`, and it is
  // what a synchronisation that begins now waits for at least.
  std::atomic<uint64_t> exited;
  std::atomic<uint64_t> quiescent;
  std::atomic<uint64_t> key;     // in by_handle
  std::atomic<uint64_t> id_key;  // in by_id; 0 none
  std::atomic<uint64_t> cu_context;
  std::atomic<uint32_t> life;  // enum mc_gpu_life
  std::atomic<uint32_t> context;
  std::atomic<uint32_t> device;
  // Our own thread only: the last launch that a record was matched with.
  uint64_t matched_ticket;
  uint32_t matched_correlation;
  Launch ring[kRing];
};

struct ContextState {
  std::atomic<uint32_t> life;
  std::atomic<uint32_t> uid;
  std::atomic<uint32_t> device;
  std::atomic<uint64_t> cu_context;
};

// Written by its thread only.
struct ThreadState {
  std::atomic<uint32_t> tid;
  board::Anchor anchor;
  uint32_t depth;           // waits it is inside of (a runtime's may nest)
  bool node_created;        // a node of a graph, since the launch call was entered
  uint32_t open[kMaxOpen];  // correlation ids of the calls it is inside of
  uint32_t opened;
  uint64_t waits_for[MC_GPU_MAX_STREAMS];  // tickets, when it waits for a context
};

// A buffer on its way from CUPTI to our thread.
struct BufferState {
  std::atomic<uint32_t> lent;  // 1: CUPTI has it
  std::atomic<uint32_t> next;  // index + 1 of the one handed over before; 0: none
  std::atomic<uint64_t> context;
  std::atomic<uint32_t> stream_id;
  std::atomic<uint64_t> valid_bytes;
};

struct State {
  uint32_t pid;
  uint32_t epoch;
  CuptiFunctions cupti;
  const RecordLayout* layout;  // null: records cannot be read
  uint32_t cupti_version;
  bool chained;
  mc_gpu_level base_level;  // of MYCROFT_CUPTI
  NcclKernels nccl;
  board::GpuBoard board;
  CUpti_SubscriberHandle subscriber;  // our own thread and init only
  std::atomic<uint32_t> releasing;    // see helper.cc

  uint8_t call_of[kCallIds];    // index into kCalls + 1
  PackedTable<1024> by_handle;  // stream handle -> line
  PackedTable<1024> by_id;      // context and CUPTI's stream number -> line
  PackedTable<256> by_uid;      // CUPTI's context number -> line
  PackedTable<4096> by_name;    // hash of name and device -> line
  PackedTable<16384> by_event;  // CUevent -> index into cuda_events
  board::IndexPool<kCudaEvents> event_pool;
  std::atomic<uint64_t> cuda_events[kCudaEvents];  // stream and ticket, see Token
  std::atomic<uint32_t> threads_next, contexts_next, streams_next, names_next;
  std::atomic<uint32_t> streams_full;  // 1: none can be had until one is destroyed
  ContextState contexts[MC_GPU_MAX_CONTEXTS];
  ThreadState threads[MC_GPU_MAX_THREADS];
  StreamState streams[MC_GPU_MAX_STREAMS];

  uint8_t* buffers;  // kBuffers x kBufferBytes
  board::IndexPool<kBuffers> buffer_pool;
  BufferState buffer_state[kBuffers];
  int64_t clock_offset;  // our own thread only: CLOCK_MONOTONIC minus the clock of records
  std::atomic<uint32_t> completed;  // index + 1 of the last one handed over; 0: none

  std::atomic<uint32_t> wake;     // futex of our own thread
  std::atomic<uint32_t> exiting;  // 1: stop; 2: it has stopped
};

// Null: not initialised, off, or a child after fork.
extern std::atomic<State*> g_state;
inline State* Active() { return g_state.load(std::memory_order_acquire); }

inline void Count(State& s, mc_gpu_loss cause, uint64_t by = 1) {
  AddShared(&s.board.header->lost[cause], by);
}
inline void NoteError(State& s, mc_gpu_cupti_call call, CUptiResult result) {
  if (result == CUPTI_SUCCESS) return;
  Set(&s.board.header->error_call, static_cast<uint32_t>(call));
  Set(&s.board.header->error, static_cast<uint32_t>(result));
}

// The calling thread, registered on its first call. Null: the table is full.
struct ThreadSlot {
  uint32_t epoch = 0;
  uint32_t index = 0;  // MC_GPU_MAX_THREADS: no line
};
// Initial-exec: no allocation on a thread's first access.
extern constinit thread_local ThreadSlot t_slot __attribute__((tls_model("initial-exec")));
ThreadState* RegisterThread(State& s);
inline ThreadState* Self(State& s) {
  if (__builtin_expect(t_slot.epoch != s.epoch, 0)) return RegisterThread(s);
  return t_slot.index < MC_GPU_MAX_THREADS ? &s.threads[t_slot.index] : nullptr;
}
inline uint64_t Now(ThreadState* t) { return board::Now(t != nullptr ? &t->anchor : nullptr); }

// Stream and ticket in one word: what an entry callback tells its exit callback, and
// what a CUDA event stands for. 0: nothing.
inline uint64_t Token(uint32_t stream, uint64_t ticket) {
  return uint64_t{stream + 1} << 48 | (ticket & kKeyMask);
}
inline uint32_t TokenStream(uint64_t token) { return static_cast<uint32_t>(token >> 48) - 1; }
inline uint64_t TokenTicket(uint64_t token) { return token & kKeyMask; }

// ---- streams.cc ---------------------------------------------------------------------

// Line of the context; kNotFound: no line. `context` may be null when it is known.
uint32_t FindContext(State& s, uint32_t uid, CUcontext context, uint64_t now);
// Line of the stream; kNotFound: no line (counted).
uint32_t FindStream(State& s, ThreadState* t, uint32_t context_uid, CUcontext context,
                    uint64_t handle, bool per_thread, uint64_t now);
uint32_t FindStreamById(State& s, uint32_t context_uid, uint32_t stream_id);
void DestroyStream(State& s, uint64_t handle, uint64_t now);
void DestroyContext(State& s, CUcontext context, uint64_t now);
// Line of the kernel's name on that device; 0: unknown.
uint16_t FindName(State& s, const char* name, uint32_t device);

// Everything up to `ticket` is finished.
void Finish(State& s, uint32_t stream, uint64_t ticket, mc_gpu_host_call by, uint64_t now);
// `ticket` was not finished at `now`.
void NoteBusy(State& s, uint32_t stream, uint64_t ticket, mc_gpu_host_call by, uint64_t now);
// The launch with that ticket, in the board's `oldest`, if it is still remembered.
void PinOldest(State& s, uint32_t stream, uint64_t ticket);

// ---- callbacks.cc -------------------------------------------------------------------

void CUPTIAPI OnCallback(void* user, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                         const void* data);

// ---- records.cc ---------------------------------------------------------------------

void CUPTIAPI OnBufferRequested(uint8_t** buffer, size_t* size, size_t* max_records);
void CUPTIAPI OnBufferCompleted(CUcontext context, uint32_t stream_id, uint8_t* buffer, size_t size,
                                size_t valid_size);
uint64_t CUPTIAPI OnTimestamp();
// Reads the buffers handed over so far. Our own thread only. Returns the records read.
uint64_t ReadBuffers(State& s);
// Takes back what CUPTI still had when it was finalized.
void ReclaimBuffers(State& s);

// ---- helper.cc ----------------------------------------------------------------------

// Subscribes and enables the callbacks; the state goes to the board.
bool Subscribe(State& s);
[[nodiscard]] bool StartHelper(State& s);
// At exit callbacks, while a release is wanted: detaches from the safe place.
void DetachFromCallback(State& s);
// Bounded (100 ms): CUPTI must not be called any more once the process is exiting.
void StopHelper(State& s);

}  // namespace mycroft::agent

#endif  // MYCROFT_CUPTI_AGENT_STATE_H_
