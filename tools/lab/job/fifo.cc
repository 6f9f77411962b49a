// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/job/fifo.h"

#include <sys/eventfd.h>

#include <cstdio>
#include <cstdlib>

namespace mycroft::lab {

PollBell::PollBell() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (fd_ < 0) {
    perror("mycroft-lab: eventfd");
    abort();
  }
}

PollBell::~PollBell() { close(fd_); }

void PollBell::Write() {
  const uint64_t one = 1;
  [[maybe_unused]] ssize_t n = write(fd_, &one, sizeof(one));
}

void PollBell::Disarm() {
  asleep_.store(false, std::memory_order_seq_cst);
  // An exchange, not a store: it must see what was done before the last Ring().
  rung_.exchange(false, std::memory_order_seq_cst);
  uint64_t count = 0;
  [[maybe_unused]] ssize_t n = read(fd_, &count, sizeof(count));
}

}  // namespace mycroft::lab
