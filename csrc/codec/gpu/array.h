// Values of a lane in an array that stays in registers, where only constants can be indices.
#pragma once

#include "codec/gpu/tile.h"

namespace cgx::gpu {

template <typename T, uint32_t n>
struct Array {
  T of[n];
  CGX_HD T& operator[](uint32_t i) { return of[i]; }
  CGX_HD const T& operator[](uint32_t i) const { return of[i]; }
};

/// Each NaN becomes the one that is written (base/nan.h).
template <uint32_t n>
CGX_HD void make_one_nan(Array<float, n>& values) {
  if (!may_have_nan(values.of)) return;
  CGX_UNROLL for (uint32_t k = 0; k < n; ++k) values[k] = one_nan(values[k]);
}

/// Work on each value in turn: x = work(k, x). In a loop that takes kStep of them at a time, so
/// values move through their array instead of being addressed in it, which registers cannot be.
template <uint32_t kStep = 1, uint32_t n, typename Work>
CGX_HD void turn(Array<float, n>& values, const Work& work) {
  static_assert(n % kStep == 0, "the loop takes whole steps");
  CGX_LOOP for (uint32_t k = 0; k < n; k += kStep) {
    float done[kStep];
    CGX_UNROLL for (uint32_t i = 0; i < kStep; ++i) done[i] = work(k + i, values[i]);
    CGX_UNROLL for (uint32_t i = 0; i + kStep < n; ++i) values[i] = values[i + kStep];
    CGX_UNROLL for (uint32_t i = 0; i < kStep; ++i) values[n - kStep + i] = done[i];
  }
}

/// values / divisor. By a power of two as a product, which is the same; others in a loop, since a
/// division is long.
template <uint32_t kStep = 1, uint32_t n>
CGX_HD void divide(Array<float, n>& values, float divisor) {
  if (divisor == 1.0f) return;
  if ((as_bits(divisor) & 0x7fffffu) == 0) {
    const float factor = rn_div(1.0f, divisor);
    CGX_UNROLL for (uint32_t k = 0; k < n; ++k) values[k] = rn_mul(values[k], factor);
  } else {
    turn<kStep>(values, [&](uint32_t, float x) { return rn_div(x, divisor); });
  }
}

}  // namespace cgx::gpu
