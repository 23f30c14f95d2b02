// Loops over blocks of values that share a scale, by SIMD level.
#pragma once

#include <cstddef>

#include "codec/formats/loops.h"
#include "codec/formats/scales.h"
#include "codec/ops/by_level.h"

namespace cgx::blocks {

/// Elements of blocks, and how their scales are found.
struct Shape {
  formats::Rules rules;
  formats::ScaleRule scale_rule;
  formats::Scale scale = formats::Scale::kE8m0;
  size_t size = 32, rows = 1;
  bool measured = false;        // the greatest magnitude is Values::amax
  formats::Rule<float> e4m3{};  // of a block's scale, of kE4m3
};

/// Values in rows of `columns`, whose last row may be shorter where blocks have one row.
template <typename Real>
struct Values {
  const Real* x;
  Real* y;  // may be x
  size_t count, columns;
  RandomKey key;
  uint64_t index;    // of x[0]
  double of_tensor;  // kE4m3: the tensor's scale
  double amax;       // measured: of the values' group
  uint64_t* beyond;  // null, or what the number of saturated values is added to
};

/// Casts all blocks. By formats::Kind; those without blocks are null.
struct Loops {
  void (*narrow[formats::kKinds])(const Shape& shape, const Values<float>& values);
  void (*wide[formats::kKinds])(const Shape& shape, const Values<double>& values);
};

/// The loops of the level in force. ConfigError: CGX_CPU_LEVEL is bad.
const Loops& loops();

}  // namespace cgx::blocks
