// The oracle: one value at a time, through the shared formulas. Runs on every CPU.
#include <cstring>

#include "base/half.h"
#include "codec/cpu/kernels.h"
#include "codec/maxmin.h"
#include "codec/random.h"

namespace cgx::cpu {
namespace {

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
    std::memcpy(y + 4 * i, &value, 4);
  } else {
    const uint16_t bits =
        dtype == DType::kFloat16 ? float_to_half(value) : float_to_bfloat16(value);
    std::memcpy(y + 2 * i, &bits, 2);
  }
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

template <DType dtype>
void encode(const MaxMinPart& part, const std::byte* x, Rounding rounding, RandomKey key,
            uint64_t index, std::byte* meta_out, std::byte* codes) {
  const float levels = maxmin_levels(part.bits);
  BitWriter writer(codes, part.bits);
  for (size_t start = 0; start < part.n; start += part.bucket_size) {
    const size_t n = part.bucket_size < part.n - start ? part.bucket_size : part.n - start;
    const std::byte* bucket = x + start * size_of(dtype);
    const Extremes e = extremes<dtype>(bucket, n);
    const MaxMinMeta meta = maxmin_meta(e.min, e.max, e.finite, levels);
    std::memcpy(meta_out, &meta, sizeof meta);
    meta_out += sizeof meta;
    const MaxMinScale scale = maxmin_scale(meta, levels);
    for (size_t i = 0; i < n; ++i) {
      const float position = maxmin_position(load<dtype>(bucket, i), scale);
      writer.put(rounding == Rounding::kNearest
                     ? maxmin_nearest(position, scale.top)
                     : maxmin_stochastic(position, scale.top, random_of(key, index + start + i)));
    }
  }
}

void maxmin_encode(const MaxMinPart& part, const std::byte* x, DType dtype, Rounding rounding,
                   RandomKey key, uint64_t index, std::byte* meta, std::byte* codes) {
  with_dtype(dtype,
             [&]<DType type>() { encode<type>(part, x, rounding, key, index, meta, codes); });
}

void maxmin_decode(const MaxMinPart& part, const std::byte* meta_in, const std::byte* codes,
                   float* y, bool add) {
  const uint32_t mask = (1u << part.bits) - 1;
  uint32_t word = 0;
  int held = 0;
  for (size_t start = 0; start < part.n; start += part.bucket_size) {
    const size_t n = part.bucket_size < part.n - start ? part.bucket_size : part.n - start;
    MaxMinMeta meta;
    std::memcpy(&meta, meta_in, sizeof meta);
    meta_in += sizeof meta;
    for (size_t i = 0; i < n; ++i) {
      if (held < part.bits) {
        word |= static_cast<uint32_t>(*codes++) << held;
        held += 8;
      }
      const float value = maxmin_value(meta, word & mask);
      word >>= part.bits;
      held -= part.bits;
      y[start + i] = add ? y[start + i] + value : value;
    }
  }
}

bool all_finite(const std::byte* x, DType dtype, size_t n) {
  return with_dtype(dtype, [&]<DType type>() {
    for (size_t i = 0; i < n; ++i) {
      if ((as_bits(load<type>(x, i)) & 0x7f800000) == 0x7f800000) return false;
    }
    return true;
  });
}

void to_float(const std::byte* x, DType dtype, size_t n, float* y) {
  with_dtype(dtype, [&]<DType type>() {
    for (size_t i = 0; i < n; ++i) y[i] = load<type>(x, i);
  });
}

void add_to_float(const std::byte* x, DType dtype, size_t n, float* y) {
  with_dtype(dtype, [&]<DType type>() {
    for (size_t i = 0; i < n; ++i) y[i] += load<type>(x, i);
  });
}

void from_float(const float* x, DType dtype, size_t n, std::byte* y) {
  const std::byte* in = reinterpret_cast<const std::byte*>(x);  // of any alignment
  with_dtype(dtype, [&]<DType type>() {
    for (size_t i = 0; i < n; ++i) store<type>(y, i, load<DType::kFloat32>(in, i));
  });
}

void add_pair(const float* a, const float* b, size_t n, float* y) {
  for (size_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

void divide(float* y, size_t n, float divisor) {
  for (size_t i = 0; i < n; ++i) y[i] /= divisor;
}

void scan(const std::byte* x, DType dtype, size_t n, float* min, float* max) {
  const Extremes e = with_dtype(dtype, [&]<DType type>() { return extremes<type>(x, n); });
  *min = e.min;
  *max = e.max;
}

}  // namespace

const Kernels& scalar_kernels() {
  static constexpr Kernels kKernels{"scalar", maxmin_encode, maxmin_decode, all_finite,
                                    to_float, add_to_float,  from_float,    add_pair,
                                    divide,   scan};
  return kKernels;
}

}  // namespace cgx::cpu
