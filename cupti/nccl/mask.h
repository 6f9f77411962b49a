// SPDX-License-Identifier: Apache-2.0
//
// The event mask that NCCL goes by: one int of the process, whose address every
// init brings and which stays valid for the life of the process. What we ask for
// is one part of it, what a chained plugin asks for the other.
//
// Thread-safe, wait-free. NCCL samples the mask once per API call, so a change
// acts on whole operations.
#ifndef MYCROFT_CUPTI_NCCL_MASK_H_
#define MYCROFT_CUPTI_NCCL_MASK_H_

#include <atomic>
#include <cstdint>

#include "bpf/abi/board.h"
#include "cupti/nccl/profiler_abi.h"

namespace mycroft::nccl {

struct EventMask {
  std::atomic<int*> target{nullptr};  // NCCL's int
  std::atomic<int> ours{0};
  int chained = 0;                   // the int that the chained plugin was given
  std::atomic<int> chained_seen{0};  // its value when last published
};
extern EventMask g_mask;

constexpr int LevelMask(mc_level level) {
  switch (level) {
    case MC_LEVEL_UNSET:
      return 0;
    case MC_LEVEL_OPS:
      return kColl | kP2p;
    case MC_LEVEL_STEPS:
      return kColl | kP2p | kProxyOp | kProxyStep;
    case MC_LEVEL_KERNELS:
      return kColl | kP2p | kProxyOp | kProxyStep | kKernelCh;
  }
  return 0;
}

// Writes NCCL's int. Last thing an init does: NCCL calls back at once.
inline void PublishMask() {
  const int chained = __atomic_load_n(&g_mask.chained, __ATOMIC_RELAXED);
  g_mask.chained_seen.store(chained, std::memory_order_relaxed);
  if (int* target = g_mask.target.load(std::memory_order_acquire)) {
    __atomic_store_n(target, g_mask.ours.load(std::memory_order_relaxed) | chained,
                     __ATOMIC_RELAXED);
  }
}

// Publishes again when the chained plugin has changed its mind. Cheap.
inline void FollowChainedMask() {
  if (__atomic_load_n(&g_mask.chained, __ATOMIC_RELAXED) !=
      g_mask.chained_seen.load(std::memory_order_relaxed)) {
    PublishMask();
  }
}

}  // namespace mycroft::nccl

#endif  // MYCROFT_CUPTI_NCCL_MASK_H_
