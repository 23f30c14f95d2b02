// Formats of numbers: sign, exponent and mantissa of a few bits, and which codes are no numbers.
//
// A code is exponent and mantissa as one integer, below the sign. Code c with e = c >> mantissa and
// k = c & (2^mantissa - 1) stands for
//
//   k 2^(1 - bias - mantissa)                        e = 0: subnormal numbers, and zero
//   (2^mantissa + k) 2^(e - bias - mantissa)         else
//
// The codes of a format are 0, 1 ... top, in the order of their values; those above are infinite or NaN.
#pragma once

#include <cstdint>
#include <string>

#include "codec/declaration.h"

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

  int bias() const;
  /// Bits of a number with its sign.
  int bits() const { return (is_signed() ? 1 : 0) + exponent + mantissa; }
  bool is_signed() const { return variant != Variant::kScale; }
  bool has_infinity() const;
  bool has_nan() const;
  bool has_negative_zero() const;
  bool has_zero() const { return variant != Variant::kScale; }

  /// The code of the largest number.
  int64_t top() const;
  /// The value of a code from 0 to top().
  double value_of(int64_t code) const;
  double largest() const { return value_of(top()); }
  /// The exponents of the least normal number and of the step of subnormal ones: powers of two.
  int least_exponent() const { return 1 - bias(); }
  int step_exponent() const { return least_exponent() - mantissa; }

  bool operator==(const Format&) const = default;
};

/// ConfigError, with `who` in front: the format has no number but zero, or numbers that float32 lacks.
void check(const std::string& who, const Format& format);

/// How values become numbers of a format.
struct Casting {
  Format format;
  Rounding rounding = Rounding::kNearest;
  int random_bits = 24;
  bool subnormals = true;
  Overflow overflow = Overflow::kInfinity;

  bool operator==(const Casting&) const = default;
};

/// The parameters of a declaration that describe a Casting, with their defaults.
std::vector<Parameter> casting_parameters(int exponent, int mantissa, const char* variant,
                                          bool per_call);
/// What a configuration with these parameters says. ConfigError: parameters that do not go together.
Casting casting_of(const Config& config);

}  // namespace cgx::formats
