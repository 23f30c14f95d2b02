// S2FP8 (Cambier et al., Shifted and Squeezed 8-bit Floating Point, ICLR 2020) of a value: the single source
// of these numerics. A tensor's magnitudes are squeezed and shifted in the logarithm, so that e5m2 holds them:
//
//   l = log2 |x|, mu and m the mean and the greatest l of values other than 0
//   alpha = 15 / (m - mu), at most 2^16, beta = 15 - alpha m
//   Y = 2^(alpha l + beta) rounded to e5m2, y = sign(x) 2^((log2 Y - beta) / alpha)
//
// Only logarithms are shifted: 2^beta itself is no float32 where values are small. alpha and beta are float32.
// Where magnitudes hardly differ, a larger alpha would make beta so large that its rounding alone shifts all
// values out of e5m2's range.
#pragma once

#include "codec/formats/log2.h"

namespace cgx::s2fp8 {

struct Squeeze {
  double alpha, beta;
  formats::Rule<float> e5m2;
};

/// 15, the exponent to which the greatest magnitude is brought.
constexpr double kGreatest = 15.0;

/// mean, greatest: of the logarithms, which are not all equal.
CGX_HD_LOOP Squeeze squeeze_of(double mean, double greatest, const formats::Rule<float>& e5m2) {
  const double width = greatest - mean, least = kGreatest * 0x1p-16;
  const float alpha = static_cast<float>(kGreatest / (width > least ? width : least));
  const double slope = static_cast<double>(alpha);
  const float beta = static_cast<float>(kGreatest - slope * greatest);
  return {slope, static_cast<double>(beta), e5m2};
}

/// x: finite and not 0.
template <formats::Kind kind>
CGX_HD_LOOP double squeezed(const Squeeze& squeeze, double x, uint32_t random) {
  const uint64_t sign = as_bits(x) & formats::WordOf<double>::kSign;
  const double l = formats::log2_of(wide_from_bits(as_bits(x) & ~sign));
  const double place = squeeze.alpha * l + squeeze.beta;
  // Far below the least number: the power of two would be none of float32.
  const double near = place < -100.0 ? -100.0 : place;
  const float y = formats::rounded<kind, false>(squeeze.e5m2,
                                                static_cast<float>(formats::exp2_of(near)), random);
  if (y == 0.0f) return wide_from_bits(sign);
  const double back = (formats::log2_of(static_cast<double>(y)) - squeeze.beta) / squeeze.alpha;
  return wide_from_bits(as_bits(formats::exp2_of(back)) | sign);
}

}  // namespace cgx::s2fp8
