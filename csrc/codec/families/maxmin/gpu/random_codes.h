// Codes of `maxmin` with stochastic rounding, without a division, and random numbers without a key of
// their own.
#pragma once

#include "codec/families/maxmin/gpu/memory.h"

namespace cgx::gpu::maxmin {

/// The random bits of values that are not far from each other.
struct RandomBits {
  uint32_t state;  // of the first value
  uint32_t high;
  CGX_HD uint32_t of(uint32_t place) const {
    return random_bits_of(state + place * kRandomStep, high);
  }
};

/// The generator for n values from counter `index` on. Where the counter's upper word changes among
/// them, they have two keys: whole is false.
struct RandomRange {
  RandomKey of_call;
  uint64_t index;
  RandomKey own;  // of the values
  bool whole;
  CGX_HD RandomRange(RandomKey key, uint64_t first, uint32_t n)
      : of_call(key),
        index(first),
        own(key_of_high(key, static_cast<uint32_t>(first >> 32))),
        whole(static_cast<uint32_t>(first) <= 0u - n) {}
  CGX_HD RandomBits from(uint32_t place) const {
    return {own.low + (static_cast<uint32_t>(index) + place) * kRandomStep, own.high};
  }
};

/// Rounds up to an integer: of 0 to 2^32 - 1. What is less, or NaN, becomes 0.
CGX_HD uint32_t round_up(float x) {
#if defined(__CUDA_ARCH__)
  return __float2uint_ru(x);
#else
  return x > 0.0f ? static_cast<uint32_t>(__builtin_ceilf(x)) : 0;
#endif
}

/// A bucket for which maxmin_stochastic_by_reciprocal() holds. Positions, as of
/// maxmin_position_by_reciprocal(), are multiplied by 2^24, which changes no other bit of them. So
/// random_unit() is an integer n, and a position's fraction exceeds it where the fraction, rounded up, does:
/// where it reaches 2^24 once the complement of n is added, which is the upper bits that n is made of.
struct RandomCoding {
  float min, down;  // -unit
  MaxMinReciprocal step;
  float top;
  CGX_HD RandomCoding(MaxMinMeta meta, MaxMinReciprocal reciprocal, float levels)
      : min(meta.min),
        down(rn_mul(meta.unit, -0x1p-24f)),
        step{rn_mul(reciprocal.high, 0x1p24f), rn_mul(reciprocal.low, 0x1p24f)},
        top(rn_mul(levels, 0x1p24f)) {}
  /// The code in the upper 8 bits; below them lies anything.
  CGX_HD uint32_t code(float x, uint32_t bits) const {
    const float a = rn_sub(x, min);
    const float q = rn_fma(a, step.high, rn_mul(a, step.low));
    const float position = rn_fma(rn_fma(q, down, a), step.high, q);
    return round_up(lesser(position, top)) + (bits >> 8);
  }
};

}  // namespace cgx::gpu::maxmin
