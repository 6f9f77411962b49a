// SPDX-License-Identifier: Apache-2.0
#include "cupti/nccl/chain.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "cupti/nccl/decode.h"
#include "cupti/nccl/handle.h"
#include "cupti/nccl/mask.h"
#include "cupti/board/pool.h"

namespace mycroft::nccl {

std::atomic<bool> g_chain_active{false};

namespace {

constexpr uint32_t kMaxContexts = 1024;
// Operations are parents long after they have stopped; steps come and go.
constexpr uint32_t kEventRing = 65536;
constexpr uint32_t kStepRing = 16384;

struct ChainedContext {
  std::atomic<uint32_t> generation;  // odd while in use
  uint64_t ours;
  void* theirs;
  bool theirs_ok;  // their init succeeded
};

struct ChainedEvent {
  std::atomic<uint64_t> number;  // 0 free
  std::atomic<bool> open;
  bool to_theirs;  // they were told of the start
  bool silent;     // a step of a proxy operation for which they gave no handle
  uint64_t ours;
  void* theirs;
  // What each side wants of the descendants: the masks at the API call.
  uint64_t ours_want;
  uint64_t theirs_want;
};

struct Tables {
  const ProfilerV4* v4 = nullptr;
  const ProfilerV5* v5 = nullptr;
  const ProfilerV6* v6 = nullptr;
};
Tables g_tables;
uint8_t g_salt = 0;
int g_pid = 0;
board::IndexPool<kMaxContexts> g_context_pool;
ChainedContext g_contexts[kMaxContexts];
ChainedEvent g_events[kEventRing];
ChainedEvent g_steps[kStepRing];
std::atomic<uint64_t> g_next_event{0};
std::atomic<uint64_t> g_next_step{0};

void RefreshPid() { g_pid = getpid(); }

const ProfilerV4* TableFor(const EventDescrV4&) { return g_tables.v4; }
const ProfilerV5* TableFor(const EventDescrV5&) { return g_tables.v5; }
const ProfilerV6* TableFor(const EventDescrV6&) { return g_tables.v6; }

Result CallStop(void* handle) {
  if (g_tables.v6 != nullptr) return g_tables.v6->stop_event(handle);
  if (g_tables.v5 != nullptr) return g_tables.v5->stop_event(handle);
  return g_tables.v4->stop_event(handle);
}

Result CallRecord(void* handle, EventState state, StateArgs* args) {
  if (g_tables.v6 != nullptr) return g_tables.v6->record_event_state(handle, state, args);
  if (g_tables.v5 != nullptr) return g_tables.v5->record_event_state(handle, state, args);
  return g_tables.v4->record_event_state(handle, state, args);
}

Result CallFinalize(void* context) {
  if (g_tables.v6 != nullptr) return g_tables.v6->finalize(context);
  if (g_tables.v5 != nullptr) return g_tables.v5->finalize(context);
  return g_tables.v4->finalize(context);
}

Result CallInit(void** context, const CommFacts& f, DebugLogger log) {
  int* mask = &g_mask.chained;
  if (g_tables.v6 != nullptr) {
    return g_tables.v6->init(context, f.comm_id, mask, f.name, f.nnodes, f.nranks, f.rank, log);
  }
  if (g_tables.v5 != nullptr) {
    return g_tables.v5->init(context, f.comm_id, mask, f.name, f.nnodes, f.nranks, f.rank, log);
  }
  return g_tables.v4->init(context, mask, f.name, f.comm_id, f.nnodes, f.nranks, f.rank, log);
}

// Handle: payload = number 51 | step 1.
ChainedEvent* FindEvent(const void* handle) {
  const Handle h = Unpack(ToValue(handle));
  if (h.kind != HandleKind::kChained || h.salt != g_salt) return nullptr;
  const uint64_t number = h.payload >> 1;
  ChainedEvent& e =
      (h.payload & 1) != 0 ? g_steps[number % kStepRing] : g_events[number % kEventRing];
  return e.number.load(std::memory_order_acquire) == number ? &e : nullptr;
}

// A free place; one still open is passed over a few times before it is taken.
ChainedEvent* TakeEvent(bool step, uint64_t* handle) {
  ChainedEvent* e = nullptr;
  uint64_t number = 0;
  for (int tries = 0; tries < 8; ++tries) {
    number = (step ? g_next_step : g_next_event).fetch_add(1, std::memory_order_relaxed) + 1;
    e = step ? &g_steps[number % kStepRing] : &g_events[number % kEventRing];
    if (!e->open.load(std::memory_order_relaxed)) break;
  }
  e->number.store(0, std::memory_order_relaxed);
  *handle = Pack(HandleKind::kChained, g_salt, number << 1 | (step ? 1 : 0));
  e->open.store(true, std::memory_order_relaxed);
  return e;
}

ChainedContext* FindContext(const void* context) {
  const Handle h = Unpack(ToValue(context));
  if (h.kind != HandleKind::kChainedContext || h.salt != g_salt) return nullptr;
  ChainedContext& c = g_contexts[h.payload % kMaxContexts];
  return c.generation.load(std::memory_order_acquire) == h.payload / kMaxContexts ? &c : nullptr;
}

template <class Descr>
void ReplaceGroup(Descr* d, void* group) {
  if constexpr (requires { d->coll.parent_group; }) {
    if (d->type == kColl) d->coll.parent_group = group;
    if (d->type == kP2p) d->p2p.parent_group = group;
  }
}

template <class Descr>
void* Start(void* context, const Descr& d) {
  FollowChainedMask();
  const uint64_t type = d.type;
  const ChainedContext* c = FindContext(context);
  const ChainedEvent* parent = FindEvent(d.parent);
  const bool foreign = type == kProxyOp && d.proxy_op.pid != g_pid;
  void* const host_group = ParentGroup(d);
  const ChainedEvent* group = FindEvent(host_group);

  // NCCL samples the mask at the API call and goes by it for all that follows.
  const uint64_t ours_want = parent != nullptr
                                 ? parent->ours_want
                                 : EventsOfMask(g_mask.ours.load(std::memory_order_relaxed));
  const uint64_t theirs_want =
      parent != nullptr ? parent->theirs_want
                        : EventsOfMask(__atomic_load_n(&g_mask.chained, __ATOMIC_RELAXED));

  uint64_t ours = 0;
  if ((ours_want & type) != 0 || (theirs_want & type) == 0) {
    ours = StartDecoded(c != nullptr ? c->ours : ToValue(context),
                        parent != nullptr ? parent->ours : ToValue(d.parent),
                        group != nullptr ? group->ours : ToValue(host_group), d);
  }
  void* theirs = nullptr;
  const bool of_foreign =
      parent != nullptr && (type == kProxyStep || type == kNetPlugin) && !parent->to_theirs;
  const bool to_theirs =
      c != nullptr && c->theirs_ok && !foreign && !of_foreign && (theirs_want & type) != 0;
  if (to_theirs) {
    Descr copy = d;
    copy.parent = parent != nullptr ? parent->theirs : nullptr;
    ReplaceGroup(&copy, group != nullptr ? group->theirs : nullptr);
    TableFor(d)->start_event(c->theirs, &theirs, &copy);
  }
  // A NULL for a proxy operation would silence its steps for both.
  const bool needed = type == kProxyOp || type == kProxyStep;
  if (ours == 0 && !to_theirs && !needed) return nullptr;
  uint64_t handle;
  ChainedEvent* e = TakeEvent(type == kProxyStep, &handle);
  e->to_theirs = to_theirs;
  e->silent = type == kProxyStep && parent != nullptr && parent->theirs == nullptr;
  e->ours = ours;
  e->theirs = theirs;
  e->ours_want = ours_want;
  e->theirs_want = theirs_want;
  e->number.store((handle & kPayloadMask) >> 1, std::memory_order_release);
  return ToPointer(handle);
}

void Warn(DebugLogger log, const char* format, const char* a, const char* b) {
  if (log != nullptr) log(kLogWarn, kLogInit, __FILE__, __LINE__, format, a, b);
}

void LoadChainOnce(int api_version, const void* ours, DebugLogger log) {
  const char* path = getenv("MYCROFT_CHAIN_PLUGIN");
  if (path == nullptr || path[0] == '\0') return;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return Warn(log, "Mycroft: MYCROFT_CHAIN_PLUGIN=%s cannot be loaded, going on without: %s",
                path, why != nullptr ? why : "unknown error");
  }
  const char* symbol = api_version == 4 ? kSymbolV4 : api_version == 5 ? kSymbolV5 : kSymbolV6;
  const void* table = dlsym(library, symbol);
  if (table == nullptr) {
    return Warn(
        log, "Mycroft: MYCROFT_CHAIN_PLUGIN=%s has no %s, which this NCCL uses; going on without",
        path, symbol);
  }
  if (table == ours) {
    return Warn(log, "Mycroft: MYCROFT_CHAIN_PLUGIN=%s is this plugin itself (%s), ignored", path,
                symbol);
  }
  if (api_version == 4) g_tables.v4 = static_cast<const ProfilerV4*>(table);
  if (api_version == 5) g_tables.v5 = static_cast<const ProfilerV5*>(table);
  if (api_version == 6) g_tables.v6 = static_cast<const ProfilerV6*>(table);
  RefreshPid();
  g_salt = static_cast<uint8_t>(static_cast<uint32_t>(g_pid) * 2654435761u >> 24);
  pthread_atfork(nullptr, nullptr, RefreshPid);
  g_chain_active.store(true, std::memory_order_release);
}

}  // namespace

uint64_t EventsOfMask(int mask) {
  const auto m = static_cast<uint64_t>(static_cast<uint32_t>(mask));
  constexpr uint64_t kBelowApi = kProxyOp | kProxyStep | kKernelCh | kNetPlugin;
  constexpr uint64_t kCe = kCeColl | kCeSync | kCeBatch;
  uint64_t events = m & (kProxyCtrl | kKernelCh | kNetPlugin | kKernelLaunch | kCeSync | kCeBatch);
  auto add = [&](EventType type, uint64_t when) {
    if ((m & when) != 0) events |= type;
  };
  add(kGroupApi, ~uint64_t{kProxyCtrl});
  add(kCollApi, kCollApi | kColl | kBelowApi | kCe);
  add(kP2pApi, kP2pApi | kP2p | kBelowApi);
  add(kGroup, kGroup | kColl | kP2p | kBelowApi);
  add(kColl, kColl | kBelowApi);
  add(kP2p, kP2p | kBelowApi);
  add(kProxyOp, kProxyOp | kProxyStep | kNetPlugin);
  add(kProxyStep, kProxyStep | kNetPlugin);
  add(kCeColl, kCe);
  return events;
}

void LoadChain(int api_version, const void* ours, DebugLogger log) {
  static std::atomic<int> stage{0};  // 0 not begun, 1 being loaded, 2 done
  int expected = 0;
  if (stage.compare_exchange_strong(expected, 1, std::memory_order_acq_rel)) {
    LoadChainOnce(api_version, ours, log);
    stage.store(2, std::memory_order_release);
  }
  // Another init is loading it; not with a lock, since foreign constructors run.
  while (stage.load(std::memory_order_acquire) != 2) usleep(100);
}

void* InitChained(uint64_t ours, const CommFacts& facts, DebugLogger log) {
  void* theirs = nullptr;
  const Result result = CallInit(&theirs, facts, log);
  if (result != kSuccess) {
    Warn(log, "Mycroft: %s%s", "the chained profiler plugin refused a communicator", "");
  }
  const uint32_t index = g_context_pool.Take();
  if (index == board::kNoIndex) {  // ours alone, then
    if (result == kSuccess) CallFinalize(theirs);
    return ToPointer(ours);
  }
  ChainedContext& c = g_contexts[index];
  c.ours = ours;
  c.theirs = theirs;
  c.theirs_ok = result == kSuccess;
  const uint32_t generation = c.generation.load(std::memory_order_relaxed) + 1;
  c.generation.store(generation, std::memory_order_release);
  return ToPointer(
      Pack(HandleKind::kChainedContext, g_salt, uint64_t{generation} * kMaxContexts + index));
}

void FinalizeChained(void* context) {
  ChainedContext* c = FindContext(context);
  if (c == nullptr) return FinalizeComm(ToValue(context));
  const uint64_t ours = c->ours;
  void* const theirs = c->theirs;
  const bool theirs_ok = c->theirs_ok;
  c->generation.fetch_add(1, std::memory_order_release);
  g_context_pool.Return(static_cast<uint32_t>(c - g_contexts));
  FinalizeComm(ours);
  if (theirs_ok) CallFinalize(theirs);
}

void* StartChained(void* context, const EventDescrV4& descr) { return Start(context, descr); }
void* StartChained(void* context, const EventDescrV5& descr) { return Start(context, descr); }
void* StartChained(void* context, const EventDescrV6& descr) { return Start(context, descr); }

void StopChained(void* handle) {
  ChainedEvent* e = FindEvent(handle);
  if (e == nullptr) return StopEvent(ToValue(handle));
  // NCCL may stop an event twice, and long after.
  if (!e->open.exchange(false, std::memory_order_acq_rel)) return;
  if (e->ours != 0) StopEvent(e->ours);
  if (e->to_theirs && e->theirs != nullptr) CallStop(e->theirs);
}

void RecordChained(void* handle, EventState state, const StateArgs* args) {
  ChainedEvent* e = FindEvent(handle);
  if (e == nullptr) return RecordState(ToValue(handle), state, args);
  if (e->ours != 0) RecordState(e->ours, state, args);
  if (!e->to_theirs || e->theirs == nullptr || e->silent) return;
  if (!e->open.load(std::memory_order_acquire)) return;
  StateArgs copy = {};
  if (args != nullptr) copy = *args;
  CallRecord(e->theirs, state, args != nullptr ? &copy : nullptr);
}

}  // namespace mycroft::nccl
