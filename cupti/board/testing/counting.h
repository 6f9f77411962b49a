// SPDX-License-Identifier: Apache-2.0
//
// For tests that prove that code in the training process neither allocates nor makes a
// system call: counts calls of the allocator and mmap by the calling thread, and puts a
// thread under a seccomp filter that kills the process at its first system call.
//
// Include it in one file of a test program: it defines malloc, calloc, realloc and mmap,
// to which the references of loaded libraries resolve, since the executable comes first.
#ifndef MYCROFT_CUPTI_BOARD_TESTING_COUNTING_H_
#define MYCROFT_CUPTI_BOARD_TESTING_COUNTING_H_

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

// Of the calling thread.
inline thread_local uint64_t t_allocations = 0;
inline thread_local uint64_t t_mappings = 0;

// Sanitizers have an allocator, and make system calls, of their own.
inline bool Sanitized() { return MYCROFT_SANITIZED[0] != '\0'; }

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* malloc(size_t n) {
  ++t_allocations;
  return __libc_malloc(n);
}
void* calloc(size_t n, size_t m) {
  ++t_allocations;
  return __libc_calloc(n, m);
}
void* realloc(void* p, size_t n) {
  ++t_allocations;
  return __libc_realloc(p, n);
}
void* mmap(void* at, size_t n, int prot, int flags, int fd, off_t offset) {
  ++t_mappings;
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, n, prot, flags, fd, offset));
}
}
#endif

// From now on the calling thread may make the system call `exit_call` and no other. Not
// SECCOMP_MODE_STRICT: that takes the time-stamp counter away as well, and with it
// clock_gettime without a system call.
inline bool AllowExitOnly(long exit_call) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(exit_call), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  sock_fprog program = {sizeof(code) / sizeof(code[0]), code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

#endif  // MYCROFT_CUPTI_BOARD_TESTING_COUNTING_H_
