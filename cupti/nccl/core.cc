// SPDX-License-Identifier: Apache-2.0
#include "cupti/nccl/core.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cupti/board/thread_table.h"
#include "cupti/nccl/names.h"
#include "cupti/nccl/state.h"

namespace mycroft::nccl {

using board::Bump;
using board::BumpSaturated;
using board::Get;
using board::LineWrite;
using board::Raise;
using board::Set;
using board::SharedLineWrite;

std::atomic<State*> g_state{nullptr};
constinit thread_local ThreadSlot t_slot __attribute__((tls_model("initial-exec")));
EventMask g_mask;

namespace {

// Init and finalize against each other; never taken by other callbacks.
pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
uint32_t g_epoch = 0;
bool g_fork_handlers = false;
bool g_clock_ready = false;
mc_level g_level = MC_LEVEL_UNSET;  // of MYCROFT_LEVEL
bool g_level_read = false;
bool g_off = false;

// ---- set-up -------------------------------------------------------------------

void BeforeFork() { pthread_mutex_lock(&g_lock); }
void AfterForkParent() { pthread_mutex_unlock(&g_lock); }
// The child has a copy of our memory, but the board is shared: it must not be
// written by two processes. The child gets a board of its own if it calls init.
void AfterForkChild() {
  g_lock = PTHREAD_MUTEX_INITIALIZER;
  State* s = g_state.exchange(nullptr, std::memory_order_acq_rel);
  if (s == nullptr) return;
  board::Board board = s->board;
  board::Abandon(&board);
  munmap(s, sizeof(State));
}

// Returns a complaint about the variable, or NULL.
const char* ReadLevel() {
  if (g_level_read) return nullptr;
  g_level_read = true;
  const char* text = getenv("MYCROFT_LEVEL");
  g_level = MC_LEVEL_STEPS;
  if (text == nullptr || text[0] == '\0' || strcmp(text, "steps") == 0) return nullptr;
  if (strcmp(text, "ops") == 0) {
    g_level = MC_LEVEL_OPS;
  } else if (strcmp(text, "kernels") == 0) {
    g_level = MC_LEVEL_KERNELS;
  } else if (strcmp(text, "off") == 0) {
    g_level = MC_LEVEL_UNSET;
    g_off = true;
  } else {
    return "MYCROFT_LEVEL is not one of off, ops, steps, kernels; using steps";
  }
  return nullptr;
}

// REQUIRES: g_lock held.
State* CreateState(int api_version) {
  if (!g_clock_ready) {
    CalibrateClock();
    g_clock_ready = true;
  }
  void* memory = mmap(nullptr, sizeof(State), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* s = static_cast<State*>(memory);
  s->pid = static_cast<uint32_t>(getpid());
  s->epoch = ++g_epoch;
  s->api_version = static_cast<uint32_t>(api_version);
  s->salt = static_cast<uint8_t>((s->pid * 2654435761u >> 24) + s->epoch);
  board::BoardFacts facts;
  facts.pid = s->pid;
  facts.profiler_api = static_cast<uint32_t>(api_version);
  facts.created_ns = Now(static_cast<ThreadState*>(nullptr));
  if (!board::Create(facts, &s->board)) {
    munmap(memory, sizeof(State));
    return nullptr;
  }
  if (!g_fork_handlers) {
    pthread_atfork(BeforeFork, AfterForkParent, AfterForkChild);
    g_fork_handlers = true;
  }
  s->level.store(g_level, std::memory_order_relaxed);
  g_state.store(s, std::memory_order_release);
  return s;
}

void SetLevel(State& s, mc_level level) {
  s.level.store(level, std::memory_order_relaxed);
  const int mask = LevelMask(level);
  g_mask.ours.store(mask, std::memory_order_relaxed);
  Set(&s.board.header->level, static_cast<uint32_t>(level));
  Set(&s.board.header->event_mask, static_cast<uint32_t>(mask));
}

// ---- communicators --------------------------------------------------------------

// A line that was never used; else the one that was finalized first. REQUIRES: g_lock held.
uint32_t TakeCommLine(State& s) {
  uint32_t used = Get(&s.board.header->comms_used);
  if (used < MC_BOARD_MAX_COMMS) {
    Set(&s.board.header->comms_used, used + 1);
    return used;
  }
  uint32_t oldest = kNoIndex;
  uint64_t oldest_ns = UINT64_MAX;
  for (uint32_t i = 0; i < MC_BOARD_MAX_COMMS; ++i) {
    if (s.comms[i].active.load(std::memory_order_relaxed)) continue;
    const uint64_t t = Get(&s.board.comms[i].finalize_ns);
    if (t < oldest_ns) {
      oldest_ns = t;
      oldest = i;
    }
  }
  return oldest;
}

// Copies whole words; `from` holds the line's sequence words as they are now.
template <class Line>
void StoreLine(Line* to, const Line& from) {
  static_assert(sizeof(Line) % 8 == 0);
  uint64_t words[sizeof(Line) / 8];
  memcpy(words, &from, sizeof(Line));
  auto* out = reinterpret_cast<uint64_t*>(to);
  for (size_t i = 0; i < sizeof(Line) / 8; ++i) Set(&out[i], words[i]);
}

void WriteNewComm(State& s, uint32_t index, uint32_t generation, const CommFacts& facts) {
  mc_board_comm* line = &s.board.comms[index];
  LineWrite write(&line->seq);
  mc_board_comm fresh = {};
  fresh.seq = Get(&line->seq);
  fresh.generation = generation;
  fresh.comm_id = facts.comm_id;
  fresh.rank = facts.rank;
  fresh.nranks = facts.nranks;
  fresh.nnodes = facts.nnodes;
  fresh.state = MC_COMM_ACTIVE;
  fresh.init_ns = Now(static_cast<ThreadState*>(nullptr));
  if (facts.name != nullptr) {
    memcpy(fresh.name, facts.name, strnlen(facts.name, sizeof(fresh.name) - 1));
  }
  StoreLine(line, fresh);
}

// ---- operations -------------------------------------------------------------------

constexpr uint64_t kPins = 0xFFFF;

bool InFlight(const mc_board_op& op) {
  return Get(&op.stop_ns) == 0 || Get(&op.kernel_started) > Get(&op.kernel_stopped) ||
         Get(&op.proxy_started) > Get(&op.proxy_done);
}

// A fresh id whose line is ours, pinned once; 0 when the next few lines are all
// held by operations still in flight.
uint64_t ClaimOp(State& s) {
  for (int tries = 0; tries < 8; ++tries) {
    const uint64_t id = board::AddShared(&s.board.header->next_op_id, uint64_t{1});
    if (id == 0) continue;
    OpState& op = s.ops[id & (MC_BOARD_MAX_OPS - 1)];
    uint64_t owner = op.owner.load(std::memory_order_acquire);
    if ((owner & kPins) != 0) continue;
    if (!op.owner.compare_exchange_strong(owner, id << 16 | 1, std::memory_order_acq_rel)) continue;
    if (owner != 0 && InFlight(s.board.ops[id & (MC_BOARD_MAX_OPS - 1)])) {
      Count(s, MC_LOSS_OP_EVICTED);
    }
    return id;
  }
  Count(s, MC_LOSS_OP_EVICTED);
  return 0;
}

// The nth operation with this peer in this direction.
uint32_t NextWithPeer(State& s, CommState& comm, int peer, bool send) {
  const uint32_t key = static_cast<uint32_t>(peer) + 1;
  const uint32_t home = (key * 2654435761u >> 16) & (kMaxPeers - 1);
  for (uint32_t i = 0; i < kMaxProbe; ++i) {
    PeerCounter& at = comm.peers[(home + i) & (kMaxPeers - 1)];
    uint32_t seen = at.key.load(std::memory_order_relaxed);
    if (seen == 0 && at.key.compare_exchange_strong(seen, key, std::memory_order_relaxed)) {
      seen = key;
    }
    if (seen == key) return at.next[send].fetch_add(1, std::memory_order_relaxed);
  }
  Count(s, MC_LOSS_FLOW_TABLE_FULL);  // shared with another peer: the number is too high
  return comm.peers[home].next[send].fetch_add(1, std::memory_order_relaxed);
}

// ---- API calls ----------------------------------------------------------------------

constexpr uint64_t kApiTypeMask = 7;
constexpr uint64_t kApiGraph = 8;

constexpr uint64_t kApiTypeGroupApi = 1;
constexpr uint64_t kApiTypeCall = 2;   // CollApi, P2pApi
constexpr uint64_t kApiTypeGroup = 3;  // the legacy one

uint64_t ApiTypeBits(EventType type) {
  if (type == kGroupApi) return kApiTypeGroupApi;
  if (type == kGroup) return kApiTypeGroup;
  return kApiTypeCall;
}
bool IsGroup(uint64_t payload) { return (payload & kApiTypeMask) != kApiTypeCall; }
uint64_t ApiId(uint64_t payload) { return payload >> 4; }

struct ApiLookup {
  uint64_t enter_ns = 0;
  uint64_t stream = 0;
  uint64_t group_id = 0;
};

ApiLookup FindApi(State& s, uint64_t id) {
  ApiState& at = s.api[id & (kApiRing - 1)];
  ApiLookup found;
  if (at.id.load(std::memory_order_acquire) != id) return found;
  found.enter_ns = at.enter_ns.load(std::memory_order_relaxed);
  found.stream = at.stream.load(std::memory_order_relaxed);
  found.group_id = at.group_id.load(std::memory_order_acquire);
  if (at.id.load(std::memory_order_relaxed) != id) return {};  // overwritten meanwhile
  return found;
}

// Tells equal from unequal streams without giving an address of the process away.
uint64_t HashPointer(const void* p) {
  auto x = reinterpret_cast<uint64_t>(p);
  if (x == 0) return 0;
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  x ^= x >> 33;
  return x != 0 ? x : 1;
}

// The thread is inside an API group that concerns this communicator.
void EnterApi(State& s, ThreadState* t, uint16_t comm, uint64_t now) {
  if (t == nullptr || comm == kNoComm) return;
  const uint64_t bit = uint64_t{1} << (comm % 64);
  if ((t->touched[comm / 64] & bit) != 0) return;
  t->touched[comm / 64] |= bit;
  mc_board_comm* line = &s.board.comms[comm];
  SharedLineWrite write(&line->seq);
  Set(&line->in_api, 1);
  Set(&line->api_enter_ns, now);
}

void LeaveApi(State& s, ThreadState* t, uint64_t now) {
  if (t == nullptr) return;
  for (uint32_t w = 0; w < MC_BOARD_MAX_COMMS / 64; ++w) {
    for (uint64_t bits = t->touched[w]; bits != 0; bits &= bits - 1) {
      mc_board_comm* line = &s.board.comms[w * 64 + static_cast<uint32_t>(__builtin_ctzll(bits))];
      SharedLineWrite write(&line->seq);
      Set(&line->in_api, 0);
      Set(&line->api_leave_ns, now);
    }
    t->touched[w] = 0;
  }
}

void StopOp(State& s, uint64_t id) {
  ThreadState* t = Self(s);
  mc_board_op* line = PinOp(s, id);
  if (line == nullptr) return Count(s, MC_LOSS_STALE_HANDLE);
  if (Get(&line->stop_ns) == 0) {
    LineWrite write(&line->seq);
    Set(&line->stop_ns, Now(t));
  }
  UnpinOp(s, id);
}

// ---- kernels --------------------------------------------------------------------------

// `gpu_timer` 0: not known (the event was stopped without its stop state).
void StopKernel(State& s, uint64_t payload, uint64_t gpu_timer) {
  const uint64_t id = payload >> 8;
  const uint64_t bit = uint64_t{1} << (payload & 63);
  ThreadState* t = Self(s);
  mc_board_op* line = PinOp(s, id);
  if (line == nullptr) return Count(s, MC_LOSS_STALE_HANDLE);
  OpState& op = s.ops[id & (MC_BOARD_MAX_OPS - 1)];
  if ((op.kernels_started & bit) != 0 && (op.kernels_stopped & bit) == 0) {
    op.kernels_stopped |= bit;
    LineWrite write(&line->kernel_seq);
    BumpSaturated(&line->kernel_stopped);
    if (gpu_timer > Get(&line->kernel_gpu_stop)) Set(&line->kernel_gpu_stop, gpu_timer);
    Set(&line->kernel_stop_seen_ns, Now(t));
  }
  UnpinOp(s, id);
}

}  // namespace

// ---- shared with proxy.cc ---------------------------------------------------------------

ThreadState* RegisterThread(State& s) {
  const auto tid = static_cast<uint32_t>(syscall(SYS_gettid));
  const uint32_t index = board::ClaimThread(s.threads, s.threads_next, s.pid, tid);
  t_slot.epoch = s.epoch;
  t_slot.index = index;
  if (index >= MC_BOARD_MAX_THREADS) {
    Count(s, MC_LOSS_THREAD_TABLE_FULL);
    return nullptr;
  }
  ThreadState* t = &s.threads[index];
  t->line = index;
  t->roles = 0;
  t->anchor = {};
  memset(t->touched, 0, sizeof(t->touched));
  Raise(&s.board.header->threads_used, index + 1);
  mc_board_thread* line = &s.board.threads[index];
  LineWrite write(&line->seq);
  Set(&line->tid, tid);
  Set(&line->roles, 0);
  Set(&line->first_ns, Now(t));
  return t;
}

void AddRole(State& s, ThreadState* t, uint32_t role) {
  if (t == nullptr || (t->roles & role) != 0) return;
  t->roles |= role;
  mc_board_thread* line = &s.board.threads[t->line];
  LineWrite write(&line->seq);
  Set(&line->roles, t->roles);
}

void Tick(State& s, uint64_t now) {
  Set(&s.board.header->last_callback_ns, now);
  const uint32_t wanted = __atomic_load_n(&s.board.header->requested_level, __ATOMIC_RELAXED);
  if (__builtin_expect(wanted != s.request_seen.load(std::memory_order_relaxed), 0)) {
    s.request_seen.store(wanted, std::memory_order_relaxed);
    if (wanted >= MC_LEVEL_OPS && wanted <= MC_LEVEL_KERNELS) {
      SetLevel(s, static_cast<mc_level>(wanted));
      PublishMask();
    }
  }
  FollowChainedMask();
}

uint16_t FindComm(State& s, uint64_t context) {
  const Handle h = Unpack(context);
  if (h.kind == HandleKind::kUntrackedContext || context == 0) return kNoComm;
  const uint64_t index = h.payload & 0xFFFF;
  if (h.kind != HandleKind::kContext || h.salt != s.salt || index >= MC_BOARD_MAX_COMMS ||
      !s.comms[index].active.load(std::memory_order_acquire) ||
      s.comms[index].generation.load(std::memory_order_relaxed) != h.payload >> 16) {
    Count(s, MC_LOSS_STALE_HANDLE);
    return kNoComm;
  }
  return static_cast<uint16_t>(index);
}

mc_board_op* PinOp(State& s, uint64_t id) {
  if (id == 0) return nullptr;
  const uint64_t slot = id & (MC_BOARD_MAX_OPS - 1);
  if (s.ops[slot].owner.fetch_add(1, std::memory_order_acq_rel) >> 16 != id) {
    s.ops[slot].owner.fetch_sub(1, std::memory_order_release);
    return nullptr;
  }
  return &s.board.ops[slot];
}

// ---- life of a communicator -----------------------------------------------------------------

uint64_t InitComm(int api_version, const CommFacts& facts, DebugLogger log) {
  pthread_mutex_lock(&g_lock);
  const char* complaint = ReadLevel();
  State* s = Active();
  const bool wanted = !g_off;
  if (s == nullptr && wanted) s = CreateState(api_version);
  uint32_t index = kNoIndex;
  uint32_t generation = 0;
  if (s != nullptr) {
    index = TakeCommLine(*s);
    if (index != kNoIndex) {
      CommState& comm = s->comms[index];
      generation = (comm.generation.load(std::memory_order_relaxed) + 1) & 0xFFFFFF;
      comm.coll_next.store(0, std::memory_order_relaxed);
      for (PeerCounter& peer : comm.peers) {
        if (peer.key.load(std::memory_order_relaxed) == 0) continue;
        peer.key.store(0, std::memory_order_relaxed);
        peer.next[0].store(0, std::memory_order_relaxed);
        peer.next[1].store(0, std::memory_order_relaxed);
      }
      WriteNewComm(*s, index, generation, facts);
      comm.generation.store(generation, std::memory_order_relaxed);
      comm.active.store(true, std::memory_order_release);
    } else {
      Count(*s, MC_LOSS_COMM_TABLE_FULL);
    }
    SetLevel(*s, static_cast<mc_level>(s->level.load(std::memory_order_relaxed)));
  } else {
    g_mask.ours.store(0, std::memory_order_relaxed);
  }
  pthread_mutex_unlock(&g_lock);

  if (log != nullptr) {
    if (complaint != nullptr) log(kLogWarn, kLogInit, __FILE__, __LINE__, "Mycroft: %s", complaint);
    if (s == nullptr && wanted) {
      log(kLogWarn, kLogInit, __FILE__, __LINE__,
          "Mycroft: no memory for the progress board (memfd_create, mmap); this process is not "
          "visible to the agent");
    }
  }
  const uint8_t salt = s != nullptr ? s->salt : 0;
  if (index == kNoIndex) return Pack(HandleKind::kUntrackedContext, salt, 0);
  return Pack(HandleKind::kContext, salt, uint64_t{generation} << 16 | index);
}

void FinalizeComm(uint64_t context) {
  State* s = Active();
  if (s == nullptr) return;
  pthread_mutex_lock(&g_lock);
  const uint16_t index = FindComm(*s, context);
  if (index != kNoComm) {
    const uint64_t now = Now(static_cast<ThreadState*>(nullptr));
    s->comms[index].active.store(false, std::memory_order_release);
    ReleaseFlows(*s, index, now);
    mc_board_comm* line = &s->board.comms[index];
    SharedLineWrite write(&line->seq);
    Set(&line->state, static_cast<uint32_t>(MC_COMM_FINALIZED));
    Set(&line->in_api, 0);
    Set(&line->finalize_ns, now);
  }
  pthread_mutex_unlock(&g_lock);
}

// ---- events -----------------------------------------------------------------------------------

uint64_t StartApi(uint64_t context, uint64_t parent, const ApiFacts& facts) {
  State* s = Active();
  if (s == nullptr) return 0;
  ThreadState* t = Self(*s);
  const uint64_t now = Now(t);
  Tick(*s, now);
  AddRole(*s, t, MC_THREAD_LAUNCH);
  // From v5 on the legacy group is only the launch, inside the API group.
  if (facts.type != kGroup || s->api_version < 5) {
    const bool outermost = facts.type == kGroupApi || facts.type == kGroup;
    if (outermost) LeaveApi(*s, t, now);  // of a group that was never stopped
    EnterApi(*s, t, FindComm(*s, context), now);
  }
  const uint64_t id = s->api_next.fetch_add(1, std::memory_order_relaxed) + 1;
  const bool group = facts.type == kGroupApi || facts.type == kGroup;
  if (!group) {  // a group is only its id
    const Handle p = Unpack(parent);
    const bool known = p.kind == HandleKind::kApi && p.salt == s->salt && IsGroup(p.payload);
    ApiState& at = s->api[id & (kApiRing - 1)];
    at.id.store(0, std::memory_order_relaxed);
    at.enter_ns.store(now, std::memory_order_release);
    at.stream.store(HashPointer(facts.stream), std::memory_order_release);
    at.group_id.store(known ? ApiId(p.payload) : 0, std::memory_order_release);
    at.id.store(id, std::memory_order_release);
  }
  return Pack(HandleKind::kApi, s->salt,
              id << 4 | (facts.graph_captured ? kApiGraph : 0) | ApiTypeBits(facts.type));
}

uint64_t StartOp(uint64_t context, uint64_t parent, const OpFacts& facts) {
  State* s = Active();
  if (s == nullptr) return 0;
  ThreadState* t = Self(*s);
  const uint64_t now = Now(t);
  Tick(*s, now);
  AddRole(*s, t, MC_THREAD_LAUNCH);
  const uint16_t comm = FindComm(*s, context);
  const uint64_t untracked = Pack(HandleKind::kUntrackedOp, s->salt, 0);
  if (comm == kNoComm) return untracked;

  const mc_func func = ParseFunc(facts.func);
  const bool send = facts.p2p && func == MC_FUNC_SEND;
  CommState& c = s->comms[comm];
  mc_board_op fresh = {};
  fresh.ordinal = facts.p2p ? NextWithPeer(*s, c, facts.root_or_peer, send)
                            : c.coll_next.fetch_add(1, std::memory_order_relaxed);
  const uint64_t id = ClaimOp(*s);
  if (id != 0) {
    fresh.comm = comm;
    fresh.id = id;
    fresh.start_ns = now;
    fresh.nccl_seq = facts.nccl_seq;
    fresh.count = facts.count;
    fresh.root_or_peer = facts.root_or_peer;
    fresh.comm_generation = c.generation.load(std::memory_order_relaxed);
    fresh.kind = !facts.p2p ? MC_OP_COLL : send ? MC_OP_SEND : MC_OP_RECV;
    fresh.func = static_cast<uint8_t>(func);
    fresh.datatype = static_cast<uint8_t>(ParseDatatype(facts.datatype));
    fresh.algo = static_cast<uint8_t>(ParseAlgo(facts.algo));
    fresh.proto = static_cast<uint8_t>(ParseProto(facts.proto));
    fresh.channels = facts.channels;
    const Handle p = Unpack(parent);
    if (p.kind == HandleKind::kApi && p.salt == s->salt) {
      if (IsGroup(p.payload)) {  // v4: the legacy group is the parent
        fresh.group_id = ApiId(p.payload);
      } else {
        const ApiLookup api = FindApi(*s, ApiId(p.payload));
        fresh.stream = api.stream;
        if ((p.payload & kApiGraph) != 0) {
          // The API call was made when the graph was captured. What a replay's
          // operations have in common is their launch.
          fresh.flags = MC_OP_GRAPH;
          const Handle g = Unpack(facts.parent_group);
          if (g.kind == HandleKind::kApi && g.salt == s->salt) fresh.group_id = ApiId(g.payload);
        } else {
          fresh.api_ns = api.enter_ns;
          fresh.group_id = api.group_id;
        }
      }
    }
    OpState& op = s->ops[id & (MC_BOARD_MAX_OPS - 1)];
    op.comm = comm;
    op.kernels_started = 0;
    op.kernels_stopped = 0;
    mc_board_op* line = &s->board.ops[id & (MC_BOARD_MAX_OPS - 1)];
    {
      LineWrite launch(&line->seq);
      LineWrite proxy(&line->proxy_seq);
      LineWrite kernel(&line->kernel_seq);
      fresh.seq = Get(&line->seq);
      fresh.proxy_seq = Get(&line->proxy_seq);
      fresh.kernel_seq = Get(&line->kernel_seq);
      StoreLine(line, fresh);
    }
    UnpinOp(*s, id);
  }
  mc_board_comm* line = &s->board.comms[comm];
  {
    SharedLineWrite write(&line->seq);
    board::AddShared(facts.p2p ? &line->p2p_count : &line->coll_count, uint64_t{1});
    if (id != 0) Set(&line->last_op_id, id);
  }
  return id != 0 ? Pack(HandleKind::kOp, s->salt, id) : untracked;
}

uint64_t StartKernelCh(uint64_t parent, const KernelCh& facts) {
  State* s = Active();
  if (s == nullptr) return 0;
  ThreadState* t = Self(*s);
  AddRole(*s, t, MC_THREAD_PROGRESS);
  const Handle p = Unpack(parent);
  if (p.kind == HandleKind::kUntrackedOp) return 0;
  mc_board_op* line =
      p.kind == HandleKind::kOp && p.salt == s->salt ? PinOp(*s, p.payload) : nullptr;
  if (line == nullptr) {
    Count(*s, MC_LOSS_NO_PARENT);
    return 0;
  }
  OpState& op = s->ops[p.payload & (MC_BOARD_MAX_OPS - 1)];
  const uint64_t bit = uint64_t{1} << (facts.channel & 63);
  if ((op.kernels_started & bit) == 0) {
    op.kernels_started |= bit;
    const uint64_t now = Now(t);
    LineWrite write(&line->kernel_seq);
    BumpSaturated(&line->kernel_started);
    const uint64_t first = Get(&line->kernel_gpu_start);
    if (first == 0 || facts.gpu_timer < first) Set(&line->kernel_gpu_start, facts.gpu_timer);
    if (Get(&line->kernel_start_seen_ns) == 0) Set(&line->kernel_start_seen_ns, now);
  }
  UnpinOp(*s, p.payload);
  return Pack(HandleKind::kKernel, s->salt, p.payload << 8 | facts.channel);
}

void StartOther(uint64_t type) {
  State* s = Active();
  if (s == nullptr) return;
  constexpr uint64_t kLetPass =
      kProxyCtrl | kNetPlugin | kKernelLaunch | kCeColl | kCeSync | kCeBatch;
  const bool one_bit = type != 0 && (type & (type - 1)) == 0;
  if (!one_bit || (type & kLetPass) == 0) Count(*s, MC_LOSS_UNKNOWN_EVENT);
}

void StopEvent(uint64_t handle) {
  State* s = Active();
  if (s == nullptr || handle == 0) return;
  const Handle h = Unpack(handle);
  if (h.salt != s->salt) return Count(*s, MC_LOSS_STALE_HANDLE);
  switch (h.kind) {
    case HandleKind::kStep:
    case HandleKind::kLooseStep:
      return StopProxyStep(*s, h);
    case HandleKind::kProxyOp:
    case HandleKind::kLooseProxyOp:
      return StopProxyOp(*s, h);
    case HandleKind::kOp:
      return StopOp(*s, h.payload);
    case HandleKind::kKernel:
      return StopKernel(*s, h.payload, 0);
    case HandleKind::kApi: {
      const uint64_t type = h.payload & kApiTypeMask;
      if (type != kApiTypeGroupApi && (type != kApiTypeGroup || s->api_version >= 5)) return;
      ThreadState* t = Self(*s);
      return LeaveApi(*s, t, Now(t));
    }
    case HandleKind::kUntrackedOp:
      return;
    case HandleKind::kNone:
    case HandleKind::kContext:
    case HandleKind::kUntrackedContext:
    case HandleKind::kChained:
    case HandleKind::kChainedContext:
      break;
  }
  Count(*s, MC_LOSS_STALE_HANDLE);
}

void RecordState(uint64_t handle, EventState state, const StateArgs* args) {
  State* s = Active();
  if (s == nullptr || handle == 0) return;
  const Handle h = Unpack(handle);
  if (h.salt != s->salt) return Count(*s, MC_LOSS_STALE_HANDLE);
  switch (h.kind) {
    case HandleKind::kStep:
    case HandleKind::kLooseStep:
      return RecordProxyStep(*s, h, state, args);
    case HandleKind::kProxyOp:
    case HandleKind::kLooseProxyOp:
      if (state != kProxyOpInProgress) return Count(*s, MC_LOSS_UNKNOWN_EVENT);
      return RecordProxyOp(*s, h);
    case HandleKind::kKernel:
      if (state != kKernelChStop) return Count(*s, MC_LOSS_UNKNOWN_EVENT);
      return StopKernel(*s, h.payload, args != nullptr ? args->kernel_ch.gpu_timer : 0);
    case HandleKind::kApi:
      if (state != kGroupStartApiStop && state != kGroupEndApiStart) {
        Count(*s, MC_LOSS_UNKNOWN_EVENT);
      }
      return;
    case HandleKind::kOp:
    case HandleKind::kUntrackedOp:
      return Count(*s, MC_LOSS_UNKNOWN_EVENT);
    case HandleKind::kNone:
    case HandleKind::kContext:
    case HandleKind::kUntrackedContext:
    case HandleKind::kChained:
    case HandleKind::kChainedContext:
      break;
  }
  Count(*s, MC_LOSS_STALE_HANDLE);
}

}  // namespace mycroft::nccl
