// Values that codecs find hard, and the same in the types of tensors.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/dtype.h"
#include "base/half.h"
#include "codec/ops/random.h"

namespace cgx::native {

/// Of each rank: the bytes of its tensor, and the values in it.
using Tensors = std::vector<std::vector<std::byte>>;
using Values = std::vector<std::vector<float>>;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t operator()() { return splitmix64(state_ += 0x9e3779b97f4a7c15u); }
  /// In [0, below).
  uint64_t operator()(uint64_t below) { return (*this)() % below; }
  /// In [-1, 1).
  double signed_unit() { return static_cast<double>((*this)() >> 11) * 0x1p-52 - 1; }

 private:
  uint64_t state_;
};

inline constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

inline constexpr int kPatterns = 7;

/// n values of one of kPatterns kinds; finite, and so small that sums of 100 stay finite in any
/// dtype.
inline std::vector<float> values(size_t n, int pattern, uint64_t seed) {
  Random random(seed);
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) {
    const double r = random.signed_unit();
    switch (pattern) {
      case 0:  // about Gaussian
        x[i] = static_cast<float>(r + random.signed_unit() + random.signed_unit());
        break;
      case 1:  // all equal, zeros of both signs among them
        x[i] = seed % 2 == 0 ? 0.375f : (r < 0 ? -0.0f : 0.0f);
        break;
      case 2:  // one spike among small ones
        x[i] = i == n / 3 ? 400.0f : static_cast<float>(r * 1e-3);
        break;
      case 3:  // subnormal in float32
        x[i] = static_cast<float>(r * 1e-41);
        break;
      case 4:  // magnitudes of all sizes
        x[i] = static_cast<float>(r * std::pow(2.0, static_cast<double>(random(30)) - 24));
        break;
      case 5:  // zeros among values of both signs, one of which is large
        x[i] = random(3) == 0 ? (r < 0 ? -0.0f : 0.0f) : static_cast<float>(i == n / 2 ? 9 : r);
        break;
      default:  // far from zero: large minimum, small range
        x[i] = static_cast<float>(300 + r * 0.01);
    }
  }
  return x;
}

inline float load_value(const std::byte* at, DType dtype) {
  if (dtype == DType::kFloat32) {
    float x;
    std::memcpy(&x, at, 4);
    return x;
  }
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  return dtype == DType::kFloat16 ? half_to_float(bits) : bfloat16_to_float(bits);
}

/// The bytes of a tensor that holds x, of exactly that size: tools see an access beyond it.
inline std::vector<std::byte> tensor_of(const std::vector<float>& x, DType dtype) {
  std::vector<std::byte> bytes(x.size() * size_of(dtype));
  for (size_t i = 0; i < x.size(); ++i) {
    if (dtype == DType::kFloat32) {
      std::memcpy(bytes.data() + 4 * i, &x[i], 4);
    } else {
      const uint16_t narrow =
          dtype == DType::kFloat16 ? float_to_half(x[i]) : float_to_bfloat16(x[i]);
      std::memcpy(bytes.data() + 2 * i, &narrow, 2);
    }
  }
  return bytes;
}

inline std::vector<float> values_of(const std::vector<std::byte>& tensor, DType dtype) {
  std::vector<float> x(tensor.size() / size_of(dtype));
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = load_value(tensor.data() + i * size_of(dtype), dtype);
  return x;
}

/// Tensors of n values for each rank, all of the seed's pattern.
inline Tensors inputs_of(size_t ranks, size_t n, DType dtype, uint64_t seed) {
  Tensors all;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const auto x = values(n, static_cast<int>(seed % kPatterns), seed * 64 + rank);
    all.push_back(tensor_of(x, dtype));
  }
  return all;
}

inline Values values_of(const Tensors& tensors, DType dtype) {
  Values all;
  for (const auto& tensor : tensors) all.push_back(values_of(tensor, dtype));
  return all;
}

}  // namespace cgx::native
