// Scales of blocks on the wire: values divided by them, and back, by SIMD level.
#pragma once

#include <cstddef>

#include "codec/families/block/shape.h"
#include "codec/ops/by_level.h"

namespace cgx::blocks {

/// Values at a time: whole blocks, whose size divides it, in the first-level cache.
constexpr size_t kChunk = 1024;

/// Of at most kChunk values, which start with a block.
struct WireLoops {
  /// Writes the scales and divides the values by them. Those of a block that is not finite become NaN.
  void (*divide)(const WireShape& shape, float* x, size_t n, std::byte* scales);
  /// y = x times the scale of its block, by `add` added to y.
  void (*multiply[2])(const WireShape& shape, const float* x, size_t n, const std::byte* scales,
                      float* y);
};

/// Of the level in force. ConfigError: CGX_CPU_LEVEL is bad.
const WireLoops& wire_loops();

}  // namespace cgx::blocks
