// The range of a tensor's values, for bounds that are relative to it.
#pragma once

#include <cstddef>

#include "codec/bounded/element.h"

namespace cgx::bounded {

/// The greatest minus the least finite value of n values of a floating-point type, aligned as it is, in
/// float64. 0: there is none. Infinity: float64 cannot hold it. The thread's mode does not matter.
double finite_range(Element element, const std::byte* x, size_t n);

}  // namespace cgx::bounded
