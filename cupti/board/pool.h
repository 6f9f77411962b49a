// SPDX-License-Identifier: Apache-2.0
//
// A fixed pool of indexes 0..N-1, taken and returned by any thread, wait-free: one
// bit per index, the lowest free one is preferred so that the memory behind the
// pool stays dense. All zero is the state "everything free".
#ifndef MYCROFT_CUPTI_BOARD_POOL_H_
#define MYCROFT_CUPTI_BOARD_POOL_H_

#include <atomic>
#include <cstdint>

namespace mycroft::board {

constexpr uint32_t kNoIndex = UINT32_MAX;

template <uint32_t N>
class IndexPool {
  static_assert(N % 64 == 0);

 public:
  // kNoIndex when none was free (or others took them while we looked).
  uint32_t Take() {
    for (uint32_t w = hint_.load(std::memory_order_relaxed) % kWords, i = 0; i < kWords;
         ++i, w = (w + 1) % kWords) {
      uint64_t used = used_[w].load(std::memory_order_relaxed);
      while (used != UINT64_MAX) {
        const uint64_t bit = ~used & (used + 1);
        used = used_[w].fetch_or(bit, std::memory_order_acq_rel);
        if ((used & bit) == 0) {
          hint_.store(w, std::memory_order_relaxed);
          return w * 64 + static_cast<uint32_t>(__builtin_ctzll(bit));
        }
      }
    }
    return kNoIndex;
  }

  void Return(uint32_t index) {
    const uint32_t w = index / 64;
    used_[w].fetch_and(~(uint64_t{1} << (index % 64)), std::memory_order_acq_rel);
    if (w < hint_.load(std::memory_order_relaxed)) hint_.store(w, std::memory_order_relaxed);
  }

 private:
  static constexpr uint32_t kWords = N / 64;
  std::atomic<uint64_t> used_[kWords];
  std::atomic<uint32_t> hint_;
};

}  // namespace mycroft::board

#endif  // MYCROFT_CUPTI_BOARD_POOL_H_
