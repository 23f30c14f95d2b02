#include "codec/bounded/range.h"

#include <algorithm>
#include <cmath>

#include "base/float_mode.h"
#include "codec/bounded/maps/lattice.h"

namespace cgx::bounded {
namespace {

template <typename ValueAt>
double range_of(size_t n, const ValueAt& value_at) {
  double least = INFINITY, greatest = -INFINITY;
  for (size_t i = 0; i < n; ++i) {
    const double value = value_at(i);
    if (!std::isfinite(value)) continue;
    least = std::min(least, value);
    greatest = std::max(greatest, value);
  }
  return greatest < least ? 0 : greatest - least;
}

}  // namespace

double finite_range(DType element, const std::byte* x, size_t n) {
  const FloatMode mode;
  if (element == DType::kFloat32) {
    const auto* values = reinterpret_cast<const float*>(x);
    return range_of(n, [&](size_t i) { return static_cast<double>(values[i]); });
  }
  if (element == DType::kFloat64) {
    const auto* values = reinterpret_cast<const double*>(x);
    return range_of(n, [&](size_t i) { return values[i]; });
  }
  const auto* bits = reinterpret_cast<const uint16_t*>(x);
  return range_of(n, [&](size_t i) { return half_value(element, bits[i]); });
}

}  // namespace cgx::bounded
