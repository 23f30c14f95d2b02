#include "codec/formats/bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace cgx::formats {

double error_bound(const Casting& casting, double x) {
  const Format& format = casting.format;
  const double magnitude = std::fabs(x);
  const bool number = format.is_signed() || x > 0;
  if (magnitude > format.largest() || !number) return std::numeric_limits<double>::infinity();
  const bool cpd = format.variant == Variant::kCpd;
  const bool whole =
      casting.rounding != Rounding::kNearest || cpd || format.variant == Variant::kScale;
  const double least = std::ldexp(1.0, format.least_exponent());
  const double step = std::ldexp(1.0, std::ilogb(std::max(magnitude, least)) - format.mantissa);
  double limit = whole ? step : step / 2;
  if (!casting.subnormals && magnitude < least) limit = least;
  // CPD loses float32's subnormal values.
  return cpd ? std::max(limit, 0x1p-126) : limit;
}

}  // namespace cgx::formats
