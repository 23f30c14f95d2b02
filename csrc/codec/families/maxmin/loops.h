// The loops of `maxmin`: once per SIMD level, with the same bits on each.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "codec/families/maxmin/maxmin.h"
#include "codec/ops/by_level.h"
#include "codec/ops/random.h"

namespace cgx::maxmin {

/// A part of a run that starts on a bucket border and a byte border.
struct Part {
  size_t n;                  // values, the last bucket may be incomplete
  size_t bucket_size;        // at least 1
  int bits;                  // 1 to 8
  bool exact_zeros = false;  // zeros come back as zeros; needs 2 bits
};

/// Pointers to a tensor's values, meta and codes may have any alignment. Nothing outside of the n
/// values, the 8 * ceil(n / bucket_size) bytes of meta and the ceil(n * bits / 8) bytes of codes is
/// read or written.
struct Loops {
  /// `index` is the number of the part's first value: the counter of the generator.
  void (*encode)(const Part& part, const std::byte* x, DType dtype, Rounding rounding,
                 RandomKey key, uint64_t index, std::byte* meta, std::byte* codes);
  void (*decode)(const Part& part, const std::byte* meta, const std::byte* codes, float* y,
                 bool add);
};

extern const cpu::ByLevel<Loops> kLoops;

}  // namespace cgx::maxmin
