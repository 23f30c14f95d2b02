// The loops of LevelTable: once per SIMD level, with the same bits on each.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/ops/by_level.h"

namespace cgx::levels {

inline constexpr int kMostBits = 8, kMostLevels = 256;

/// float32, float16 and bfloat16 by the numbers of their DType; then float64.
inline constexpr int kFloat64 = 3, kTypes = 4;

/// A table in the forms that loops read. Borders that are lacking for a power of two are infinite, and
/// levels that are lacking are the last one.
struct Arrays {
  int bits = 0;   // of a code
  int depth = 0;  // of the tree: more than bits where levels take turns
  uint32_t borders = 0;
  bool magnitude = false;      // values are compared without their signs
  double border[kMostLevels];  // rising
  alignas(64) float tree
      [kMostLevels];  // tree.h; a value of float32 is above these where it is above the
                      // borders themselves
  alignas(64) float level[kMostLevels];
  double wide_level[kMostLevels];
};

/// Pointers have any alignment. Nothing but n values and (n * bits + 7) / 8 bytes of codes is read or
/// written.
/// Returns whether a value is NaN.
using Encode = bool(const Arrays& table, const std::byte* x, size_t n, std::byte* codes);
/// `factors` may be y; null where the levels themselves are wanted.
using Decode = void(const Arrays& table, const std::byte* codes, const std::byte* factors, size_t n,
                    std::byte* y);

/// By type.
struct Loops {
  Encode* encode[kTypes];
  Decode* decode[kTypes];
  Decode* multiply[kTypes];
};

}  // namespace cgx::levels
