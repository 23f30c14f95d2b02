// Kernels whose threads hold eight values each in registers: they load them, store them, and share a call
// in parts, one thread block a part.
#pragma once

#include "base/half.h"
#include "base/nan.h"
#include "codec/gpu/run.h"
#include "codec/gpu/tile.h"

namespace cgx::gpu {

/// The shared memory of kernels that use none.
struct NoMemory {};

/// The eight values of a thread, in the type to compute in.
template <typename Real>
struct Eight {
  Real values[kGroup];
};

CGX_HD void load_eight(const unsigned char* x, uint64_t first, uint32_t n, uint8_t type,
                       Eight<float>& eight) {
  const Type type_of_values = static_cast<Type>(type);
  const uint32_t each = size_of(type_of_values);
  const unsigned char* from = x + first * each;
  if (n == kGroup && aligned(from)) {
    const Vector* const vectors = reinterpret_cast<const Vector*>(from);
    const Vector low = vectors[0];
    const Vector high = each == 4 ? vectors[1] : low;
    CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) {
      const uint32_t word = each == 4 ? (k < 4 ? low.words[k % 4] : high.words[k % 4])
                                      : low.words[k / 2] >> (16 * (k % 2)) & 0xffffu;
      eight.values[k] = widen(word, type_of_values);
    }
    return;
  }
  CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) {
    eight.values[k] = k < n ? widen(load_word(from + k * each, each), type_of_values) : 0.0f;
  }
}
CGX_HD void load_eight(const unsigned char* x, uint64_t first, uint32_t n, uint8_t,
                       Eight<double>& eight) {
  const double* const from = reinterpret_cast<const double*>(x) + first;
  CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) eight.values[k] = k < n ? from[k] : 0.0;
}

CGX_HD void store_eight(unsigned char* y, uint64_t first, uint32_t n, uint8_t type,
                        const Eight<float>& eight) {
  const Type type_of_values = static_cast<Type>(type);
  const uint32_t each = size_of(type_of_values);
  unsigned char* const to = y + first * each;
  uint32_t words[kGroup];
  CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) {
    words[k] = written(eight.values[k], type_of_values);
  }
  if (n == kGroup && aligned(to)) {
    Vector* const vectors = reinterpret_cast<Vector*>(to);
    if (each == 4) {
      vectors[0] = {{words[0], words[1], words[2], words[3]}};
      vectors[1] = {{words[4], words[5], words[6], words[7]}};
    } else {
      vectors[0] = {{words[0] | words[1] << 16, words[2] | words[3] << 16,
                     words[4] | words[5] << 16, words[6] | words[7] << 16}};
    }
    return;
  }
  CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) {
    if (k < n) store_word(to + k * each, each, words[k]);
  }
}
CGX_HD void store_eight(unsigned char* y, uint64_t first, uint32_t n, uint8_t,
                        const Eight<double>& eight) {
  double* const to = reinterpret_cast<double*>(y) + first;
  CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) {
    if (k < n) to[k] = one_nan(eight.values[k]);
  }
}

/// How many of the eight values from number `first` on exist, of `values` in all.
CGX_HD uint32_t count_from(uint64_t first, uint64_t values) {
  if (first >= values) return 0;
  return values - first < kGroup ? static_cast<uint32_t>(values - first) : kGroup;
}

/// Runs part number i of a call with `values` values of `type`: each thread that has n > 0 of them, from
/// number `first` on, calls work(Real{}, first, n), where Real is the type to compute in.
template <typename Block, typename Work>
CGX_HD void each_eight(Block& block, uint64_t values, uint8_t type, uint64_t i, const Work& work) {
  block.phase([&](uint32_t t) {
    const uint64_t first = i * kPartValues + t * kGroup;
    const uint32_t n = count_from(first, values);
    if (n == 0) return;
    type == kWideType ? work(double{}, first, n) : work(float{}, first, n);
  });
}

}  // namespace cgx::gpu
