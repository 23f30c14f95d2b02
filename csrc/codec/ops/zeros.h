// Whether a run of floats holds a zero.
#pragma once

#include <cstddef>

namespace cgx::cpu {

/// True if one of n floats of `bytes` bytes, 2 (float16, bfloat16) or 4 (float32), is +0 or -0. `x`
/// may have any alignment. A pure function.
bool holds_zero(const std::byte* x, size_t n, size_t bytes);

}  // namespace cgx::cpu
