// SPDX-License-Identifier: Apache-2.0
#include "userspace/base/memory.h"

#include <malloc.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace mycroft {

void KeepHeapHot() {
  constexpr int kMiB = 1 << 20;
  constexpr uintptr_t kHugePage = 2 * kMiB;
  mallopt(M_MMAP_THRESHOLD, 16 * kMiB);
  mallopt(M_TRIM_THRESHOLD, 64 * kMiB);
  // The heap grows by so much: only address space, until it is touched.
  mallopt(M_TOP_PAD, 16 * kMiB);
  void* first = malloc(kMiB);  // makes it grow now
  const auto begin = reinterpret_cast<uintptr_t>(first);
  const auto end = reinterpret_cast<uintptr_t>(sbrk(0));
  free(first);
  if (begin == 0 || begin >= end) return;  // the heap is not where glibc has it
  const uintptr_t aligned = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t aligned_end = end / kHugePage * kHugePage;
  if (aligned >= aligned_end) return;
  madvise(reinterpret_cast<void*>(aligned), aligned_end - aligned, MADV_HUGEPAGE);
}

}  // namespace mycroft
