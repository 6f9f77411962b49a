// SPDX-License-Identifier: Apache-2.0
//
// A fixed hash table from a 48-bit key (not 0) to an index below 65534. One word per
// entry, so that an entry is there as a whole or not at all. All zero is the empty table.
//
// Thread-safe; wait-free (a bounded number of probes). Two threads that insert one key
// at once may both succeed after a removal; the entry nearer to the key's home is the
// one that is found from then on.
#ifndef MYCROFT_CUPTI_AGENT_PACKED_TABLE_H_
#define MYCROFT_CUPTI_AGENT_PACKED_TABLE_H_

#include <atomic>
#include <cstdint>

namespace mycroft::agent {

constexpr uint32_t kNotFound = UINT32_MAX;
constexpr uint64_t kKeyMask = (uint64_t{1} << 48) - 1;

inline uint64_t Mix(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ x >> 33;
}

template <uint32_t N>
class PackedTable {
  static_assert((N & (N - 1)) == 0);

 public:
  uint32_t Find(uint64_t key) const {
    const uint32_t home = Home(key);
    for (uint32_t i = 0; i < kProbes; ++i) {
      const uint64_t entry = entries_[(home + i) & (N - 1)].load(std::memory_order_acquire);
      if (entry >> 16 == key) return static_cast<uint32_t>(entry & 0xFFFF) - 1;
      if (entry == 0) break;
    }
    return kNotFound;
  }

  // The index in force: `index`, or that of another thread which was first. kNotFound:
  // no free entry near the key's home.
  uint32_t Insert(uint64_t key, uint32_t index) {
    const uint32_t home = Home(key);
    const uint64_t fresh = key << 16 | (index + 1);
    for (uint32_t i = 0; i < kProbes; ++i) {
      std::atomic<uint64_t>& at = entries_[(home + i) & (N - 1)];
      uint64_t entry = at.load(std::memory_order_acquire);
      if (entry >> 16 == key) return static_cast<uint32_t>(entry & 0xFFFF) - 1;
      if (entry == 0 || entry == kRemoved) {
        // Behind a removed entry the key may still be there.
        if (entry == kRemoved) {
          const uint32_t found = Find(key);
          if (found != kNotFound) return found;
        }
        if (at.compare_exchange_strong(entry, fresh, std::memory_order_acq_rel)) return index;
        if (entry >> 16 == key) return static_cast<uint32_t>(entry & 0xFFFF) - 1;
      }
    }
    return kNotFound;
  }

  // Only if it leads to `index`.
  void Remove(uint64_t key, uint32_t index) {
    const uint32_t home = Home(key);
    for (uint32_t i = 0; i < kProbes; ++i) {
      std::atomic<uint64_t>& at = entries_[(home + i) & (N - 1)];
      uint64_t entry = key << 16 | (index + 1);
      if (at.compare_exchange_strong(entry, kRemoved, std::memory_order_acq_rel)) return;
      if (entry == 0) return;
    }
  }

 private:
  static constexpr uint32_t kProbes = N < 64 ? N : 64;
  static constexpr uint64_t kRemoved = 0xFFFF;  // key 0
  static uint32_t Home(uint64_t key) { return static_cast<uint32_t>(Mix(key)) & (N - 1); }

  std::atomic<uint64_t> entries_[N];
};

}  // namespace mycroft::agent

#endif  // MYCROFT_CUPTI_AGENT_PACKED_TABLE_H_
