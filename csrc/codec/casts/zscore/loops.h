// Loops of z-scores, and of the moments that they need, by SIMD level.
#pragma once

#include <cstddef>

#include "codec/casts/zscore/formulas.h"
#include "codec/casts/zscore/moments.h"
#include "codec/formats/loops.h"

namespace cgx::zscore {

/// The sums of a block's distances from its first value, and of their squares (moments.h).
struct Sums {
  double distances, squares;
};

struct Loops {
  void (*narrow[formats::kKinds])(const Zones<float>& zones, Centre centre, const float* x,
                                  size_t n, formats::Draws draws, float* y);
  void (*wide[formats::kKinds])(const Zones<double>& zones, Centre centre, const double* x,
                                size_t n, formats::Draws draws, double* y);
  Sums (*sums)(const float* x, size_t n);
  Sums (*wide_sums)(const double* x, size_t n);
};

/// The loops of the level in force. ConfigError: CGX_CPU_LEVEL is bad.
const Loops& loops();

/// Of a block of at most kStatisticsBlock values, n > 0. NaN where one of them is not finite.
Moments moments(const float* x, size_t n);
Moments moments(const double* x, size_t n);

}  // namespace cgx::zscore
