// The formulas of the `maxmin` codec: uniform quantization between the extremes of each bucket.
//
// This is the only definition of its numerics. The scalar driver calls these functions; SIMD
// drivers and kernels give the same results, and are compared with it bit for bit. All arithmetic
// is float32, every operation rounded on its own (no fused multiply-add).
//
// With levels = 2^bits - 1 and M = the largest |x| of the bucket:
//   regular   unit = (max - min) / levels
//             q = rint((x - min) / unit)
//             x^ = min + unit q
//   overflow  max - min or the topmost x^ would overflow. The stored unit is negative, which marks
//             the bucket: -(max/2 - min/2) / levels. Everything is done at half scale:
//             x^ = 2 min(min/2 + |unit| q, FLT_MAX/2), step = 2 |unit|
//   constant  max = min: unit = 0, all q = 0, x^ = min exactly
//   other     a NaN or Inf in the bucket: unit = min = quiet NaN 0x7fc00000, all q = 0, every x^ is
//             NaN
//
// A subnormal unit is rounded up, so that the largest level does not fall short of max.
//
// With `exact_zeros`, a regular bucket that holds a zero and negative values has a grid with zero on
// it: min = -z unit for an integer z, and unit <= (max - min) / (levels - 1), up to its rounding: see
// maxmin_meta_with_zero(). Codes and values follow from unit and min as ever.
//
// Bounds. Nearest: |x^ - x| <= step/2 + 12 2^-24 M + 2^-148. Stochastic: < step + the same, and the
// mean over u is x to within 2^-24 step + the same. Every finite bucket decodes to finite values. A
// zero of either sign counts as +0.
#pragma once

#include "base/nan.h"

namespace cgx {

/// The two numbers that turn the codes of a bucket into values: see the table above.
struct MaxMinMeta {
  float unit;  // negative: marks an overflow bucket
  float min;
};

/// The same in the form that quantization needs: q = min(round((x * scale - offset) / step), top).
struct MaxMinScale {
  float scale;
  float offset;
  float step;
  float top;
};

CGX_HD float maxmin_levels(int bits) { return static_cast<float>((1 << bits) - 1); }

/// Meta of a bucket with these extremes; `finite` says that it holds no NaN (an infinite extreme is
/// found here).
CGX_HD MaxMinMeta maxmin_meta(float min, float max, bool finite, float levels) {
  const float infinity = from_bits(0x7f800000u);
  if (!finite || !(max < infinity) || !(min > -infinity)) {
    return {from_bits(kNan), from_bits(kNan)};
  }
  min = rn_add(min, 0.0f);
  max = rn_add(max, 0.0f);
  const float range = rn_sub(max, min);
  if (range == 0.0f) return {0.0f, min};
  float unit = rn_div(range, levels);
  if (!(rn_add(min, rn_mul(unit, levels)) < infinity)) {
    const float half = rn_sub(rn_mul(max, 0.5f), rn_mul(min, 0.5f));
    return {-rn_div(half, levels), min};
  }
  // Double holds unit * levels exactly.
  if (unit < 0x1p-126f && static_cast<double>(unit) * levels < static_cast<double>(range)) {
    unit = from_bits(as_bits(unit) + 1);
  }
  return {unit, min};
}

/// The meta of a bucket that holds a zero, such that zero is a level. Without negative values it is,
/// as the minimum. An overflow bucket, and a bucket whose grid would overflow, stay as they are.
/// Needs two bits: levels >= 3.
///
/// For z levels below zero the unit must be at least max(-min / z, max / (levels - z)). Where zero is
/// the maximum, z = levels; else z is one of the two integers around -min / (range / levels), from 1
/// to levels - 1. The better of them needs a unit of at most range / (levels - 1).
///
/// The unit is rounded up to 16 significant bits (a subnormal one below 2^-133 has no more). So unit
/// z is exact, and so is the position z of a zero: no rounding, nearest or stochastic, moves it.
CGX_HD MaxMinMeta maxmin_meta_with_zero(float min, float max, bool finite, float levels) {
  const MaxMinMeta meta = maxmin_meta(min, max, finite, levels);
  if (!(meta.unit > 0.0f && min < 0.0f && max >= 0.0f)) return meta;
  const bool above = max > 0.0f;
  const float least = above ? 1.0f : levels, most = above ? rn_sub(levels, 1.0f) : levels;
  const float place = rn_div(-min, meta.unit);
  const float floor = static_cast<float>(static_cast<uint32_t>(place < most ? place : most));
  float z = 0.0f, unit = 0.0f;
  for (int k = 0; k < 2; ++k) {
    float below = rn_add(floor, static_cast<float>(k));
    below = below < least ? least : below > most ? most : below;
    const float left = rn_div(-min, below);
    const float right = above ? rn_div(max, rn_sub(levels, below)) : 0.0f;
    const float wanted = left > right ? left : right;
    if (k == 0 || wanted < unit) z = below, unit = wanted;
  }
  const uint32_t bits = as_bits(unit);
  unit = from_bits(bits < 0x10000u ? bits + 1u : (bits + 0x100u) & ~0xffu);
  const float low = -rn_mul(unit, z);
  const float infinity = from_bits(0x7f800000u);
  const bool fits = low > -infinity && rn_mul(unit, levels) < infinity;
  return fits ? MaxMinMeta{unit, low} : meta;
}

CGX_HD MaxMinScale maxmin_scale(MaxMinMeta meta, float levels) {
  if (meta.unit > 0.0f) return {1.0f, meta.min, meta.unit, levels};
  if (meta.unit < 0.0f) return {0.5f, rn_mul(meta.min, 0.5f), -meta.unit, levels};
  // Constant or not finite: all codes are 0.
  return {1.0f, meta.min, 1.0f, 0.0f};
}

/// Position of x on the scale of codes: in [0, top], up to rounding. Arbitrary for buckets with
/// top = 0.
CGX_HD float maxmin_position(float x, MaxMinScale s) {
  return rn_div(rn_sub(rn_mul(x, s.scale), s.offset), s.step);
}

/// 1 / step as the sum of two floats, to about 48 bits.
struct MaxMinReciprocal {
  float high, low;
};
CGX_HD MaxMinReciprocal maxmin_reciprocal(float step) {
  const double exact = 1.0 / static_cast<double>(step);
  const float high = static_cast<float>(exact);
  return {high, static_cast<float>(exact - static_cast<double>(high))};
}

/// The same without doubles, of which GPUs compute few: to 2^-46.99, for steps between 2^-60 and
/// 2^60. 1 - step high is exact; its product with `high` lacks 2^-48 and is rounded by as much.
CGX_HD MaxMinReciprocal maxmin_float_reciprocal(float step) {
#if defined(__CUDA_ARCH__)
  // The instruction is off by an ulp at most; a Newton step leaves a relative error of 2^-46 before
  // it rounds.
  float high;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(high) : "f"(step));
  high = rn_fma(rn_fma(-step, high, 1.0f), high, high);
#else
  const float high = rn_div(1.0f, step);
#endif
  return {high, rn_mul(rn_fma(-step, high, 1.0f), high)};
}

/// Positions are computed by a division, not by a reciprocal, if the step is smaller.
constexpr float kMaxMinLeastStep = 0x1p-60f;

/// True if maxmin_code_by_reciprocal() gives the nearest code of every value of the bucket. The
/// proof is in families/maxmin/loops-inl.h.
CGX_HD bool maxmin_by_reciprocal(MaxMinMeta meta) {
  const uint32_t low = as_bits(meta.unit) & 0xffffu;
  const bool safe = low == 0 || (low >= 8 && low <= 0x10000u - 8);
  return safe && meta.unit >= kMaxMinLeastStep && meta.unit <= 0x1p60f;
}
/// 2^23 + code, exactly: no position reaches top + 1/2.
CGX_HD float maxmin_rounded_by_reciprocal(float x, float min, MaxMinReciprocal r) {
  const float a = rn_sub(x, min);
  const float position = rn_fma(a, r.high, rn_mul(a, r.low));
  return rn_add(position, 0x1p23f);
}
CGX_HD uint32_t maxmin_code_by_reciprocal(float x, float min, MaxMinReciprocal r) {
  return as_bits(maxmin_rounded_by_reciprocal(x, min, r)) & 0x1ffu;
}

/// True if maxmin_position_by_reciprocal() gives the same stochastic codes as maxmin_position(), for
/// every value of the bucket. The proof is in families/maxmin/loops-inl.h.
CGX_HD bool maxmin_stochastic_by_reciprocal(MaxMinMeta meta) {
  const bool safe = (as_bits(meta.unit) & 0x7fffffu) != 0x7fffffu;
  const float magnitude = meta.min < 0.0f ? -meta.min : meta.min;
  return safe && meta.unit >= kMaxMinLeastStep && meta.unit <= 0x1p30f &&
         (meta.unit <= 0.5f || magnitude >= kMaxMinLeastStep);
}
CGX_HD float maxmin_position_by_reciprocal(float x, MaxMinMeta meta, MaxMinReciprocal r) {
  const float a = rn_sub(x, meta.min);
  const float q = rn_fma(a, r.high, rn_mul(a, r.low));
  return rn_fma(rn_fma(-q, meta.unit, a), r.high, q);
}

CGX_HD uint32_t maxmin_nearest(float position, float top) {
  if (!(position < top)) return static_cast<uint32_t>(top);
  // Adding 2^23 rounds to an integer, ties to even, and leaves it in the low bits.
  return as_bits(rn_add(position, 0x1p23f)) & 0x1ffu;
}

/// Rounds up with a probability equal to the fraction, for u uniform in [0, 1). An integer position
/// never moves.
CGX_HD uint32_t maxmin_stochastic(float position, float top, float u) {
  if (!(position < top)) return static_cast<uint32_t>(top);
  const uint32_t floor = static_cast<uint32_t>(position);
  return floor + (rn_sub(position, static_cast<float>(floor)) > u ? 1u : 0u);
}

/// The value of a code. Not for overflow buckets, whose unit is negative.
CGX_HD float maxmin_regular_value(MaxMinMeta meta, uint32_t code) {
  // The float of an integer below 2^23, by one subtraction: GPUs convert slowly.
  const float q = rn_sub(from_bits(0x4b000000u | code), 0x1p23f);
  return rn_add(meta.min, rn_mul(meta.unit, q));
}

CGX_HD float maxmin_value(MaxMinMeta meta, uint32_t code) {
  if (!(meta.unit < 0.0f)) return maxmin_regular_value(meta, code);
  const float q = rn_sub(from_bits(0x4b000000u | code), 0x1p23f);
  const float half = rn_add(rn_mul(meta.min, 0.5f), rn_mul(-meta.unit, q));
  return rn_mul(2.0f, half < 0x1.fffffep126f ? half : 0x1.fffffep126f);
}

}  // namespace cgx
