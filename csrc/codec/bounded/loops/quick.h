// Limits within which the SIMD loops may find places on a grid, and check bounds, in float32
// arithmetic.
#pragma once

#include "codec/bounded/maps/grid.h"

namespace cgx::bounded {

/// Of quick checks in float32: a part of the bound that no rounding to float32 exceeds, and the number
/// of steps up to which a place surely fits an int32. In these limits a bound is a float32 that has all
/// its digits, and so are the parts of 1 / step that matter.
inline constexpr double kQuickBound = 1 - 0x1p-20;
inline constexpr double kQuickReach = 0x1p31 - 0x1p9;
inline constexpr double kQuickLeast = 0x1p-60, kQuickMost = 0x1p60;

/// A place p of a value x by float32 alone, with fused multiply-adds. Its distance |x / step - p| is
/// known to 2^-23, from 1 / step in two parts. If that is at most kSureHalf - kSureSlack |p|, then p
/// is x / step rounded in float64, too, and p * step, rounded to float32, is off by less than
/// (1 - 2^-20) step / 2, which the bound is not below: the slack is half a unit in the last place of
/// p, and more. It also leaves |p| below 2^23.
struct SureGrid {
  float inverse, rest;
};
inline constexpr float kSureHalf = 0.5F - 0x1p-20F;
inline constexpr float kSureSlack = 0x1p-24F + 0x1p-32F;

inline SureGrid sure_grid(const Grid& grid) {
  const auto inverse = static_cast<float>(grid.inverse);
  return {inverse, static_cast<float>(grid.inverse - static_cast<double>(inverse))};
}

}  // namespace cgx::bounded
