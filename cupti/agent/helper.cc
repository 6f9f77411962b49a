// SPDX-License-Identifier: Apache-2.0
//
// Our own thread: does what the agent asks for in the board, reads the buffers, and
// makes the calls of CUPTI that may take long. Everything it does is off the
// application's path; what it is inside of stands in the board (helper_call).
//
// Release. cuptiFinalize removes CUPTI from the process, also for others, and is only
// safe where a driver call returns. So it is called only when the agent asks for
// MC_GPU_LEVEL_OFF, from the exit of the next driver call, and not at all when somebody
// else was seen to use CUPTI (a chained library, buffers that are not ours) or when no
// driver call comes within half a second: then we only unsubscribe. The end of a time
// with activity disables its kinds and flushes; callbacks stay, and CUPTI with them.
//
// `releasing`: 0 nothing, 1 wanted, 2 being done, 3 done.
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <initializer_list>

#include "cupti/agent/state.h"

namespace mycroft::agent {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kIdleNs = 100 * kMs;
constexpr uint64_t kArmedNs = 5 * kMs;
constexpr uint64_t kFlushNs = 100 * kMs;
constexpr uint64_t kLongestArmedNs = 600'000 * kMs;
constexpr uint64_t kReleaseWaitNs = 500 * kMs;

constexpr CUpti_ActivityKind kKinds[] = {
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
    CUPTI_ACTIVITY_KIND_MEMCPY2,           CUPTI_ACTIVITY_KIND_MEMSET,
    CUPTI_ACTIVITY_KIND_SYNCHRONIZATION,   CUPTI_ACTIVITY_KIND_OVERHEAD};

void Wait(std::atomic<uint32_t>* word, uint32_t expected, uint64_t ns) {
  timespec timeout = {static_cast<time_t>(ns / 1'000'000'000u),
                      static_cast<long>(ns % 1'000'000'000u)};
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, &timeout, nullptr, 0);
}
void Wake(std::atomic<uint32_t>* word) {
  word->fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

void SetState(State& s, mc_gpu_state state) {
  Set(&s.board.header->state, static_cast<uint32_t>(state));
}
void SetLevel(State& s, mc_gpu_level level) {
  Set(&s.board.header->level, static_cast<uint32_t>(level));
}

// A call that may take long is in the board while it lasts; its failure stays there.
template <class F>
CUptiResult Timed(State& s, mc_gpu_cupti_call call, F f) {
  Set(&s.board.header->helper_call, static_cast<uint32_t>(call));
  Set(&s.board.header->helper_call_ns, board::SystemClock());
  const CUptiResult result = f();
  Set(&s.board.header->helper_call_ns, 0);
  NoteError(s, call, result);
  return result;
}

void TakePair(State& s) {
  if (Get(&s.board.header->clock) == MC_GPU_CLOCK_MONOTONIC) return;
  uint64_t best = UINT64_MAX, cupti = 0, before = 0, after = 0;
  for (int i = 0; i < 5; ++i) {
    uint64_t t = 0;
    const uint64_t a = board::SystemClock();
    if (s.cupti.cuptiGetTimestamp(&t) != CUPTI_SUCCESS) return;
    const uint64_t b = board::SystemClock();
    if (b - a < best) {
      best = b - a;
      cupti = t;
      before = a;
      after = b;
    }
  }
  Set(&s.board.header->pair_cupti_ns, cupti);
  Set(&s.board.header->pair_before_ns, before);
  Set(&s.board.header->pair_after_ns, after);
  s.clock_offset = static_cast<int64_t>(before + (after - before) / 2 - cupti);
  Set(&s.board.header->clock, static_cast<uint32_t>(MC_GPU_CLOCK_PAIRED));
}

// ---- activity ----------------------------------------------------------------------------

void Flush(State& s, uint32_t flag) {
  const uint64_t begin = board::SystemClock();
  if (Timed(s, MC_GPU_CALL_FLUSH, [&] { return s.cupti.cuptiActivityFlushAll(flag); }) ==
      CUPTI_SUCCESS) {
    Set(&s.board.header->flushed_ns, begin);
  }
}

bool Arm(State& s, uint64_t until) {
  if (s.layout == nullptr) return false;  // the board says so
  if (Timed(s, MC_GPU_CALL_REGISTER_CALLBACKS, [&] {
        return s.cupti.cuptiActivityRegisterCallbacks(OnBufferRequested, OnBufferCompleted);
      }) != CUPTI_SUCCESS) {
    return false;
  }
  // Before any kind is enabled.
  s.clock_offset = 0;
  Set(&s.board.header->clock, static_cast<uint32_t>(MC_GPU_CLOCK_NONE));
  if (s.cupti.cuptiActivityRegisterTimestampCallback != nullptr &&
      Timed(s, MC_GPU_CALL_TIMESTAMP_CALLBACK, [&] {
        return s.cupti.cuptiActivityRegisterTimestampCallback(OnTimestamp);
      }) == CUPTI_SUCCESS) {
    Set(&s.board.header->clock, static_cast<uint32_t>(MC_GPU_CLOCK_MONOTONIC));
  }
  TakePair(s);
  uint32_t enabled = 0;
  for (CUpti_ActivityKind kind : kKinds) {
    if (Timed(s, MC_GPU_CALL_ACTIVITY_ENABLE, [&] { return s.cupti.cuptiActivityEnable(kind); }) ==
        CUPTI_SUCCESS) {
      ++enabled;
    } else if (kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      return false;
    }
  }
  (void)enabled;
  Set(&s.board.header->armed_until_ns, until);
  Set(&s.board.header->armed_ns, board::SystemClock());
  SetLevel(s, MC_GPU_LEVEL_ACTIVITY);
  SetState(s, MC_GPU_ARMED);
  return true;
}

void Disarm(State& s) {
  for (CUpti_ActivityKind kind : kKinds) {
    Timed(s, MC_GPU_CALL_ACTIVITY_DISABLE, [&] { return s.cupti.cuptiActivityDisable(kind); });
  }
  Flush(s, CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  ReadBuffers(s);
  mc_gpu_header* h = s.board.header;
  const uint64_t since = Get(&h->armed_ns);
  Set(&h->armed_ns, 0);
  if (since != 0) board::Bump(&h->armed_total_ns, board::SystemClock() - since);
  // What CUPTI filled is not needed until the next time. Only with no buffer out there.
  bool lent = s.completed.load(std::memory_order_acquire) != 0;
  for (const BufferState& buffer : s.buffer_state) lent |= buffer.lent.load() != 0;
  if (!lent) madvise(s.buffers, size_t{kBuffers} * kBufferBytes, MADV_DONTNEED);
  SetLevel(s, MC_GPU_LEVEL_CALLBACKS);
  SetState(s, MC_GPU_WATCHING);
}

// ---- release -------------------------------------------------------------------------------

bool OthersUseCupti(const State& s) {
  return s.chained || Get(&s.board.header->lost[MC_GPU_LOSS_FOREIGN_BUFFER]) != 0;
}

void Detach(State& s, bool from_callback) {
  NoteError(s, MC_GPU_CALL_UNSUBSCRIBE, s.cupti.cuptiUnsubscribe(s.subscriber));
  if (from_callback && !OthersUseCupti(s)) {
    NoteError(s, MC_GPU_CALL_FINALIZE, s.cupti.cuptiFinalize());
    ReclaimBuffers(s);
  }
  SetLevel(s, MC_GPU_LEVEL_OFF);
  SetState(s, MC_GPU_RELEASED);
  s.releasing.store(3, std::memory_order_release);
}

void Release(State& s) {
  s.releasing.store(1, std::memory_order_release);
  const uint64_t begin = board::SystemClock();
  while (s.releasing.load(std::memory_order_acquire) != 3) {
    uint32_t wanted = 1;
    if (board::SystemClock() - begin > kReleaseWaitNs &&
        s.releasing.compare_exchange_strong(wanted, 2, std::memory_order_acq_rel)) {
      Detach(s, false);
      return;
    }
    if (s.exiting.load(std::memory_order_relaxed) != 0) return;
    Wait(&s.wake, s.wake.load(std::memory_order_acquire), 10 * kMs);
  }
}

// ---- devices ---------------------------------------------------------------------------------

// UUID, PCI address and name, from the driver that is loaded (no link to it).
struct Driver {
  int (*get)(int*, int) = nullptr;
  int (*uuid)(void*, int) = nullptr;
  int (*pci)(char*, int, int) = nullptr;
  int (*name)(char*, int, int) = nullptr;
};

void* DriverSymbol(const char* name) {
  void* handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  void* found = handle != nullptr ? dlsym(handle, name) : nullptr;
  return found != nullptr ? found : dlsym(RTLD_DEFAULT, name);
}

template <class F>
void Resolve(F* f, const char* name) {
  *f = reinterpret_cast<F>(DriverSymbol(name));
}

template <size_t N>
void SetText(char (&to)[N], const char* from) {
  char text[N] = {};
  board::CopyText(text, N, from);
  for (size_t i = 0; i < N / 8; ++i) {
    uint64_t word;
    memcpy(&word, text + i * 8, 8);
    Set(&reinterpret_cast<uint64_t*>(to)[i], word);
  }
}

void DescribeDevices(State& s) {
  static_assert(offsetof(mc_gpu_device, uuid) % 8 == 0 && offsetof(mc_gpu_device, pci) % 8 == 0 &&
                offsetof(mc_gpu_device, name) % 8 == 0);
  const uint32_t used = Get(&s.board.header->devices_used);
  for (uint32_t i = 0; i < used && i < MC_GPU_MAX_DEVICES; ++i) {
    mc_gpu_device* line = &s.board.devices[i];
    if (Get(&line->known) == 0 || Get(&line->pci_known) != 0) continue;
    Driver driver;
    Resolve(&driver.get, "cuDeviceGet");
    Resolve(&driver.uuid, "cuDeviceGetUuid_v2");
    if (driver.uuid == nullptr) Resolve(&driver.uuid, "cuDeviceGetUuid");
    Resolve(&driver.pci, "cuDeviceGetPCIBusId");
    Resolve(&driver.name, "cuDeviceGetName");
    int device = 0;
    char uuid[16] = {}, pci[32] = {}, name[64] = {};
    uint32_t known = 2;  // asked in vain: not again
    if (driver.get != nullptr && driver.uuid != nullptr && driver.pci != nullptr &&
        driver.get(&device, static_cast<int>(i)) == 0 && driver.uuid(uuid, device) == 0 &&
        driver.pci(pci, sizeof(pci) - 1, device) == 0) {
      if (driver.name != nullptr) driver.name(name, sizeof(name) - 1, device);
      known = 1;
    }
    SharedLineWrite write(&line->seq);
    for (int w = 0; w < 2; ++w) {
      uint64_t word;
      memcpy(&word, uuid + w * 8, 8);
      Set(&reinterpret_cast<uint64_t*>(line->uuid)[w], word);
    }
    SetText(line->pci, pci);
    SetText(line->name, name);
    Set(&line->pci_known, known);
  }
}

// ---- the loop ----------------------------------------------------------------------------------

struct Request {
  mc_gpu_level level = MC_GPU_LEVEL_UNSET;
  uint64_t until = 0;
};

Request ReadRequest(State& s, uint64_t now) {
  Request r;
  const uint32_t level = __atomic_load_n(&s.board.header->requested_level, __ATOMIC_ACQUIRE);
  r.until = Get(&s.board.header->requested_until_ns);
  if (level == MC_GPU_LEVEL_UNSET || level > MC_GPU_LEVEL_ACTIVITY) return {};
  // Activity has a limit always, the others may have none.
  if (r.until != 0 ? r.until <= now : level == MC_GPU_LEVEL_ACTIVITY) return {};
  r.level = static_cast<mc_gpu_level>(level);
  return r;
}

class Loop {
 public:
  explicit Loop(State& s) : s_(s) {}

  void Run() {
    while (s_.exiting.load(std::memory_order_acquire) == 0) {
      Turn();
      Wait(&s_.wake, wake_seen_, armed() ? kArmedNs : kIdleNs);
      wake_seen_ = s_.wake.load(std::memory_order_acquire);
    }
  }

 private:
  bool armed() const { return Get(&s_.board.header->state) == MC_GPU_ARMED; }
  bool released() const { return Get(&s_.board.header->state) == MC_GPU_RELEASED; }
  bool watching() const { return Get(&s_.board.header->state) == MC_GPU_WATCHING; }

  void Turn() {
    const uint64_t now = board::SystemClock();
    const Request request = ReadRequest(s_, now);
    mc_gpu_level want = request.level != MC_GPU_LEVEL_UNSET ? request.level : s_.base_level;
    uint64_t until = request.until;
    if (want == MC_GPU_LEVEL_ACTIVITY && request.level == MC_GPU_LEVEL_UNSET) {
      until = UINT64_MAX;  // MYCROFT_CUPTI=activity
    } else if (want == MC_GPU_LEVEL_ACTIVITY) {
      // The same request does not arm again once its time is over.
      if (until != last_until_) {
        last_until_ = until;
        deadline_ = until - now < kLongestArmedNs ? until : now + kLongestArmedNs;
        refused_ = false;
      }
      if (deadline_ <= now) want = s_.base_level;
      until = deadline_;
    }
    if (Get(&s_.board.header->state) == MC_GPU_FATAL) return;
    if (released() && want != MC_GPU_LEVEL_OFF) {
      s_.releasing.store(0, std::memory_order_release);
      Subscribe(s_);
    }
    if (armed() && want != MC_GPU_LEVEL_ACTIVITY) Disarm(s_);
    if (watching() && want == MC_GPU_LEVEL_OFF) Release(s_);
    if (watching() && want == MC_GPU_LEVEL_ACTIVITY && !refused_) {
      refused_ = !Arm(s_, until);
      if (refused_ && s_.layout != nullptr) Disarm(s_);
      last_flush_ = now;
    }
    if (armed()) {
      Set(&s_.board.header->armed_until_ns, until);
      if (now - last_flush_ >= kFlushNs) {
        last_flush_ = now;
        TakePair(s_);
        Flush(s_, 0);
      }
    }
    ReadBuffers(s_);
    if (armed() || watching()) DescribeDevices(s_);
  }

  State& s_;
  uint32_t wake_seen_ = 0;
  uint64_t last_until_ = 0;
  uint64_t deadline_ = 0;
  uint64_t last_flush_ = 0;
  bool refused_ = false;
};

void* Main(void* argument) {
  auto* s = static_cast<State*>(argument);
  prctl(PR_SET_NAME, "mycroft-cupti", 0, 0, 0);
  Loop(*s).Run();
  s->exiting.store(2, std::memory_order_release);
  return nullptr;
}

}  // namespace

bool Subscribe(State& s) {
  // Nobody is inside a call that we know of: callbacks are off.
  const uint32_t threads = Get(&s.board.header->threads_used);
  for (uint32_t i = 0; i < threads && i < MC_GPU_MAX_THREADS; ++i) {
    mc_gpu_thread* line = &s.board.threads[i];
    SharedLineWrite write(&line->seq);
    Set(&line->call, static_cast<uint32_t>(MC_GPU_HOST_NONE));
  }
  CUptiResult result;
#if CUPTI_API_VERSION >= 130000
  if (s.cupti.cuptiSubscribe_v2 != nullptr) {
    char other[sizeof(s.board.header->other_subscriber)] = {};
    CUpti_SubscriberParams params = {};
    params.structSize = CUpti_SubscriberParams_STRUCT_SIZE;
    params.subscriberName = "Mycroft";
    params.oldSubscriberName = other;
    params.oldSubscriberSize = sizeof(other);
    result = s.cupti.cuptiSubscribe_v2(&s.subscriber, OnCallback, nullptr, &params);
    if (result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED) {
      other[sizeof(other) - 1] = '\0';
      SetText(s.board.header->other_subscriber, other);
    }
  } else  // NOLINT
#endif
  {
    result = s.cupti.cuptiSubscribe(&s.subscriber, OnCallback, nullptr);
  }
  NoteError(s, MC_GPU_CALL_SUBSCRIBE, result);
  if (result != CUPTI_SUCCESS) {
    SetLevel(s, MC_GPU_LEVEL_OFF);
    SetState(
        s, result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED ? MC_GPU_TAKEN : MC_GPU_FAILED);
    return false;
  }
  const auto enable = [&](CUpti_CallbackDomain domain, uint32_t id) {
    return s.cupti.cuptiEnableCallback(1, s.subscriber, domain, id);
  };
  // An older library does not know the newest calls: nobody makes them then.
  for (const Call* call = kCalls; call->kind != CallKind::kNone; ++call) {
    const CUptiResult enabled = enable(CUPTI_CB_DOMAIN_DRIVER_API, call->cbid);
    if (enabled != CUPTI_SUCCESS && call == kCalls) {
      NoteError(s, MC_GPU_CALL_ENABLE_CALLBACK, enabled);
      s.cupti.cuptiUnsubscribe(s.subscriber);
      SetState(s, MC_GPU_FAILED);
      return false;
    }
  }
  for (uint32_t id :
       {CUPTI_CBID_RESOURCE_CONTEXT_CREATED, CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING,
        CUPTI_CBID_RESOURCE_STREAM_CREATED, CUPTI_CBID_RESOURCE_STREAM_DESTROY_STARTING,
        CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED}) {
    NoteError(s, MC_GPU_CALL_ENABLE_CALLBACK, enable(CUPTI_CB_DOMAIN_RESOURCE, id));
  }
  enable(CUPTI_CB_DOMAIN_STATE, CUPTI_CBID_STATE_FATAL_ERROR);
  SetLevel(s, MC_GPU_LEVEL_CALLBACKS);
  SetState(s, MC_GPU_WATCHING);
  return true;
}

void DetachFromCallback(State& s) {
  uint32_t wanted = 1;
  if (s.releasing.compare_exchange_strong(wanted, 2, std::memory_order_acq_rel)) Detach(s, true);
}

bool StartHelper(State& s) {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return false;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, 256u << 10);
  // Signals are the application's.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const bool ok = pthread_create(&thread, &attributes, Main, &s) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  return ok;
}

void StopHelper(State& s) {
  uint32_t running = 0;
  if (!s.exiting.compare_exchange_strong(running, 1, std::memory_order_acq_rel)) return;
  Wake(&s.wake);
  for (int i = 0; i < 100 && s.exiting.load(std::memory_order_acquire) != 2; ++i) {
    timespec pause = {0, 1'000'000};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace mycroft::agent
