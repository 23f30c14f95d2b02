// What the scalar loops of all families are made of: one value at a time.
#pragma once

#include <cstring>

#include "base/dtype.h"
#include "base/half.h"
#include "base/nan.h"

namespace cgx::cpu::scalar {

template <DType dtype>
float load(const std::byte* x, size_t i) {
  if constexpr (dtype == DType::kFloat32) {
    float value;
    std::memcpy(&value, x + 4 * i, 4);
    return value;
  } else {
    uint16_t value;
    std::memcpy(&value, x + 2 * i, 2);
    return dtype == DType::kFloat16 ? half_to_float(value) : bfloat16_to_float(value);
  }
}

template <DType dtype>
void store(std::byte* y, size_t i, float value) {
  if constexpr (dtype == DType::kFloat32) {
    value = one_nan(value);
    std::memcpy(y + 4 * i, &value, 4);
  } else {
    const uint16_t bits =
        dtype == DType::kFloat16 ? float_to_half(value) : float_to_bfloat16(value);
    std::memcpy(y + 2 * i, &bits, 2);
  }
}

inline double load_wide(const std::byte* x, size_t i) {
  double value;
  std::memcpy(&value, x + 8 * i, 8);
  return value;
}

inline void store_wide(std::byte* y, size_t i, double value) {
  value = one_nan(value);
  std::memcpy(y + 8 * i, &value, 8);
}

/// Calls f.operator()<dtype>().
template <typename F>
auto with_dtype(DType dtype, F f) {
  switch (dtype) {
    case DType::kFloat16:
      return f.template operator()<DType::kFloat16>();
    case DType::kBFloat16:
      return f.template operator()<DType::kBFloat16>();
    default:
      return f.template operator()<DType::kFloat32>();
  }
}

struct Extremes {
  float min;
  float max;
  bool finite;
};

template <DType dtype>
Extremes extremes(const std::byte* x, size_t n) {
  const float first = load<dtype>(x, 0);
  Extremes e{first, first, true};
  for (size_t i = 0; i < n; ++i) {
    const float value = load<dtype>(x, i);
    e.min = value < e.min ? value : e.min;
    e.max = value > e.max ? value : e.max;
    e.finite &= value == value;
  }
  return e;
}

/// Appends codes to a stream of bits, lowest bit first. Writes nothing beyond the last byte that
/// holds a code.
class BitWriter {
 public:
  BitWriter(std::byte* out, int bits) : out_(out), bits_(bits) {}
  ~BitWriter() {
    if (held_ > 0) *out_ = static_cast<std::byte>(word_);
  }
  void put(uint32_t code) {
    word_ |= code << held_;
    held_ += bits_;
    if (held_ >= 8) {
      *out_++ = static_cast<std::byte>(word_);
      word_ >>= 8;
      held_ -= 8;
    }
  }

 private:
  std::byte* out_;
  int bits_;
  uint32_t word_ = 0;
  int held_ = 0;
};

/// Takes codes from such a stream. Reads nothing beyond the last byte that holds a code.
class BitReader {
 public:
  BitReader(const std::byte* in, int bits) : in_(in), bits_(bits) {}
  uint32_t get() {
    if (held_ < bits_) {
      word_ |= static_cast<uint32_t>(*in_++) << held_;
      held_ += 8;
    }
    const uint32_t code = word_ & ((1u << bits_) - 1);
    word_ >>= bits_;
    held_ -= bits_;
    return code;
  }

 private:
  const std::byte* in_;
  int bits_;
  uint32_t word_ = 0;
  int held_ = 0;
};

}  // namespace cgx::cpu::scalar
