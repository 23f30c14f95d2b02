// Loops of S2FP8, by SIMD level.
#pragma once

#include <cstddef>

#include "codec/casts/s2fp8/formulas.h"
#include "codec/formats/loops.h"

namespace cgx::s2fp8 {

struct Loops {
  /// y = what the format makes of x, which may be y. By formats::Kind; kCpd and kScale, which S2FP8 does not
  /// have, are null.
  void (*narrow[formats::kKinds])(const formats::Rule<float>& e5m2, Slope slope, const float* x,
                                  size_t n, formats::Draws draws, float* y);
  void (*wide[formats::kKinds])(const formats::Rule<float>& e5m2, Slope slope, const double* x,
                                size_t n, formats::Draws draws, double* y);
  /// Of a block of values: how many have a logarithm, the sum of these, the greatest, and the least.
  Measured (*logarithms)(const float* x, size_t n);
  Measured (*wide_logarithms)(const double* x, size_t n);
};

/// The loops of the level in force. ConfigError: CGX_CPU_LEVEL is bad.
const Loops& loops();

}  // namespace cgx::s2fp8
