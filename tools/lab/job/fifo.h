// SPDX-License-Identifier: Apache-2.0
//
// The FIFO between the GPU and the proxy thread, one per connection, and the bells
// by which they wake each other.
//
//   send: device fills a slot, moves `tail`;  proxy sends it, moves `head`
//   recv: proxy fills a slot, moves `tail`;   device consumes it, moves `head`
//
// 8 slots; `head` and `tail` count steps and never go back. A slot's bytes and size
// belong to the side that may move the counter over it: publishing is a release
// store, looking is an acquire load, nothing else is shared.
#ifndef MYCROFT_TOOLS_LAB_JOB_FIFO_H_
#define MYCROFT_TOOLS_LAB_JOB_FIFO_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "tools/lab/job/clock.h"
#include "tools/lab/job/ring.h"

namespace mycroft::lab {

struct Fifo {
  std::atomic<uint64_t> head{0};
  std::atomic<uint64_t> tail{0};
  std::array<size_t, kSteps> size{};  // bytes of the transfer that starts in this slot
  std::vector<char> buffer = std::vector<char>(kBufferBytes);

  static size_t Slot(uint64_t step) { return step % kSteps; }
  char* At(uint64_t step) { return buffer.data() + Slot(step) * kStepBytes; }
};

// Wakes one sleeping thread. Sleeper: s = Look(); check for work; Wait(s, deadline).
// A Ring() after Look() is never missed.
class Bell {
 public:
  uint32_t Look() const { return count_.load(std::memory_order_seq_cst); }
  void Ring() {
    count_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) {
      syscall(SYS_futex, &count_, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
    }
  }
  // Until the bell rings or CLOCK_MONOTONIC reaches `deadline_ns` (kNever: no limit).
  void Wait(uint32_t seen, uint64_t deadline_ns) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    timespec until = ToTimespec(deadline_ns);
    // FUTEX_WAIT_BITSET takes an absolute CLOCK_MONOTONIC time.
    syscall(SYS_futex, &count_, FUTEX_WAIT_BITSET_PRIVATE, seen,
            deadline_ns == kNever ? nullptr : &until, nullptr, FUTEX_BITSET_MATCH_ANY);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  std::atomic<uint32_t> count_{0};
  std::atomic<uint32_t> sleepers_{0};
};

// The same for a thread that sleeps in poll(): an eventfd. Thread-safe.
class PollBell {
 public:
  PollBell();
  ~PollBell();
  PollBell(const PollBell&) = delete;
  PollBell& operator=(const PollBell&) = delete;

  int fd() const { return fd_; }
  void Ring() {
    rung_.store(true, std::memory_order_seq_cst);
    if (asleep_.load(std::memory_order_seq_cst)) Write();
  }
  // Sleeper: Arm(); check for work; poll(fd()); Disarm(). Arm() is false, and the
  // sleeper must look again, when the bell rang since the last Disarm().
  bool Arm() {
    asleep_.store(true, std::memory_order_seq_cst);
    return !rung_.load(std::memory_order_seq_cst);
  }
  void Disarm();

 private:
  void Write();
  int fd_;
  std::atomic<bool> asleep_{false};
  std::atomic<bool> rung_{false};
};

}  // namespace mycroft::lab

#endif  // MYCROFT_TOOLS_LAB_JOB_FIFO_H_
