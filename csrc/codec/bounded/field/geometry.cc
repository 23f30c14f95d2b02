#include "codec/bounded/field/geometry.h"

#include <algorithm>

namespace cgx::bounded::field {

Geometry geometry_of(std::span<const uint64_t> shape, uint64_t first, size_t n) {
  // The last two dimensions that have more than one place.
  uint64_t width = 1, height = 1;
  for (size_t k = shape.size(); k-- > 0 && height == 1;) {
    if (shape[k] == 1) continue;
    (width == 1 ? width : height) = shape[k];
  }
  const auto number = [](uint64_t some) { return static_cast<uint32_t>(some); };
  if (2 * width > n) return {number(n), 1, 0};
  if (2 * width * height > n) {
    const uint64_t start = first % width;
    return {number(width), number((start + n + width - 1) / width), number(start)};
  }
  return {number(width), number(height), number(first % (width * height))};
}

}  // namespace cgx::bounded::field
