// The grid of an absolute bound: value = step * q, with q a whole number.
//
// A decoded value is rounded to the tensor's own type, so a step of twice the bound is too wide where
// neighbours in that type are not much closer than the bound. All values of one binade are multiples
// of its unit in the last place u; a decoded value is one, too. So their difference is a multiple of
// u, at most m u with m = floor(bound / u) is allowed, and step <= (2 m + 1) u gives at most m u. The
// step of a block is the least of these over the binades from its greatest value down, and 2 bound.
#pragma once

#include "base/host_device.h"

namespace cgx::bounded {

struct Grid {
  double step = 0;
  double inverse = 0;  // 1 / step
  double bound = 0;    // |value - decoded value| in float64
};

/// Adding it to a number below 2^51 leaves the number, rounded to the nearest whole one (ties to
/// even), in the low bits.
inline constexpr double kRounder = 0x1.8p52;
inline constexpr uint64_t kRounderBits = 0x4338000000000000;

/// Of quick checks in float32: a part of the bound that no rounding to float32 exceeds, and the number
/// of steps up to which a place surely fits an int32. In these limits a bound is a float32 that has all
/// its digits, and so are the parts of 1 / step that matter.
inline constexpr double kQuickBound = 1 - 0x1p-20;
inline constexpr double kQuickReach = 0x1p31 - 0x1p9;
inline constexpr double kQuickLeast = 0x1p-60, kQuickMost = 0x1p60;

/// A place p of a value x by float32 alone, with fused multiply-adds (loops/vector_avx2-inl.h). Its
/// distance |x / step - p| is known to 2^-23, from 1 / step in two parts. If that is at most
/// kSureHalf - kSureSlack |p|, then p is x / step rounded in float64, too, and p * step, rounded to
/// float32, is off by less than (1 - 2^-20) step / 2, which the bound is not below: the slack is
/// half a unit in the last place of p, and more. It also leaves |p| below 2^23.
struct SureGrid {
  float inverse, rest;
};
inline constexpr float kSureHalf = 0.5F - 0x1p-20F;
inline constexpr float kSureSlack = 0x1p-24F + 0x1p-32F;

inline SureGrid sure_grid(const Grid& grid) {
  const auto inverse = static_cast<float>(grid.inverse);
  return {inverse, static_cast<float>(grid.inverse - static_cast<double>(inverse))};
}

#if defined(__CUDA_ARCH__)
CGX_HD uint64_t double_bits(double x) { return static_cast<uint64_t>(__double_as_longlong(x)); }
CGX_HD double bits_double(uint64_t bits) {
  return __longlong_as_double(static_cast<long long>(bits));
}
#else
CGX_HD uint64_t double_bits(double x) { return __builtin_bit_cast(uint64_t, x); }
CGX_HD double bits_double(uint64_t bits) { return __builtin_bit_cast(double, bits); }
#endif

/// A word in the low bits of a sum with kRounder, and the whole number that it stands for. The word of
/// a number that is out of range gives another number, which is what the check of the bound sees.
template <typename Word>
CGX_HD Word word_of(double rounded) {
  if constexpr (sizeof(Word) == 4) {
    return static_cast<int32_t>(static_cast<uint32_t>(double_bits(rounded)));
  } else {
    return static_cast<int64_t>(double_bits(rounded) - kRounderBits);
  }
}
template <typename Word>
CGX_HD double number_of(Word word) {
  if constexpr (sizeof(Word) == 4) {
    return static_cast<double>(word);
  } else {
    return bits_double(static_cast<uint64_t>(word) + kRounderBits) - kRounder;
  }
}

#if !defined(CGX_DEVICE_COMPILER)
/// The step for values of which the greatest has the unit in the last place `unit` (0: all values are
/// 0). `bound` is greater than 0.
Grid make_grid(double bound, double unit);

/// The unit in the last place of a float32, or of a float64, by the bits of its magnitude.
double unit_of_float(uint32_t magnitude);
double unit_of_double(uint64_t magnitude);
#endif

}  // namespace cgx::bounded
