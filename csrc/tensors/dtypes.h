// The engine's element types, as torch names them.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "base/dtype.h"

namespace cgx {

/// None for types that no contract knows, such as quantized ones.
std::optional<DType> dtype_of(at::ScalarType type);

}  // namespace cgx
