// SPDX-License-Identifier: Apache-2.0
//
// How a line of the board is written, so that a reader in another process can
// tell a torn copy from a good one:
//
//   writer                              reader
//     seq = odd                           s = seq (acquire); odd: try again
//     body stores (release)               copy the body (acquire)
//     seq = even, 2 more (release)        seq changed: try again
//
// The body is stored with release, not with a fence after the odd word: the same
// plain moves on x86, and correct in the memory model as well (who sees a body
// word sees the odd word before it). Wait-free: a few plain stores.
//
// Thread safety: one writer per line for LineWrite; any number for SharedLineWrite.
#ifndef MYCROFT_CUPTI_BOARD_LINE_H_
#define MYCROFT_CUPTI_BOARD_LINE_H_

#include <cstdint>

namespace mycroft::board {

template <class T>
inline T Get(const T* field) {
  return __atomic_load_n(field, __ATOMIC_RELAXED);
}

template <class T, class V>
inline void Set(T* field, V value) {
  __atomic_store_n(field, static_cast<T>(value), __ATOMIC_RELEASE);
}

// Not a read-modify-write: for lines with one writer.
template <class T, class V>
inline void Bump(T* field, V by) {
  Set(field, static_cast<T>(Get(field) + by));
}

// As Bump, for 16-bit counters that must not wrap.
inline void BumpSaturated(uint16_t* field) {
  uint16_t v = Get(field);
  if (v != UINT16_MAX) Set(field, static_cast<uint16_t>(v + 1));
}

// For fields with several writers: atomic.
template <class T>
inline T AddShared(T* field, T by) {
  return __atomic_fetch_add(field, by, __ATOMIC_RELAXED);
}

// Raises a high-water mark that several threads raise.
inline void Raise(uint32_t* mark, uint32_t to) {
  uint32_t seen = Get(mark);
  while (seen < to && !__atomic_compare_exchange_n(mark, &seen, to, false, __ATOMIC_RELEASE,
                                                   __ATOMIC_RELAXED)) {
  }
}

// The line is being written while this lives. REQUIRES: no other writer.
class LineWrite {
 public:
  explicit LineWrite(uint32_t* seq) : seq_(seq), next_(Get(seq) | 1u) {
    __atomic_store_n(seq_, next_, __ATOMIC_RELAXED);
  }
  ~LineWrite() { __atomic_store_n(seq_, next_ + 1, __ATOMIC_RELEASE); }
  LineWrite(const LineWrite&) = delete;
  LineWrite& operator=(const LineWrite&) = delete;

 private:
  uint32_t* seq_;
  uint32_t next_;
};

// As LineWrite for a line with several writers. Each adds two, so the word still
// changes with every write and is even at rest; while two write at once a reader
// may copy fields of both, each of them whole.
class SharedLineWrite {
 public:
  explicit SharedLineWrite(uint32_t* seq) : seq_(seq) {
    __atomic_fetch_add(seq_, 1u, __ATOMIC_ACQ_REL);
  }
  ~SharedLineWrite() { __atomic_fetch_add(seq_, 1u, __ATOMIC_RELEASE); }
  SharedLineWrite(const SharedLineWrite&) = delete;
  SharedLineWrite& operator=(const SharedLineWrite&) = delete;

 private:
  uint32_t* seq_;
};

}  // namespace mycroft::board

#endif  // MYCROFT_CUPTI_BOARD_LINE_H_
