// Scales that the values of a block share: the single source of these numerics, for loops and for kernels.
//
// An e8m0 scale is a power of two 2^s, -127 <= s <= 127, chosen by the block's greatest magnitude and the
// largest number of its elements' format, l = f 2^e, 1 <= f < 2:
//
//   floor   s = floor(log2 amax) - e                     OCP Microscaling Formats 1.0, 6.3
//   ceil    s = ceil(log2 amax) - e
//   even    as floor, of amax rounded to the elements' mantissa, ties up
//   rceil   the least s with amax <= l 2^s               no value saturates
//
// All four are the exponent of amax plus a constant below it: what that adds carries where s is one more.
#pragma once

#include "codec/formats/format.h"
#include "codec/formats/rule.h"

namespace cgx::formats {

enum class Scale : uint8_t { kE8m0, kE4m3, kFloat32 };
enum class ScaleRounding : uint8_t { kFloor, kCeil, kEven, kRceil };

constexpr int32_t kLeastScale = -127, kMostScale = 127;

/// The constants of a block's scale; scale_rule_of() makes them.
struct ScaleRule {
  uint64_t add;      // to the bits of amax as a double
  int32_t exponent;  // of the elements' largest number
  float largest;     // that number
};

/// Of elements with such a largest number, and bits of a mantissa.
CGX_HD ScaleRule scale_rule_of(double largest, int mantissa, ScaleRounding rounding) {
  constexpr uint64_t kFraction = (uint64_t{1} << 52) - 1;
  const uint64_t bits = as_bits(largest);
  uint64_t add = 0;
  switch (rounding) {
    case ScaleRounding::kFloor:
      break;
    case ScaleRounding::kCeil:
      add = kFraction;
      break;
    case ScaleRounding::kEven:
      add = uint64_t{1} << (51 - mantissa);
      break;
    case ScaleRounding::kRceil:
      add = kFraction - (bits & kFraction);
      break;
  }
  return {add, static_cast<int32_t>(bits >> 52) - 1023, static_cast<float>(largest)};
}
CGX_HD ScaleRule scale_rule_of(const Format& element, ScaleRounding rounding) {
  return scale_rule_of(element.largest(), element.mantissa, rounding);
}

/// s of 2^s. amax: finite, not negative.
CGX_HD_LOOP int32_t power_of_scale(const ScaleRule& rule, double amax) {
  const int32_t field = static_cast<int32_t>((as_bits(amax) + rule.add) >> 52);
  const int32_t s = field - 1023 - rule.exponent;
  return s < kLeastScale ? kLeastScale : s > kMostScale ? kMostScale : s;
}

/// 2^s for s from -127 to 127, exactly.
CGX_HD_LOOP float power_of_two(int32_t s) {
  return from_bits(s > -127 ? static_cast<uint32_t>(s + 127) << 23 : 0x400000u);
}

/// The greater of two numbers that are not negative, on their bits.
CGX_HD_LOOP float greater_of(float a, float b) {
  return from_bits(select(where_less(as_bits(a), as_bits(b)), as_bits(b), as_bits(a)));
}

/// 1 for a group of zeros, else its scale.
template <typename Real>
CGX_HD_LOOP float scale_unless_zero(Real amax, float scale) {
  using Word = typename WordOf<Real>::Word;
  const Word zero = where_less(as_bits(amax), Word{1});
  return from_bits(select(static_cast<uint32_t>(zero), as_bits(1.0f), as_bits(scale)));
}

/// The scale, or the number before it where `largest` times it would be infinite.
CGX_HD_LOOP float without_overflow(float scale, float largest) {
  const uint32_t infinity = WordOf<float>::kInfinity;
  return from_bits(as_bits(scale) - (where_less(infinity - 1, as_bits(scale * largest)) & 1u));
}

/// The scale of a block whose elements are divided by it, in float32: the greatest magnitude becomes the
/// elements' largest number. A block of zeros has scale 1. Of a float amax
/// divided as a double the result is the same: a double has twice the digits and more.
template <typename Real>
CGX_HD_LOOP float divisor_of(const ScaleRule& rule, Real amax) {
  const float scale = static_cast<float>(amax / static_cast<Real>(rule.largest));
  const float kept = without_overflow(greater_of(scale, 0x1p-149f), rule.largest);
  return scale_unless_zero(amax, kept);
}

/// The scale of a tensor whose blocks have e4m3 ones: by it the greatest block's is the largest e4m3 number,
/// 448. amax: the tensor's.
CGX_HD_LOOP float scale_of_tensor(const ScaleRule& rule, double amax) {
  const float scale = static_cast<float>(amax / (448.0 * static_cast<double>(rule.largest)));
  return scale_unless_zero(amax, greater_of(scale, 0x1p-149f));
}

/// The scale of a block that is e4m3 times a scale of the whole tensor. scale: divisor_of() the block. The
/// least e4m3 number stands in place of 0.
template <typename Real>
CGX_HD_LOOP float e4m3_scale(const ScaleRule& rule, const Rule<float>& e4m3, float scale,
                             float of_tensor, Real amax) {
  const float part = rounded<Kind::kNearest, true>(e4m3, scale / of_tensor, 0);
  const float kept = greater_of(part, 0x1p-9f) * of_tensor;
  return scale_unless_zero(amax, without_overflow(kept, rule.largest));
}

}  // namespace cgx::formats
