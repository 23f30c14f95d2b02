// Loops of z-scores, and of the moments that they need, by SIMD level.
#pragma once

#include <cstddef>

#include "codec/casts/zscore/formulas.h"
#include "codec/formats/loops.h"

namespace cgx::zscore {

/// Of some values: their number, mean, and sum of squared distances from it.
struct Moments {
  double count = 0, mean = 0, squares = 0;
};

/// Of both together (Chan, Golub, LeVeque: Updating formulae and a pairwise algorithm for computing sample
/// variances, 1979).
inline Moments together(const Moments& a, const Moments& b) {
  if (a.count == 0) return b;
  if (b.count == 0) return a;
  const double count = a.count + b.count, step = b.mean - a.mean;
  return {count, a.mean + step * (b.count / count),
          a.squares + b.squares + step * step * (a.count * b.count / count)};
}

/// Values that are summed side by side: lane k has those whose number in the block is k more than a multiple
/// of it.
constexpr size_t kLanes = 16;

/// The sums of a block's distances from its first value, and of their squares. Lanes are added pairwise:
/// k and k + 8, then k + 4, and so on.
struct Sums {
  double distances, squares;
};

struct Loops {
  void (*narrow[formats::kKinds])(const Zones<float>& zones, const float* x, size_t n,
                                  formats::Draws draws, float* y);
  void (*wide[formats::kKinds])(const Zones<double>& zones, const double* x, size_t n,
                                formats::Draws draws, double* y);
  Sums (*sums)(const float* x, size_t n);
  Sums (*wide_sums)(const double* x, size_t n);
};

/// The loops of the level in force. ConfigError: CGX_CPU_LEVEL is bad.
const Loops& loops();

/// Of a block of at most kStatisticsBlock values, n > 0. NaN where one of them is not finite.
Moments moments(const float* x, size_t n);
Moments moments(const double* x, size_t n);

}  // namespace cgx::zscore
