// SPDX-License-Identifier: Apache-2.0
//
// A profiler plugin for tests of the chain: writes down every call it gets, one
// line each, and trusts its handles the way real plugins do (they are pointers). Has
// v5 only. MYCROFT_TEST_CHAIN_MASK chooses its mask, MYCROFT_TEST_CHAIN_REFUSE=1
// makes its init fail.
#include <stdint.h>
#include <stdlib.h>

#include <deque>
#include <mutex>
#include <sstream>
#include <string>

#include "cupti/nccl/profiler_abi.h"

namespace mycroft::nccl {
namespace {

struct Object {
  uint64_t magic = 0x6368616965640a;
  int number = 0;
};

std::mutex g_mutex;
std::string g_log;
int g_next = 0;
std::deque<Object> g_objects;
int* g_mask = nullptr;
std::string g_returned;

Object* New() {
  Object* o = &g_objects.emplace_back();  // kept: hosts may come back to a handle
  o->number = ++g_next;
  return o;
}

// Aborts on a handle that is not ours: that is the point of the test.
int Number(void* handle) {
  if (handle == nullptr) return 0;
  auto* o = static_cast<Object*>(handle);
  if (o->magic != Object().magic) abort();
  return o->number;
}

template <class... T>
void Log(const T&... parts) {
  std::ostringstream line;
  (line << ... << parts);
  g_log += line.str() + "\n";
}

Result Init(void** context, uint64_t comm_id, int* mask, const char* name, int, int nranks,
            int rank, DebugLogger) {
  std::lock_guard lock(g_mutex);
  if (getenv("MYCROFT_TEST_CHAIN_REFUSE") != nullptr) return kInternalError;
  Object* o = New();
  *context = o;
  const char* text = getenv("MYCROFT_TEST_CHAIN_MASK");
  *mask = text != nullptr ? atoi(text) : static_cast<int>(kColl);
  g_mask = mask;
  Log("init ", o->number, " comm ", comm_id, " ", name != nullptr ? name : "-", " ", rank, "/",
      nranks);
  return kSuccess;
}

Result Start(void* context, void** handle, EventDescrV5* d) {
  std::lock_guard lock(g_mutex);
  Object* o = New();
  *handle = o;
  int group = 0;
  if (d->type == kColl) group = Number(d->coll.parent_group);
  Log("start ", o->number, " type ", d->type, " ctx ", Number(context), " parent ",
      Number(d->parent), " group ", group);
  // Descriptors are copies: the host must not see this.
  d->parent = reinterpret_cast<void*>(0x666);
  d->rank = -1;
  return kSuccess;
}

Result Stop(void* handle) {
  std::lock_guard lock(g_mutex);
  Log("stop ", Number(handle));
  return kSuccess;
}

Result Record(void* handle, EventState state, StateArgs* args) {
  std::lock_guard lock(g_mutex);
  Log("state ", Number(handle), " ", static_cast<int>(state), " ",
      args != nullptr ? args->proxy_step.trans_size : 0);
  if (args != nullptr) args->proxy_step.trans_size = 0;
  return kSuccess;
}

Result Finalize(void* context) {
  std::lock_guard lock(g_mutex);
  Log("finalize ", Number(context));
  return kSuccess;
}

}  // namespace
}  // namespace mycroft::nccl

extern "C" {
__attribute__((visibility("default"))) mycroft::nccl::ProfilerV5 ncclProfiler_v5 = {
    "chained",           mycroft::nccl::Init,   mycroft::nccl::Start,
    mycroft::nccl::Stop, mycroft::nccl::Record, mycroft::nccl::Finalize,
};
// The log so far; forgets it.
__attribute__((visibility("default"))) const char* chainedTakeLog() {
  std::lock_guard lock(mycroft::nccl::g_mutex);
  mycroft::nccl::g_returned.swap(mycroft::nccl::g_log);
  mycroft::nccl::g_log.clear();
  return mycroft::nccl::g_returned.c_str();
}
// As a plugin that changes its mind at run time.
__attribute__((visibility("default"))) void chainedSetMask(int mask) {
  __atomic_store_n(mycroft::nccl::g_mask, mask, __ATOMIC_RELAXED);
}
}
