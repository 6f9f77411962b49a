// SPDX-License-Identifier: Apache-2.0
//
// The private side of the plugin: what it must remember to write the board. One
// mapping of fixed size, made in the first init (all zero is the initial state),
// never freed while a host may be inside a callback; a child after fork starts
// with none. The board is written from here, never read back for a decision that
// memory safety rests on.
//
// Who writes what: a ProxyOpRecord, its Tracker and its FlowState belong to the
// progress thread of the communicator; an OpState's line belongs to whoever holds
// a pin (see PinOp); a ThreadState belongs to its thread.
#ifndef MYCROFT_CUPTI_NCCL_STATE_H_
#define MYCROFT_CUPTI_NCCL_STATE_H_

#include <atomic>
#include <cstdint>

#include "bpf/abi/board.h"
#include "cupti/board/board.h"
#include "cupti/board/line.h"
#include "cupti/board/clock.h"
#include "cupti/nccl/handle.h"
#include "cupti/nccl/mask.h"
#include "cupti/board/pool.h"

namespace mycroft::nccl {

using board::Anchor;
using board::CalibrateClock;
using board::IndexPool;
using board::kNoIndex;

constexpr uint32_t kMaxProxyOps = 32768;  // open at once, most of them queued
constexpr uint32_t kMaxTrackers = 4096;   // in progress at once
constexpr uint32_t kTrackedSteps = 16;    // NCCL has at most 8 in flight per flow
constexpr uint32_t kMaxPending = 1024;    // per communicator, see CommState
constexpr uint32_t kMaxPeers = 1024;      // per communicator, power of two
constexpr uint32_t kApiRing = 16384;      // power of two
constexpr uint32_t kFlowHash = 32768;     // power of two
constexpr uint32_t kMaxProbe = 64;
constexpr uint16_t kNoComm = UINT16_MAX;

// Counts operations per peer and direction: NCCL numbers collectives only.
struct PeerCounter {
  std::atomic<uint32_t> key;  // peer + 1; 0 = free
  std::atomic<uint32_t> next[2];
};

struct alignas(64) CommState {
  std::atomic<uint32_t> generation;
  std::atomic<bool> active;
  std::atomic<uint64_t> coll_next;
  // Receives are announced for every transport with a proxy, but only NET ever
  // moves or stops them. Until a flow is known to be NET its receives wait here,
  // oldest first, and the oldest is dropped when there are too many.
  uint32_t pending_first, pending_last, pending_count;  // index + 1; 0 = none
  PeerCounter peers[kMaxPeers];
};

struct alignas(64) ThreadState {
  Anchor anchor;
  uint32_t line;  // in the board
  std::atomic<uint32_t> tid;
  uint32_t roles;
  // Communicators that this thread's current API group has entered.
  uint64_t touched[MC_BOARD_MAX_COMMS / 64];
};

// id 48 | pins 16. A line is only given to a new operation while nobody holds a
// pin, so that whoever writes it writes the operation that he means.
struct alignas(32) OpState {
  std::atomic<uint64_t> owner;
  uint64_t kernels_started;  // by channel
  uint64_t kernels_stopped;
  uint16_t comm;
};

// An API call that was entered; looked up when its operation starts.
struct ApiState {
  std::atomic<uint64_t> id;  // 0 while written
  std::atomic<uint64_t> enter_ns;
  std::atomic<uint64_t> stream;
  std::atomic<uint64_t> group_id;
};

struct alignas(64) ProxyOpRecord {
  std::atomic<uint32_t> generation;
  uint32_t flow;        // line, or kNoIndex
  uint32_t tracker;     // index, or kNoIndex
  uint32_t next, prev;  // in the list of its flow or of pending receives; index + 1
  uint32_t total;
  uint32_t chunk_bytes;
  int32_t peer;
  uint64_t op_id;  // 0 unknown
  uint64_t append_ns;
  uint32_t owner_pid;
  uint16_t comm;
  uint8_t channel;
  uint8_t direction;
  bool progressed;
  bool counted;  // on the operation and the flow; holds a pin when op_id is not 0
};
static_assert(sizeof(ProxyOpRecord) == 64);

// How far a step is. Send and receive walk the same way:
//            kPosted      kReady         kTransmitted
//   send     SendGPUWait  SendPeerWait   SendWait
//   receive  RecvWait     RecvFlushWait  RecvGPUWait
enum class Stage : uint8_t { kNone, kStarted, kPosted, kReady, kTransmitted, kStopped };

struct Step {
  uint64_t posted_ns;
  uint64_t ready_ns;
  uint64_t transmitted_ns;
  uint32_t number;
  Stage stage;
};
static_assert(sizeof(Step) == 32);

// The steps of one proxy operation in progress, keyed by number modulo the ring.
struct alignas(64) Tracker {
  Step steps[kTrackedSteps];
  uint32_t posted, ready, transmitted, done;
  uint32_t head;         // lowest number not yet stopped
  uint32_t started_end;  // highest number started, plus one
  uint64_t head_since_ns;
  uint64_t first_ns, final_ns;  // send: transmitted; receive: ready
  uint64_t wait_ns[3];          // so far, by stage left
  uint64_t last_chained_ns;     // as in FlowState, where there is no flow
  uint64_t last_stop_ns;
};

struct alignas(64) FlowState {
  std::atomic<uint64_t> key;  // 0 = free
  std::atomic<uint32_t> owner_pid;
  uint32_t hash_slot;
  uint32_t head, first, last;  // records of open proxy operations, index + 1
  uint32_t open;
  uint64_t head_since_ns;
  uint64_t last_chained_ns;  // send: last SendWait; receive: last RecvFlushWait
  uint64_t last_stop_ns;     // of a step
};

struct State {
  board::Board board;
  uint32_t epoch;  // differs between the states of one process
  uint32_t pid;
  uint32_t api_version;
  uint8_t salt;
  std::atomic<uint32_t> level;
  std::atomic<uint32_t> request_seen;
  // Apart from the above, which every callback reads.
  alignas(64) std::atomic<uint64_t> api_next;
  std::atomic<uint32_t> threads_next;  // registrations tried
  IndexPool<kMaxProxyOps> proxy_op_pool;
  IndexPool<kMaxTrackers> tracker_pool;
  IndexPool<MC_BOARD_MAX_FLOWS> flow_pool;
  ThreadState threads[MC_BOARD_MAX_THREADS];
  OpState ops[MC_BOARD_MAX_OPS];
  FlowState flows[MC_BOARD_MAX_FLOWS];
  std::atomic<uint32_t> flow_hash[kFlowHash];  // line + 1; 0 empty; UINT32_MAX deleted
  ApiState api[kApiRing];
  ProxyOpRecord proxy_ops[kMaxProxyOps];
  Tracker trackers[kMaxTrackers];
  CommState comms[MC_BOARD_MAX_COMMS];
};

// Null: not initialised, off, or a child after fork.
extern std::atomic<State*> g_state;

inline State* Active() { return g_state.load(std::memory_order_acquire); }

inline void Count(State& s, mc_loss cause) {
  board::AddShared(&s.board.header->lost[cause], uint64_t{1});
}

// The calling thread, registered in the board on its first call. Null when the
// table of threads is full.
struct ThreadSlot {
  uint32_t epoch = 0;
  uint32_t index = 0;  // MC_BOARD_MAX_THREADS: no line
};
// Initial-exec: no allocation on a thread's first access. 8 bytes of the surplus
// that the loader keeps for this.
extern constinit thread_local ThreadSlot t_slot __attribute__((tls_model("initial-exec")));
ThreadState* RegisterThread(State& s);

inline ThreadState* Self(State& s) {
  if (__builtin_expect(t_slot.epoch != s.epoch, 0)) return RegisterThread(s);
  return t_slot.index < MC_BOARD_MAX_THREADS ? &s.threads[t_slot.index] : nullptr;
}
inline uint64_t Now(ThreadState* t) { return Now(t != nullptr ? &t->anchor : nullptr); }
void AddRole(State& s, ThreadState* t, uint32_t role);

// What every operation-level callback does: heartbeat, and the agent's wishes.
void Tick(State& s, uint64_t now);

// Index of an active communicator of this process, or kNoComm.
uint16_t FindComm(State& s, uint64_t context);

inline bool OpIsLive(State& s, uint64_t id) {
  return id != 0 &&
         s.ops[id & (MC_BOARD_MAX_OPS - 1)].owner.load(std::memory_order_acquire) >> 16 == id;
}
// Keeps the operation on its line until UnpinOp. Null when it is no longer there.
mc_board_op* PinOp(State& s, uint64_t id);
inline void UnpinOp(State& s, uint64_t id) {
  s.ops[id & (MC_BOARD_MAX_OPS - 1)].owner.fetch_sub(1, std::memory_order_release);
}

// proxy.cc: drops everything of a communicator that is being finalized.
void ReleaseFlows(State& s, uint16_t comm, uint64_t now);
void StopProxyOp(State& s, const Handle& h);
void StopProxyStep(State& s, const Handle& h);
void RecordProxyOp(State& s, const Handle& h);
void RecordProxyStep(State& s, const Handle& h, EventState state, const StateArgs* args);

}  // namespace mycroft::nccl

#endif  // MYCROFT_CUPTI_NCCL_STATE_H_
