#include "codec/formats/rules.h"

#include <algorithm>
#include <cmath>

namespace cgx::formats {
namespace {

template <typename Real>
typename WordOf<Real>::Word word_of(double value) {
  return as_bits(static_cast<Real>(value));
}

// The greatest power of two by which a float32 is scaled at once.
constexpr int kMostInverse = 120;

template <typename Real>
void set_quantum(Rule<Real>& rule, int exponent, int random_bits) {
  rule.quantum = static_cast<Real>(std::ldexp(1.0, exponent));
  rule.magic = static_cast<Real>(std::ldexp(1.0, exponent + WordOf<Real>::kMantissa));
  const int inverse = random_bits - exponent;
  const int most = sizeof(Real) == 4 ? std::min(inverse, kMostInverse) : inverse;
  rule.inverse[0] = static_cast<Real>(std::ldexp(1.0, most));
  rule.inverse[1] = static_cast<Real>(std::ldexp(1.0, inverse - most));
  rule.units = 1 << random_bits;
  rule.random_shift = 32 - random_bits;
  rule.random_bits = random_bits;
}

Kind kind_of(Rounding rounding) {
  switch (rounding) {
    case Rounding::kNearest:
      return Kind::kNearest;
    case Rounding::kZero:
      return Kind::kZero;
    default:
      return Kind::kStochastic;
  }
}

}  // namespace

Kind kind_of(const Fixed& fixed) { return kind_of(fixed.rounding); }

Kind kind_of(const Casting& casting) {
  if (casting.format.variant == Variant::kCpd) return Kind::kCpd;
  if (casting.format.variant == Variant::kScale) return Kind::kScale;
  return kind_of(casting.rounding);
}

template <typename Real>
Rule<Real> rule_of(const Casting& casting) {
  using Type = WordOf<Real>;
  using Word = typename Type::Word;
  const Format& format = casting.format;
  const Kind kind = kind_of(casting);
  const bool scale = kind == Kind::kScale;
  Rule<Real> rule{};
  rule.drop = Type::kMantissa - format.mantissa;
  rule.cut = (Word{1} << rule.drop) - 1;
  rule.half = rule.cut >> 1;
  rule.odd = rule.drop > 0 ? 1 : 0;
  // A leading one is part of the significand, but of no code: without mantissa bits the exponent's last
  // bit is the code's, and this type's bias is odd.
  rule.flip = format.mantissa == 0 && format.bias() % 2 == 0 ? 1 : 0;
  rule.bias = format.bias();
  rule.largest = word_of<Real>(format.largest());
  rule.zero_sign = format.has_negative_zero() ? Type::kSign : 0;
  const Word largest = rule.largest;
  const auto becomes = [&](Overflow overflow) {
    return overflow == Overflow::kSaturate   ? largest
           : overflow == Overflow::kInfinity ? Type::kInfinity
                                             : Type::kNanWord;
  };
  rule.infinite = becomes(casting.overflow);
  // Rounding toward zero never leaves the finite numbers.
  rule.beyond = kind == Kind::kZero ? largest : rule.infinite;
  if (scale) {
    rule.least_kept = word_of<Real>(0x1p-127);
    return rule;
  }
  rule.beyond_from = word_of<Real>(std::ldexp(1.0, (1 << format.exponent) - 1 - format.bias()));
  const int step = format.step_exponent();
  // Of float32 itself numbers below 2^-126 have one quantum, too.
  const int normal =
      sizeof(Real) == 4 ? std::max(format.least_exponent(), -126) : format.least_exponent();
  rule.tiny = word_of<Real>(std::ldexp(1.0, normal));
  rule.least_kept =
      casting.subnormals ? 0 : word_of<Real>(std::ldexp(1.0, format.least_exponent()));
  set_quantum(rule, step, casting.random_bits);
  const int inverse = casting.random_bits - step;
  const bool fits = inverse <= kMostInverse &&
                    std::ilogb(static_cast<double>(real_of_word(rule.tiny))) + inverse <= 30;
  rule.plain = format.has_negative_zero() && casting.subnormals && rule.flip == 0 &&
               (kind != Kind::kStochastic || (fits && sizeof(Real) == 4));
  rule.random_left = std::max(rule.drop - casting.random_bits, 0);
  rule.random_right = std::max(casting.random_bits - rule.drop, 0);
  return rule;
}

template <typename Real>
Rule<Real> rule_of(const Fixed& fixed) {
  using Type = WordOf<Real>;
  Rule<Real> rule{};
  rule.tiny = Type::kInfinity;
  rule.largest = rule.beyond = rule.infinite = word_of<Real>(fixed.largest());
  rule.more = word_of<Real>(-fixed.lowest()) - rule.largest;
  rule.random_right =
      31;  // no finite value takes the way of normal numbers, and no other may change
  set_quantum(rule, -fixed.fraction, fixed.random_bits);
  return rule;
}

template Rule<float> rule_of(const Casting& casting);
template Rule<double> rule_of(const Casting& casting);
template Rule<float> rule_of(const Fixed& fixed);
template Rule<double> rule_of(const Fixed& fixed);

CodeRule code_rule_of(const Format& format) {
  CodeRule rule{};
  const int mantissa = format.mantissa;
  const uint32_t sign = uint32_t{1} << (format.exponent + mantissa);
  rule.width = format.exponent + mantissa;
  rule.drop = WordOf<float>::kMantissa - mantissa;
  rule.rebias = static_cast<uint32_t>(WordOf<float>::kBias - format.bias()) << mantissa;
  rule.tiny = word_of<float>(std::ldexp(1.0, std::max(format.least_exponent(), -126)));
  rule.tiny_code = (rule.tiny >> rule.drop) - rule.rebias;
  rule.top = static_cast<uint32_t>(format.top());
  rule.magic = static_cast<float>(std::ldexp(1.0, format.step_exponent() + 23));
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
