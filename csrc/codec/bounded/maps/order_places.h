// The places of floating-point numbers in the order of their values (order.h): formulas for the host
// and for kernels.
#pragma once

#include "base/host_device.h"

namespace cgx::bounded {

/// Sign and exponents of a floating-point type, in its bits.
struct FloatLayout {
  uint64_t sign, infinity, least_normal;
};

/// True for NaN, infinities and -0: what every map with a bound leaves to the list of special values.
CGX_HD bool is_special(const FloatLayout& layout, uint64_t bits) {
  return bits == layout.sign || (bits & (layout.sign - 1)) >= layout.infinity;
}

CGX_HD bool is_subnormal(const FloatLayout& layout, uint64_t bits) {
  const uint64_t magnitude = bits & (layout.sign - 1);
  return magnitude != 0 && magnitude < layout.least_normal;
}

/// The place of a magnitude from 0 to top, and back. 0 <= origin < top, or both are 0.
template <typename U>
CGX_HD U place_of(U magnitude, U origin, U top) {
  const U turned = static_cast<U>(magnitude - origin + (magnitude <= origin ? top : U{0}));
  return magnitude == 0 ? U{0} : turned;
}
template <typename U>
CGX_HD U magnitude_of(U place, U origin, U top) {
  const U turned = static_cast<U>(place + origin);  // fits: both are at most top
  const U magnitude = turned > top ? static_cast<U>(turned - top) : turned;
  return place == 0 ? U{0} : magnitude;
}

}  // namespace cgx::bounded
