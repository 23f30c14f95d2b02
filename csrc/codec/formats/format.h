// Formats of numbers: sign, exponent and mantissa of a few bits, and which codes are no numbers; for the
// host and for kernels.
//
// A code is exponent and mantissa as one integer, below the sign. Code c with e = c >> mantissa and
// k = c & (2^mantissa - 1) stands for
//
//   k 2^(1 - bias - mantissa)                        e = 0: subnormal numbers, and zero
//   (2^mantissa + k) 2^(e - bias - mantissa)         else
//
// The codes of a format are 0, 1 ... top, in the order of their values; those above are infinite or NaN.
#pragma once

#include "codec/formats/words.h"

namespace cgx::formats {

/// In the order of the choices of `variant`.
enum class Variant : uint8_t {
  kIeee,    // the highest exponent is infinity and NaN
  kFn,      // no infinity; the highest code is NaN
  kFinite,  // neither: every code is a number
  kFnuz,    // no infinity, no -0: the code of -0 is NaN; the bias is one more
  kP3109,   // the highest code is infinity, that of -0 NaN; the bias is one more
  kCpd,     // codes as kIeee, rounding as CPD's casts
  kScale,   // e8m0: powers of two without sign and zero; the highest code is NaN
};

enum class Rounding : uint8_t { kNearest, kZero, kStochastic };

/// What a value beyond the largest number becomes.
enum class Overflow : uint8_t { kSaturate, kInfinity, kNan };

struct Format {
  int exponent = 8, mantissa = 23;  // bits
  Variant variant = Variant::kIeee;

  CGX_HD int bias() const {
    const bool one_more = variant == Variant::kFnuz || variant == Variant::kP3109;
    return (1 << (exponent - 1)) - (one_more ? 0 : 1);
  }
  /// Bits of a number with its sign.
  CGX_HD int bits() const { return (is_signed() ? 1 : 0) + exponent + mantissa; }
  CGX_HD bool is_signed() const { return variant != Variant::kScale; }
  CGX_HD bool has_infinity() const {
    return variant == Variant::kIeee || variant == Variant::kP3109 || variant == Variant::kCpd;
  }
  CGX_HD bool has_nan() const {
    if (variant == Variant::kIeee || variant == Variant::kCpd) return mantissa > 0;
    return variant != Variant::kFinite;
  }
  CGX_HD bool has_negative_zero() const {
    return variant != Variant::kFnuz && variant != Variant::kP3109 && variant != Variant::kScale;
  }
  CGX_HD bool has_zero() const { return variant != Variant::kScale; }

  /// The code of the largest number.
  CGX_HD int64_t top() const;
  /// The value of a code from 0 to top().
  CGX_HD double value_of(int64_t code) const;
  CGX_HD double largest() const { return value_of(top()); }
  /// The exponents of the least normal number and of the step of subnormal ones: powers of two.
  CGX_HD int least_exponent() const { return 1 - bias(); }
  CGX_HD int step_exponent() const { return least_exponent() - mantissa; }

#if !defined(CGX_DEVICE_COMPILER)
  bool operator==(const Format&) const = default;
#endif
};

/// How values become numbers of a format.
struct Casting {
  Format format;
  Rounding rounding = Rounding::kNearest;
  int random_bits = 24;
  bool subnormals = true;
  Overflow overflow = Overflow::kInfinity;

#if !defined(CGX_DEVICE_COMPILER)
  bool operator==(const Casting&) const = default;
#endif
};

CGX_HD int64_t Format::top() const {
  const int64_t codes = int64_t{1} << (exponent + mantissa);
  switch (variant) {
    case Variant::kIeee:
    case Variant::kCpd:
      return codes - (int64_t{1} << mantissa) - 1;
    case Variant::kFn:
    case Variant::kP3109:
    case Variant::kScale:
      return codes - 2;
    default:
      return codes - 1;
  }
}

CGX_HD double Format::value_of(int64_t code) const {
  if (variant == Variant::kScale) return power_of<double>(static_cast<int>(code) - bias());
  const int64_t e = code >> mantissa, one = int64_t{1} << mantissa, k = code & (one - 1);
  const auto significand = static_cast<double>(e == 0 ? k : one + k);
  return significand * power_of<double>(static_cast<int>(e == 0 ? 1 : e) - bias() - mantissa);
}

}  // namespace cgx::formats
