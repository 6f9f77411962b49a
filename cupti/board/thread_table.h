// SPDX-License-Identifier: Apache-2.0
//
// Lines of a table of threads: given out once each, then taken over from threads that
// have ended. Wait-free: at most four looks, and no more than the system calls of these
// (once in the life of a thread, and only when the table is full).
#ifndef MYCROFT_CUPTI_BOARD_THREAD_TABLE_H_
#define MYCROFT_CUPTI_BOARD_THREAD_TABLE_H_

#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace mycroft::board {

// A line for thread `tid` of process `pid`; `capacity` when the table is full of threads
// that live. `Thread` has std::atomic<uint32_t> tid, 0 until its line is given out; `next`
// counts the registrations. Any thread may call it at any time.
template <typename Thread, uint32_t capacity>
uint32_t ClaimThread(Thread (&threads)[capacity], std::atomic<uint32_t>& next, uint32_t pid,
                     uint32_t tid) {
  const uint32_t n = next.fetch_add(1, std::memory_order_relaxed);
  if (n < capacity) {
    threads[n].tid.store(tid, std::memory_order_relaxed);
    return n;
  }
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t at = (n * 4 + i) % capacity;
    uint32_t old = threads[at].tid.load(std::memory_order_relaxed);
    if (old != 0 && syscall(SYS_tgkill, pid, old, 0) != 0 && errno == ESRCH &&
        threads[at].tid.compare_exchange_strong(old, tid, std::memory_order_acq_rel)) {
      return at;
    }
  }
  return capacity;
}

}  // namespace mycroft::board

#endif  // MYCROFT_CUPTI_BOARD_THREAD_TABLE_H_
