// S2FP8 (Cambier et al., Shifted and Squeezed 8-bit Floating Point, ICLR 2020) of a value: the single source
// of these numerics, for loops and for kernels. A tensor's magnitudes are squeezed and shifted in the
// logarithm, so that e5m2 holds them:
//
//   l = log2 |x|, mu and m the mean and the greatest l of finite values other than 0 (of float64: normal ones)
//   alpha = 15 / (m - mu), at most 2^16, beta = 15 - alpha m
//   Y = 2^(alpha l + beta) rounded to e5m2, y = sign(x) 2^((log2 Y - beta) / alpha)
//
// Only logarithms are shifted: 2^beta itself is no float32 where values are small. They are summed by blocks
// in lanes, as zscore/moments.h sums values. alpha and beta are float32: where magnitudes hardly differ, a
// larger alpha would make beta so large that its rounding alone shifts all values out of e5m2's range.
#pragma once

#include "codec/casts/measured.h"
#include "codec/casts/s2fp8/log2.h"

namespace cgx::s2fp8 {

inline constexpr uint32_t kLanes = 16;

/// 15, the exponent to which the greatest magnitude is brought.
inline constexpr double kGreatest = 15.0;
/// Below and above the logarithms of all magnitudes.
inline constexpr double kLeast = -2000.0, kMost = 2000.0;

/// Whether log2_of() knows the logarithm of |x|: all bits, or none. By signs of differences: of conditions
/// compilers make branches, as for one way the logarithm is a constant.
CGX_HD_LOOP uint64_t has_logarithm(double x) {
  constexpr int64_t kInfinity = static_cast<int64_t>(formats::WordOf<double>::kInfinity);
  constexpr int64_t kBelowNormal = (int64_t{1} << 52) - 1;
  const auto u = static_cast<int64_t>(as_bits(x) & ~formats::WordOf<double>::kSign);
  return static_cast<uint64_t>(((kBelowNormal - u) & (u - kInfinity)) >> 63);
}

/// log2 |x|. A value without one counts as 1, whose is 0.
CGX_HD_LOOP double logarithm_of(double x) {
  const uint64_t u = as_bits(x) & ~formats::WordOf<double>::kSign;
  return log2_of(wide_from_bits(formats::select(has_logarithm(x), u, as_bits(1.0))));
}

/// Of parts of a tensor: how many values have a logarithm, the sum of these, the greatest, and the least.
CGX_HD Measured joined(const Measured& a, const Measured& b) {
  return {{a.of[0] + b.of[0], a.of[1] + b.of[1], a.of[2] < b.of[2] ? b.of[2] : a.of[2],
           b.of[3] < a.of[3] ? b.of[3] : a.of[3]}};
}

/// alpha and beta, which travel with the values. Magnitudes that are all equal need no squeezing, and have no
/// slope, though their mean may be rounded: then alpha is 0.
struct Slope {
  float alpha, beta;
};

CGX_HD Slope slope_of(const Measured& measured) {
  const double mean = measured.of[1] / measured.of[0], greatest = measured.of[2];
  if (!(measured.of[3] < greatest)) return {0.0f, 0.0f};
  const double width = greatest - mean, least = kGreatest * 0x1p-16;
  const float alpha = static_cast<float>(kGreatest / (width > least ? width : least));
  return {alpha, static_cast<float>(kGreatest - static_cast<double>(alpha) * greatest)};
}

CGX_HD casting::Way way_of(const Slope& slope) {
  return slope.alpha > 0.0f ? casting::Way::kCast : casting::Way::kCopy;
}

/// y of x. Zeros and infinities stay, and subnormal numbers of float64. e5m2: a plain rule.
template <formats::Kind kind>
CGX_HD_LOOP double squeezed(const formats::Rule<float>& e5m2, double alpha, double beta, double x,
                            uint32_t random) {
  using Type = formats::WordOf<double>;
  const uint64_t sign = as_bits(x) & Type::kSign;
  const double place = alpha * logarithm_of(x) + beta;
  // -100 for less: far below the least number, whose power of two would be none of float32.
  const uint64_t magnitude = as_bits(place) & ~Type::kSign;
  const uint64_t far =
      formats::where_less(as_bits(100.0), magnitude) & (uint64_t{0} - (as_bits(place) >> 63));
  const double near = wide_from_bits(formats::select(far, as_bits(-100.0), as_bits(place)));
  const uint32_t u = as_bits(static_cast<float>(exp2_of(near)));
  const uint32_t rounded = formats::round_magnitude<kind, true>(e5m2, u, random);
  const uint32_t beyond = formats::where_less(e5m2.largest, rounded);
  const double wide =
      static_cast<double>(from_bits(formats::select(beyond, e5m2.largest, rounded)));
  const uint64_t number = has_logarithm(wide);
  const double back = (logarithm_of(wide) - beta) / alpha;
  const uint64_t result = (as_bits(exp2_of(back)) & number) | sign;
  const uint64_t kept = formats::select(has_logarithm(x), result, as_bits(x));
  const uint64_t nan = formats::where_less(Type::kInfinity, kept & ~Type::kSign);
  return wide_from_bits(formats::select(nan, Type::kNanWord, kept));
}

}  // namespace cgx::s2fp8
