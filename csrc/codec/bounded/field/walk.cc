#include "codec/bounded/field/walk.h"

#include <algorithm>
#include <bit>

namespace cgx::bounded::field {

int levels_of(const Geometry& geometry) {
  // Anchors are some hundredths of the values at most.
  constexpr int kMost = 8;
  const uint32_t longer = std::max(geometry.width, geometry.height);
  return std::clamp(static_cast<int>(std::bit_width(longer - 1)) - 1, 1, kMost);
}

}  // namespace cgx::bounded::field
