// Logarithm and power of two of float64 by plain additions, multiplications and one division: the same bits
// on every SIMD level and on a GPU, unlike a mathematical library's.
#pragma once

#include "base/host_device.h"
#include "codec/formats/rule.h"

namespace cgx::s2fp8 {

/// log2(x) of a positive normal x: exact for powers of two, else within 2e-15 of magnitude or value. By the
/// series of atanh: x = 2^e m, m from sqrt(1/2) to sqrt(2), ln m = 2 (s + s^3 / 3 + s^5 / 5 + ...) where
/// s = (m - 1) / (m + 1).
CGX_HD_LOOP double log2_of(double x) {
  constexpr uint64_t kRootHalf = 0x3fe6a09e667f3bcdu;
  const uint64_t bits = as_bits(x);
  // Of x over sqrt(1/2): the exponent counts from there.
  const int64_t field = static_cast<int64_t>(bits - kRootHalf) >> 52;
  const double m = wide_from_bits(bits - (static_cast<uint64_t>(field) << 52));
  // An integer below 2^51 to a double, by the bits behind 1.5 2^52.
  const double e = wide_from_bits(0x4338000000000000u + static_cast<uint64_t>(field)) - 0x1.8p52;
  const double s = (m - 1.0) / (m + 1.0), q = s * s;
  double sum = 1.0 / 23;
  sum = sum * q + 1.0 / 21;
  sum = sum * q + 1.0 / 19;
  sum = sum * q + 1.0 / 17;
  sum = sum * q + 1.0 / 15;
  sum = sum * q + 1.0 / 13;
  sum = sum * q + 1.0 / 11;
  sum = sum * q + 1.0 / 9;
  sum = sum * q + 1.0 / 7;
  sum = sum * q + 1.0 / 5;
  sum = sum * q + 1.0 / 3;
  sum = sum * q + 1.0;
  constexpr double kTwoOverLog = 2.885390081777926814719849362003784070;  // 2 / ln 2
  return e + kTwoOverLog * (s * sum);
}

/// 2^x for x from -1000 to 1000, exact for integers: by the series of e^y, |y| <= ln 2 / 2.
CGX_HD_LOOP double exp2_of(double x) {
  const double shifted = x + 0x1.8p52;  // its last bits are the nearest integer
  const double whole = shifted - 0x1.8p52;
  constexpr double kLog = 0.6931471805599453094172321214581765681;  // ln 2
  const double y = (x - whole) * kLog;
  double sum = 1.0 / 87178291200.0;  // 14!
  sum = sum * y + 1.0 / 6227020800.0;
  sum = sum * y + 1.0 / 479001600.0;
  sum = sum * y + 1.0 / 39916800.0;
  sum = sum * y + 1.0 / 3628800.0;
  sum = sum * y + 1.0 / 362880.0;
  sum = sum * y + 1.0 / 40320.0;
  sum = sum * y + 1.0 / 5040.0;
  sum = sum * y + 1.0 / 720.0;
  sum = sum * y + 1.0 / 120.0;
  sum = sum * y + 1.0 / 24.0;
  sum = sum * y + 1.0 / 6.0;
  sum = sum * y + 0.5;
  sum = sum * y + 1.0;
  sum = sum * y + 1.0;
  const uint64_t exponent = (as_bits(shifted) - 0x4338000000000000u) << 52;
  return wide_from_bits(as_bits(sum) + exponent);
}

}  // namespace cgx::s2fp8
