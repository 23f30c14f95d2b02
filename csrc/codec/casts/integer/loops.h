// Loops of integers with a zero point, by SIMD level.
#pragma once

#include <cstddef>

#include "codec/casts/integer/affine.h"
#include "codec/formats/loops.h"

namespace cgx::integers {

template <typename Real>
struct Values {
  const Real* x;
  Real* y;  // may be x
  size_t n;
  Affine affine;
  formats::Draws draws;
};

template <typename Real>
struct Range {
  Real least, greatest;  // a NaN or an infinity where one of the values is
};

/// The casts are indexed by formats::Kind; kCpd and kScale, which integers do not have, are null. `rules`
/// round to integers.
struct Loops {
  void (*narrow[formats::kKinds])(const formats::Rules& rules, const Values<float>& values);
  void (*wide[formats::kKinds])(const formats::Rules& rules, const Values<double>& values);
  Range<float> (*range)(const float* x, size_t n);
  Range<double> (*wide_range)(const double* x, size_t n);
};

/// The loops of the level in force. ConfigError: CGX_CPU_LEVEL is bad.
const Loops& loops();

}  // namespace cgx::integers
