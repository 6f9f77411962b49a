// SPDX-License-Identifier: Apache-2.0
//
// Adaptive binary range coder (the carry-propagating one of LZMA): bits that are
// easy to guess cost next to nothing, noise costs one bit per bit. Most of what
// is recorded is either exactly as predicted or nanosecond noise, which no byte
// oriented compressor gets down to its real size.
//
// Integer arithmetic only, so that all machines agree. Not thread-safe. The
// decoder never reads outside its input and never fails by throwing: check ok().
#ifndef MYCROFT_USERSPACE_STORE_RANGE_CODER_H_
#define MYCROFT_USERSPACE_STORE_RANGE_CODER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace mycroft {

// Probability that the next bit is 0, in 1/65536. Learns fast at first: the nth
// observation moves it by 1/(n + 1.5), and by 1/kSlowest in the long run.
class AdaptiveBit {
 public:
  uint32_t zero_15() const {
    const uint32_t p = p_ >> 1;
    return p < kMargin ? kMargin : p > 32768 - kMargin ? 32768 - kMargin : p;
  }
  void Learn(bool bit) {
    const int32_t target = bit ? 0 : 65535;
    p_ = static_cast<uint16_t>(p_ + ((int64_t{target} - p_) * kRate[n_] >> 16));
    if (n_ + 1u < kRate.size()) ++n_;
  }

 private:
  static constexpr uint32_t kMargin = 24;
  static constexpr int kSlowest = 48;
  static constexpr std::array<int32_t, kSlowest> kRate = [] {
    std::array<int32_t, kSlowest> rate{};
    for (int n = 0; n < kSlowest; ++n) rate[n] = 65536 * 2 / (2 * n + 3);
    return rate;
  }();
  uint16_t p_ = 32768;
  uint16_t n_ = 0;
};

class RangeEncoder {
 public:
  // Appends to `out`, which must outlive the encoder.
  explicit RangeEncoder(std::string* out) : out_(out) {}

  void Bit(AdaptiveBit& model, bool bit) {
    const uint32_t bound = (range_ >> 15) * model.zero_15();
    if (bit) {
      low_ += bound;
      range_ -= bound;
    } else {
      range_ = bound;
    }
    model.Learn(bit);
    Normalize();
  }

  // `count` bits without a model, count <= 16.
  void Raw(uint32_t value, int count) {
    range_ >>= count;
    low_ += uint64_t{range_} * value;
    Normalize();
  }

  // Call once, at the end.
  void Finish() {
    for (int i = 0; i < 5; ++i) ShiftLow();
  }

 private:
  void Normalize() {
    while (range_ < 1u << 24) {
      range_ <<= 8;
      ShiftLow();
    }
  }

  void ShiftLow() {
    if (low_ < 0xff000000u || low_ > 0xffffffffu) {
      const auto carry = static_cast<uint8_t>(low_ >> 32);
      if (started_) out_->push_back(static_cast<char>(cache_ + carry));
      for (; pending_ > 0; --pending_) out_->push_back(static_cast<char>(0xff + carry));
      started_ = true;
      cache_ = static_cast<uint8_t>(low_ >> 24);
    } else {
      ++pending_;
    }
    low_ = (low_ & 0x00ffffff) << 8;
  }

  std::string* out_;
  uint64_t low_ = 0;
  uint32_t range_ = 0xffffffff;
  uint8_t cache_ = 0;
  uint64_t pending_ = 0;
  bool started_ = false;  // the first byte would always be 0: it is left out
};

class RangeDecoder {
 public:
  // The bytes must outlive the decoder.
  RangeDecoder(const uint8_t* data, size_t size) : data_(data), size_(size) {
    for (int i = 0; i < 4; ++i) code_ = code_ << 8 | Byte();
  }

  bool Bit(AdaptiveBit& model) {
    const uint32_t bound = (range_ >> 15) * model.zero_15();
    const bool bit = code_ >= bound;
    if (bit) {
      code_ -= bound;
      range_ -= bound;
    } else {
      range_ = bound;
    }
    model.Learn(bit);
    Normalize();
    return bit;
  }

  uint32_t Raw(int count) {
    range_ >>= count;
    uint32_t value = code_ / range_;
    if (value >> count != 0) {  // no encoder writes this
      ok_ = false;
      value = 0;
    }
    code_ -= value * range_;
    Normalize();
    return value;
  }

  // False once the input was over, or could not have come from an encoder.
  bool ok() const { return ok_; }

 private:
  void Normalize() {
    while (range_ < 1u << 24) {
      range_ <<= 8;
      code_ = code_ << 8 | Byte();
    }
  }

  uint8_t Byte() {
    if (at_ < size_) return data_[at_++];
    ok_ = false;
    return 0;
  }

  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
  uint32_t code_ = 0;
  uint32_t range_ = 0xffffffff;
  bool ok_ = true;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_STORE_RANGE_CODER_H_
