// The loops that exist once per SIMD level. Same arguments, same bits, on every level.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "codec/codec.h"

namespace cgx::cpu {

/// Arguments of MaxMin loops over a part that starts on a bucket border and a byte border.
struct MaxMinPart {
  size_t n;            // values, the last bucket may be incomplete
  size_t bucket_size;  // at least 1
  int bits;            // 1 to 8
};

/// Pointers to a tensor's values, meta and codes may have any alignment. Nothing outside of the n
/// values, the 8 * ceil(n / bucket_size) bytes of meta and the ceil(n * bits / 8) bytes of codes is
/// read or written.
struct Kernels {
  const char* name;
  /// `index` is the number of the part's first value: the counter of the generator.
  void (*maxmin_encode)(const MaxMinPart& part, const std::byte* x, DType dtype, Rounding rounding,
                        RandomKey key, uint64_t index, std::byte* meta, std::byte* codes);
  void (*maxmin_decode)(const MaxMinPart& part, const std::byte* meta, const std::byte* codes,
                        float* y, bool add);
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

}  // namespace cgx::cpu
