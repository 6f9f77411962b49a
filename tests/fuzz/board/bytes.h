// SPDX-License-Identifier: Apache-2.0
//
// Fuzzer input as a row of numbers; zero when there is no more. Not thread-safe.
#ifndef MYCROFT_TESTS_FUZZ_BOARD_BYTES_H_
#define MYCROFT_TESTS_FUZZ_BOARD_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace mycroft {

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  size_t left() const { return size_; }

  uint8_t U8() { return Number<uint8_t>(); }
  uint16_t U16() { return Number<uint16_t>(); }
  uint64_t U64() { return Number<uint64_t>(); }
  // 0 .. n-1
  uint32_t Below(uint32_t n) { return U8() % n; }
  // A number of the kinds that break things: small, huge, near `base`, any.
  uint64_t Any(uint64_t base) {
    const uint8_t kind = U8();
    switch (kind % 8) {
      case 0:
        return 0;
      case 1:
        return kind / 8;
      case 2:
        return UINT64_MAX - kind / 8;
      case 3:
        return base + uint64_t{U16()} * 1'000'000;
      case 4:
        return base - uint64_t{U16()} * 1'000'000;
      case 5:
        return uint64_t{1} << (kind / 8);
      case 6:
        return U16();
      case 7:
        return U64();
    }
    return 0;
  }
  // At most `bytes` of the input into `to`.
  size_t Copy(void* to, size_t bytes) {
    if (bytes > size_) bytes = size_;
    if (bytes > 0) std::memcpy(to, data_, bytes);
    data_ += bytes;
    size_ -= bytes;
    return bytes;
  }

 private:
  template <typename T>
  T Number() {
    T value = 0;
    Copy(&value, sizeof(value));
    return value;
  }
  const uint8_t* data_;
  size_t size_;
};

}  // namespace mycroft

#endif  // MYCROFT_TESTS_FUZZ_BOARD_BYTES_H_
