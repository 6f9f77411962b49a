// SPDX-License-Identifier: Apache-2.0
//
// What the library exports: InitializeInjection, which the CUDA driver calls once, in
// cuInit, in the library that CUDA_INJECTION64_PATH names.
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cupti/agent/state.h"

extern "C" __attribute__((visibility("default"))) int InitializeInjection(void);

namespace mycroft::agent {

std::atomic<State*> g_state{nullptr};
constinit thread_local ThreadSlot t_slot __attribute__((tls_model("initial-exec")));

namespace {

std::atomic<uint32_t> g_called{0};
uint32_t g_epoch = 0;

// The child has a copy of our memory, but the board is shared, it has none of our
// threads, and CUDA does not work in it: it goes silent.
void AfterForkChild() {
  State* s = g_state.exchange(nullptr, std::memory_order_acq_rel);
  if (s == nullptr) return;
  board::AbandonMemfd(&s->board.memfd);
}

void AtExit() {
  State* s = Active();
  if (s != nullptr) StopHelper(*s);
}

enum class Wish { kOff, kCallbacks, kActivity };

Wish ReadWish() {
  const char* text = getenv("MYCROFT_CUPTI");
  if (text == nullptr) return Wish::kCallbacks;
  if (strcmp(text, "off") == 0) return Wish::kOff;
  if (strcmp(text, "activity") == 0) return Wish::kActivity;
  return Wish::kCallbacks;
}

// CUDA_INJECTION64_PATH names one library only; a second one is loaded through us. It
// comes first: the user asked for it, and CUPTI has one subscriber per process. Returns
// mc_gpu_header.chained.
uint32_t LoadChained() {
  const char* path = getenv("MYCROFT_CHAIN_INJECTION");
  if (path == nullptr || path[0] == '\0') return 0;
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return 2;
  auto* init = reinterpret_cast<int (*)()>(dlsym(handle, "InitializeInjection"));
  if (init == nullptr || init == &InitializeInjection) return 2;
  init();
  return 1;
}

State* CreateState() {
  void* memory = mmap(nullptr, sizeof(State), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  constexpr size_t kPool = size_t{kBuffers} * kBufferBytes;
  void* buffers = mmap(nullptr, kPool, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  auto* s = static_cast<State*>(memory);
  s->pid = static_cast<uint32_t>(getpid());
  s->epoch = ++g_epoch;
  s->buffers = static_cast<uint8_t*>(buffers);
  if (buffers == MAP_FAILED || !board::CreateGpuBoard(s->pid, board::SystemClock(), &s->board)) {
    if (buffers != MAP_FAILED) munmap(buffers, kPool);
    munmap(memory, sizeof(State));
    return nullptr;
  }
  uint8_t row = 0;
  for (const Call* call = kCalls; call->kind != CallKind::kNone; ++call) {
    ++row;
    if (call->cbid < kCallIds) s->call_of[call->cbid] = row;
  }
  return s;
}

void SetState(State& s, mc_gpu_state state) {
  Set(&s.board.header->state, static_cast<uint32_t>(state));
}

bool Load(State& s) {
  char detail[sizeof(s.board.header->cupti_path)] = {};
  const LoadResult loaded = LoadCupti(&s.cupti, detail, sizeof(detail));
  board::CopyText(s.board.header->cupti_path, sizeof(detail), detail);
  if (loaded != LoadResult::kLoaded) {
    SetState(s, loaded == LoadResult::kNotFound ? MC_GPU_NO_LIBRARY : MC_GPU_NO_SYMBOL);
    return false;
  }
  NoteError(s, MC_GPU_CALL_VERSION, s.cupti.cuptiGetVersion(&s.cupti_version));
  s.layout = FindLayout(s.cupti_version);
  Set(&s.board.header->cupti_version, s.cupti_version);
  Set(&s.board.header->layout_known, s.layout != nullptr ? 1 : 0);
  return true;
}

void Init() {
  const uint32_t chained = LoadChained();
  const Wish wish = ReadWish();
  board::CalibrateClock();
  State* s = CreateState();
  if (s == nullptr) return;
  Set(&s->board.header->chained, chained);
  s->chained = chained == 1;
  s->base_level = wish == Wish::kActivity ? MC_GPU_LEVEL_ACTIVITY : MC_GPU_LEVEL_CALLBACKS;
  s->nccl.Init(getenv("MYCROFT_NCCL_KERNELS"));
  if (wish == Wish::kOff) {
    // The board says why nothing is seen; CUPTI is not even loaded.
    Set(&s->board.header->level, static_cast<uint32_t>(MC_GPU_LEVEL_OFF));
    SetState(*s, MC_GPU_OFF_BY_USER);
    pthread_atfork(nullptr, nullptr, AfterForkChild);
    g_state.store(s, std::memory_order_release);
    return;
  }
  pthread_atfork(nullptr, nullptr, AfterForkChild);
  if (!Load(*s)) {
    g_state.store(s, std::memory_order_release);
    return;
  }
  g_state.store(s, std::memory_order_release);  // before: callbacks may come at once
  if (!Subscribe(*s)) return;
  if (StartHelper(*s)) {
    atexit(AtExit);
  } else {
    Set(&s->board.header->error_call, static_cast<uint32_t>(MC_GPU_CALL_NONE));
  }
}

}  // namespace
}  // namespace mycroft::agent

// Always 1, success: whatever is wrong costs observation, never the program.
int InitializeInjection(void) {
  if (mycroft::agent::g_called.exchange(1) == 0) mycroft::agent::Init();
  return 1;
}
