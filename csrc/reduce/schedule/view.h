// Where the values of a call lie: in the caller's tensors, or in work memory.
#pragma once

#include <cstddef>

#include "base/dtype.h"
#include "reduce/plan/plan.h"

namespace cgx {

/// Address of values of the call's tensor.
struct View {
  std::byte* base = nullptr;  // null: nowhere
  size_t first_value = 0;     // the value at base, unless packed
  DType dtype = DType::kFloat32;
  /// The values of a chunk lie one behind the other, in the order of its runs.
  bool packed = false;
  /// The caller's values, to which the call's residual (if there is one) has yet to be added.
  bool plus_residual = false;

  /// Value number `value` of a run.
  std::byte* at(const Run& run, size_t value) const {
    const size_t place = (packed ? run.packed : run.offset - first_value) + value;
    return base + place * size_of(dtype);
  }
};

}  // namespace cgx
