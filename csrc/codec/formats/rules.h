// The constants of a rounding (rule.h) and of codes (codes.h), from a format and how values become its
// numbers: their single source, for the host and for kernels.
#pragma once

#include "codec/formats/codes.h"
#include "codec/formats/fixed.h"
#include "codec/formats/format.h"
#include "codec/formats/rule.h"

namespace cgx::formats {

CGX_HD Kind kind_of(Rounding rounding) {
  switch (rounding) {
    case Rounding::kNearest:
      return Kind::kNearest;
    case Rounding::kZero:
      return Kind::kZero;
    default:
      return Kind::kStochastic;
  }
}
CGX_HD Kind kind_of(const Fixed& fixed) { return kind_of(fixed.rounding); }
CGX_HD Kind kind_of(const Casting& casting) {
  if (casting.format.variant == Variant::kCpd) return Kind::kCpd;
  if (casting.format.variant == Variant::kScale) return Kind::kScale;
  return kind_of(casting.rounding);
}

// The greatest power of two by which a float32 is scaled at once.
constexpr int kMostInverse = 120;

template <typename Real>
CGX_HD void set_quantum(Rule<Real>& rule, int exponent, int random_bits) {
  rule.quantum = power_of<Real>(exponent);
  rule.magic = power_of<Real>(exponent + WordOf<Real>::kMantissa);
  const int inverse = random_bits - exponent;
  const int most = sizeof(Real) == 4 && inverse > kMostInverse ? kMostInverse : inverse;
  rule.inverse[0] = power_of<Real>(most);
  rule.inverse[1] = power_of<Real>(inverse - most);
  rule.units = 1 << random_bits;
  rule.random_shift = 32 - random_bits;
  rule.random_bits = random_bits;
}

/// Of kCpd only Rule<float> counts: CPD knew no other type.
template <typename Real>
CGX_HD Rule<Real> rule_of(const Casting& casting) {
  using Type = WordOf<Real>;
  using Word = typename Type::Word;
  const Format& format = casting.format;
  const Kind kind = kind_of(casting);
  Rule<Real> rule{};
  rule.drop = Type::kMantissa - format.mantissa;
  rule.cut = (Word{1} << rule.drop) - 1;
  rule.half = rule.cut >> 1;
  rule.odd = rule.drop > 0 ? 1 : 0;
  // A leading one is part of the significand, but of no code: without mantissa bits the exponent's last
  // bit is the code's, and this type's bias is odd.
  rule.flip = format.mantissa == 0 && format.bias() % 2 == 0 ? 1 : 0;
  rule.bias = format.bias();
  rule.largest = as_bits(static_cast<Real>(format.largest()));
  rule.zero_sign = format.has_negative_zero() ? Type::kSign : 0;
  rule.infinite = casting.overflow == Overflow::kSaturate   ? rule.largest
                  : casting.overflow == Overflow::kInfinity ? Type::kInfinity
                                                            : Type::kNanWord;
  // Rounding toward zero never leaves the finite numbers.
  rule.beyond = kind == Kind::kZero ? rule.largest : rule.infinite;
  if (kind == Kind::kScale) {
    rule.least_kept = as_bits(power_of<Real>(-127));
    return rule;
  }
  rule.beyond_from = as_bits(power_of<Real>((1 << format.exponent) - 1 - format.bias()));
  const int least = format.least_exponent(), step = format.step_exponent();
  // Of float32 itself numbers below 2^-126 have one quantum, too.
  const int normal = sizeof(Real) == 4 && least < -126 ? -126 : least;
  rule.tiny = as_bits(power_of<Real>(normal));
  rule.least_kept = casting.subnormals ? 0 : as_bits(power_of<Real>(least));
  set_quantum(rule, step, casting.random_bits);
  const int inverse = casting.random_bits - step;
  const bool fits = inverse <= kMostInverse && normal + inverse <= 30;
  rule.plain = format.has_negative_zero() && casting.subnormals && rule.flip == 0 &&
               (kind != Kind::kStochastic || (fits && sizeof(Real) == 4));
  const int kept = rule.drop - casting.random_bits;
  rule.random_left = kept > 0 ? kept : 0;
  rule.random_right = kept < 0 ? -kept : 0;
  return rule;
}

/// Numbers in fixed point are multiples of one quantum, as a format's numbers are below its least normal one.
template <typename Real>
CGX_HD Rule<Real> rule_of(const Fixed& fixed) {
  using Type = WordOf<Real>;
  Rule<Real> rule{};
  rule.tiny = Type::kInfinity;
  rule.largest = rule.beyond = rule.infinite = as_bits(static_cast<Real>(fixed.largest()));
  rule.more = as_bits(static_cast<Real>(-fixed.lowest())) - rule.largest;
  // No finite value takes the way of normal numbers, and no other may change.
  rule.random_right = 31;
  set_quantum(rule, -fixed.fraction, fixed.random_bits);
  return rule;
}

/// Of a format with a sign. What an infinite value becomes is not the format's: see coder.h.
CGX_HD CodeRule code_rule_of(const Format& format) {
  CodeRule rule{};
  const int mantissa = format.mantissa, least = format.least_exponent();
  const uint32_t sign = uint32_t{1} << (format.exponent + mantissa);
  rule.width = format.exponent + mantissa;
  rule.drop = WordOf<float>::kMantissa - mantissa;
  rule.rebias = static_cast<uint32_t>(WordOf<float>::kBias - format.bias()) << mantissa;
  rule.tiny = as_bits(power_of<float>(least < -126 ? -126 : least));
  rule.tiny_code = (rule.tiny >> rule.drop) - rule.rebias;
  rule.top = static_cast<uint32_t>(format.top());
  rule.magic = power_of<float>(format.step_exponent() + WordOf<float>::kMantissa);
  rule.infinity = format.has_infinity() ? rule.top + 1 : kNoCode;
  rule.negative_nan = kNoCode;
  if (format.variant == Variant::kFnuz || format.variant == Variant::kP3109) {
    rule.nan = rule.negative_nan = sign;
  } else if (!format.has_nan()) {
    rule.nan = format.has_infinity() ? rule.infinity : 0;
  } else {
    // The quiet one, whose highest mantissa bit is set; of fn the only one.
    const bool infinite = format.has_infinity();
    rule.nan = infinite ? rule.infinity | uint32_t{1} << (mantissa - 1) : rule.top + 1;
  }
  return rule;
}

}  // namespace cgx::formats
