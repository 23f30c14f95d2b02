// Accumulation of FP8 products on NVIDIA's Hopper tensor cores; the single source of these numerics.
//
// Published (DeepSeek-V3, arXiv 2412.19437, 3.3.2 and 3.5.2): the 32 products of a step along K are shifted
// right to the greatest exponent, the highest 14 bits of each are added and those below truncated; the
// result goes into registers with 14 bits, too. DeepSeek's own kernels move it to float32 every 128 values
// of K. What the report leaves open is defined here:
//
// - A product is the float32 product of the operands: exact for FP8, BF16 and FP16 without underflow.
// - E is the greatest exponent, floor(log2 |x|), among the products of a step and the accumulator, which
//   is aligned with them, and at least -113: so the step 2^(E - 13) is a normal number of float32. The
//   hardware is said to take the sum of the factors' exponents instead, so it may keep a bit less of a
//   product whose significand is 2 or more.
// - Each is truncated toward zero to a multiple of 2^(E - 13). The sum of these is exact, then truncated
//   toward zero to its 14 highest bits; from 2^128 on it is infinite.
// - The last step, and the last run of 128, may be shorter.
// - Where a product or the accumulator is infinite or NaN, the sum is what float32 makes of these.
#pragma once

#include <cstddef>

#include "codec/gemm/rounding.h"

namespace cgx::gemm {

inline constexpr size_t kHopperStep = 32, kHopperRun = 128;

/// How a step is aligned.
struct Alignment {
  float scale, step;  // 2^(13 - E) and 2^(E - 13)
};

/// most: the greatest magnitude, as bits.
CGX_HD_LOOP Alignment alignment_of(uint32_t most) {
  constexpr uint32_t kLeast = 0x07000000u;  // 2^-113
  const uint32_t power = greatest_of(most & kExponent, kLeast);
  return {from_bits((uint32_t{267} << 23) - power), from_bits(power - (uint32_t{13} << 23))};
}

/// A finite value in steps, truncated: below 2^14.
CGX_HD_LOOP int32_t in_steps(float scale, float x) { return static_cast<int32_t>(x * scale); }

/// The accumulator after a step: the sum of at most 33 such numbers, with 14 bits.
CGX_HD_LOOP float from_steps(float step, int32_t steps) {
  return from_bits(as_bits(static_cast<float>(steps)) & ~0x3ffu) * step;
}

CGX_HD_LOOP bool is_finite(float x) { return (as_bits(x) & kExponent) != kExponent; }

/// The accumulator after a step of n <= kHopperStep products, of values so far from each other.
inline float hopper_sum(const float* a, size_t a_apart, const float* b, size_t b_apart, size_t n,
                        float accumulator) {
  uint32_t most = as_bits(accumulator) & 0x7fffffffu;
  float infinite = is_finite(accumulator) ? 0 : accumulator;
  for (size_t k = 0; k < n; ++k) {
    const float product = a[k * a_apart] * b[k * b_apart];
    most = greatest_of(as_bits(product) & 0x7fffffffu, most);
    if (!is_finite(product)) infinite += product;
  }
  if (most >= kExponent) return infinite;
  const Alignment alignment = alignment_of(most);
  int32_t steps = in_steps(alignment.scale, accumulator);
  for (size_t k = 0; k < n; ++k) {
    steps += in_steps(alignment.scale, a[k * a_apart] * b[k * b_apart]);
  }
  return from_steps(alignment.step, steps);
}

}  // namespace cgx::gemm
