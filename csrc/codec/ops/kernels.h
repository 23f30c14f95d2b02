// The loops that exist once per SIMD level and are shared by the families. Same arguments, same
// bits, on every level.
#pragma once

#include <cstddef>

#include "base/dtype.h"

namespace cgx::cpu {

/// Loops that belong to no family. Pointers to a tensor's values may have any alignment. Nothing
/// outside of the n values is read or written. A NaN is written as the one of base/nan.h.
struct Kernels {
  bool (*all_finite)(const std::byte* x, DType dtype, size_t n);
  void (*to_float)(const std::byte* x, DType dtype, size_t n, float* y);
  void (*add_to_float)(const std::byte* x, DType dtype, size_t n, float* y);
  void (*from_float)(const float* x, DType dtype, size_t n, std::byte* y);
  /// y = a + b; y may be a or b.
  void (*add_pair)(const float* a, const float* b, size_t n, float* y);
  void (*divide)(float* y, size_t n, float divisor);
  /// Extremes of n >= 1 values, the roof of every encoder: what a benchmark compares with.
  void (*scan)(const std::byte* x, DType dtype, size_t n, float* min, float* max);
};

/// The loops of the level in force. Errors: ConfigError where CGX_CPU_LEVEL is bad.
const Kernels& kernels();

}  // namespace cgx::cpu
