// Mean and sigma of a group of values: the single source of these numerics, for the host and for kernels.
//
// A block of values has the sums of their distances from its first value, and of the squares of these. Both
// are summed in kLanes lanes: lane k has the values whose number in the block is k more than a multiple of
// it. Lanes are added pairwise: k and k + 8, then k + 4, and so on. Blocks are joined in their order.
#pragma once

#include "codec/casts/measured.h"

namespace cgx::zscore {

inline constexpr uint32_t kLanes = 16;

/// Of some values: their number, mean, and sum of squared distances from it.
struct Moments {
  double count = 0, mean = 0, squares = 0;
};

/// Of n values whose distances from `origin` have these sums.
CGX_HD Moments moments_of(double distances, double squares, double origin, double n) {
  const double step = distances / n;
  return {n, origin + step, squares - distances * step};
}

/// Of both together (Chan, Golub, LeVeque: Updating formulae and a pairwise algorithm for computing sample
/// variances, 1979).
CGX_HD Moments together(const Moments& a, const Moments& b) {
  if (a.count == 0) return b;
  if (b.count == 0) return a;
  const double count = a.count + b.count, step = b.mean - a.mean;
  return {count, a.mean + step * (b.count / count),
          a.squares + b.squares + step * step * (a.count * b.count / count)};
}

/// How sigma follows from what was measured: the root of the squares over `divisor`; or the range over it.
struct Spread {
  bool
      of_range;  // then the last two numbers measured are the least and the greatest value, not the squares
  double divisor;
};

/// range: as Spread::of_range.
CGX_HD Measured joined(bool range, const Measured& a, const Measured& b) {
  const Moments both = together({a.of[0], a.of[1], range ? 0.0 : a.of[2]},
                                {b.of[0], b.of[1], range ? 0.0 : b.of[2]});
  if (!range) return {{both.count, both.mean, both.squares}};
  return {{both.count, both.mean, b.of[2] < a.of[2] ? b.of[2] : a.of[2],
           a.of[3] < b.of[3] ? b.of[3] : a.of[3]}};
}

/// The mean and the sigma that travel with the values.
struct Centre {
  float mean, sigma;
};

CGX_HD Centre centre_of(const Spread& spread, const Measured& measured) {
  const double squares = measured.of[2] < 0.0 ? 0.0 : measured.of[2];
  const double sigma = spread.of_range ? (measured.of[3] - measured.of[2]) / spread.divisor
                                       : rn_sqrt(squares / spread.divisor);
  return {static_cast<float>(measured.of[1]), static_cast<float>(sigma)};
}

/// Of a group of `total` values. Fewer than 8, or values that are all equal, stay.
CGX_HD casting::Way way_of(const Centre& centre, uint64_t total) {
  if (total < 8) return casting::Way::kCopy;
  if (!casting::is_number(centre.mean) || !casting::is_number(centre.sigma)) {
    return casting::Way::kNan;
  }
  return centre.sigma < 0x1p-126f ? casting::Way::kCopy : casting::Way::kCast;
}

}  // namespace cgx::zscore
