// The loops that exist once per SIMD level and are shared by the families. Same arguments, same
// bits, on every level.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace cgx::cpu {

/// The SIMD levels, by which families pick their own loops. A level of another machine is never in
/// force.
enum class Level : uint8_t { kScalar = 0, kAvx2 = 1, kAvx512 = 2, kNeon = 3 };
inline constexpr size_t kLevels = 4;

/// Loops that belong to no family. Pointers to a tensor's values may have any alignment. Nothing
/// outside of the n values is read or written. A NaN is written as the one of base/nan.h.
struct Kernels {
  const char* name;
  Level level;
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

const Kernels& scalar_kernels();
#if defined(__x86_64__)
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
#elif defined(__aarch64__)
const Kernels& neon_kernels();
#endif

/// The loops of the level in force. Errors: ConfigError where CGX_CPU_LEVEL is bad.
const Kernels& kernels();

/// The entry of the level in force in a table by level.
template <typename Loops>
const Loops& at_level(const Loops* const (&by_level)[kLevels]) {
  return *by_level[static_cast<size_t>(kernels().level)];
}

}  // namespace cgx::cpu
