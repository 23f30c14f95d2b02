// Whether a block is worth trying as a field, by some of its values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "codec/bounded/field/geometry.h"

namespace cgx::bounded::field {

/// Rows of fewer values have too few neighbours, as have blocks.
inline constexpr size_t kLeastWidth = 8, kLeastValues = 1024;

/// Mean logarithms (base 2) of errors: of predictions along a row, as other blocks have them, and of a
/// field's.
struct Promise {
  double row = 0, field = 0;
  double least = 0.02;  // what a field must save
  bool worth_trying() const { return field < row - least; }
};

/// The values that promise_of() may ask for, ascending.
std::vector<uint32_t> promise_places(const Geometry& geometry, size_t n);

/// value(i): value i of the block as a number; NaN where there is none. noise: of the grid's step, what
/// errors are no smaller than; 0: there is no grid.
Promise promise_of(const Geometry& geometry, size_t n, double noise,
                   const std::function<double(size_t)>& value);

}  // namespace cgx::bounded::field
