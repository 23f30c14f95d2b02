// The loops of dropout(): once per SIMD level, with the same bits on each.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/ops/by_level.h"
#include "codec/ops/random.h"

namespace cgx::dropping {

/// float32, float16 and bfloat16 by the numbers of their DType; then float64.
inline constexpr int kFloat64 = 3, kTypes = 4;

/// What all elements of a run share. The numbers of its elements have one high word, which is in `key`.
struct Run {
  RandomKey key;
  uint32_t first;  // low word of the first element's number
  float keep;      // 1 - p
  double scale;    // of what stays
};

using Drop = void(const Run& run, const std::byte* x, size_t n, std::byte* y);

/// By type.
struct Loops {
  Drop* drop[kTypes];
};

}  // namespace cgx::dropping
