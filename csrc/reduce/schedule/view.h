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
  /// If not null: values [k * part_values, (k + 1) * part_values) lie at parts[k], whatever `base`
  /// is. A run lies in one part.
  const void* const* parts = nullptr;
  size_t part_values = 0;

  /// Value number `value` of a run.
  std::byte* at(const Run& run, size_t value) const {
    if (parts != nullptr) {
      auto* part = static_cast<std::byte*>(const_cast<void*>(parts[run.offset / part_values]));
      return part + (run.offset % part_values + value) * size_of(dtype);
    }
    const size_t place = (packed ? run.packed : run.offset - first_value) + value;
    return base + place * size_of(dtype);
  }
};

}  // namespace cgx
