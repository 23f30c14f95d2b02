// Where a block's values lie in the rows and planes of a tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace cgx::bounded::field {

/// Values of a block, in row-major order, lie in planes of `height` rows of `width` values. The block's
/// first value is the value `start` of the first plane.
struct Geometry {
  uint32_t width = 0, height = 0, start = 0;

  size_t plane() const { return size_t{width} * height; }
  /// Whether a block of n values has values in more than one row.
  bool has_more_rows(size_t n) const { return start % width + n > width; }
  /// Planes that a block of n values touches.
  size_t planes(size_t n) const { return (start + n + plane() - 1) / plane(); }
};

/// The values [first, first + n) of a tensor of that shape. Rows that are longer than half the block
/// are not told apart, nor are planes that are larger.
Geometry geometry_of(std::span<const uint64_t> shape, uint64_t first, size_t n);

}  // namespace cgx::bounded::field
