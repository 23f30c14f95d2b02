// The range of a tensor's values, for bounds that are relative to it.
#pragma once

#include <cstddef>

#include "codec/bounded/element.h"

namespace cgx::bounded {

/// The greatest minus the least finite value of n values of a floating-point type, aligned as it is, in
/// float64; 0 without finite values, infinity if float64 cannot hold the difference. The thread's
/// rounding mode does not matter.
double finite_range(DType element, const std::byte* x, size_t n);

}  // namespace cgx::bounded
