// Search for a NaN or an Inf in a run of values.
#pragma once

#include <cstddef>

#include "base/dtype.h"

namespace cgx {

/// True where all n values of type dtype at x (any alignment) are finite. Stops soon after the
/// first that is not. Thread-safe. Errors: ConfigError where CGX_CPU_LEVEL is bad.
bool all_finite(const void* x, DType dtype, size_t n);

}  // namespace cgx
