// How much the errors of neighbours count in a field's predictions.
#pragma once

#include "codec/bounded/field/geometry.h"
#include "codec/bounded/field/rows.h"
#include "codec/bounded/field/walk.h"

namespace cgx::bounded::field {

/// The numbers of a block in their planes, and which of them are there.
template <typename T>
struct Source {
  Geometry geometry;
  size_t planes;
  const T* numbers;        // planes * geometry.plane(); any where none is
  const uint8_t* missing;  // of each number, 0 where it is there; null: all are
};

/// Weights by the method of least squares, of some of the values. step: of the grid, 0 without one:
/// decoded neighbours differ from the values by so much noise.
template <typename T>
void fit_weights(const Source<T>& source, double step, Weights (&weights)[kGroups]);

}  // namespace cgx::bounded::field
