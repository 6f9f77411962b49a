// SPDX-License-Identifier: Apache-2.0
//
// What both CUDA programs share: errors that end the program with a sentence, time, kernels
// that last as long as asked, and the file of JSON lines in which a program says the truth.
#ifndef MYCROFT_TESTS_GPU_COMMON_CUH_
#define MYCROFT_TESTS_GPU_COMMON_CUH_

#include <cuda_runtime.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define CUDA_OK(call)                                                            \
  do {                                                                           \
    const cudaError_t error_ = (call);                                           \
    if (error_ != cudaSuccess) Die("%s: %s", #call, cudaGetErrorString(error_)); \
  } while (0)

[[noreturn]] inline void Die(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "error: ");
  vfprintf(stderr, format, arguments);
  fprintf(stderr, "\n");
  va_end(arguments);
  // Not exit(): destructors of CUDA wait for kernels that may hang.
  fflush(nullptr);
  _exit(1);
}

inline uint64_t NowNs() {  // the clock of the boards and of recordings
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

inline void SleepNs(uint64_t ns) {
  timespec left = {static_cast<time_t>(ns / 1000000000u), static_cast<long>(ns % 1000000000u)};
  while (nanosleep(&left, &left) != 0) {
  }
}

// Kernels last by %globaltimer and not by clock64: the contexts of two processes take turns on
// one GPU, and a count of cycles would be longer by the other's turns.
__device__ inline uint64_t GlobalTimerNs() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

__device__ inline void SpinNs(uint64_t ns, const volatile int* end_early) {
  const uint64_t begin = GlobalTimerNs();
  while (GlobalTimerNs() - begin < ns) {
    if (end_early != nullptr && *end_early != 0) return;
  }
}

inline volatile sig_atomic_t g_stop = 0;
inline void OnStop(int) { g_stop = 1; }

// SIGTERM asks for an orderly end; nothing lasts longer than `most_seconds`, nor than the
// process that started it.
inline void BoundMe(unsigned most_seconds) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(most_seconds);
  struct sigaction action = {};
  action.sa_handler = OnStop;
  action.sa_flags = SA_RESTART;  // NCCL's threads may be in any call
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
}

class Truth {
 public:
  explicit Truth(const char* path) : file_(fopen(path, "w")) {
    if (file_ == nullptr) Die("cannot write %s", path);
  }
  // {"event": "...", "t_ns": ...more}
  void Say(const char* event, uint64_t t_ns, const char* format = "", ...) {
    fprintf(file_, "{\"event\": \"%s\", \"t_ns\": %llu", event,
            static_cast<unsigned long long>(t_ns));
    va_list arguments;
    va_start(arguments, format);
    vfprintf(file_, format, arguments);
    va_end(arguments);
    fprintf(file_, "}\n");
    fflush(file_);
  }

 private:
  FILE* file_;
};

#endif  // MYCROFT_TESTS_GPU_COMMON_CUH_
