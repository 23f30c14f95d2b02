// The loops of a codec over rotated blocks: once per family and SIMD level, with the same bits on
// each.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "codec/ops/by_level.h"
#include "codec/rotation/formulas.h"

namespace cgx::rotation {

/// A part of a run that starts on a block's border.
struct Part {
  size_t n;        // values, the last block may be incomplete
  uint32_t block;  // values of a block: a power of two, kLeastBlock to kLargestBlock
  int bits;        // of a code
  Scale scale;     // of encoding
  uint64_t signs;  // state of the first value's sign
};

/// Pointers may have any alignment. Nothing outside of the n values, the 4 * ceil(n / block) bytes
/// of scales and the ceil(n * bits / 8) bytes of codes is read or written.
struct Loops {
  void (*encode)(const Part& part, const std::byte* x, DType dtype, std::byte* scales,
                 std::byte* codes);
  void (*decode)(const Part& part, const std::byte* scales, const std::byte* codes, float* y,
                 bool add);
};

}  // namespace cgx::rotation
