#include "codec/casts/zscore/loops.h"

#include "base/unroll.h"

#define CGX_LEVEL_FILE "codec/casts/zscore/loops-inl.h"
#define CGX_LEVEL_SCALAR
#include "codec/ops/foreach_level-inl.h"

namespace cgx::zscore {

const Loops& loops() {
  static constexpr cpu::ByLevel<Loops> kByLevel = CGX_BY_LEVEL(kLoops);
  return cpu::at_level(kByLevel);
}

Moments moments(const float* x, size_t n) {
  const Sums sums = loops().sums(x, n);
  return moments_of(sums.distances, sums.squares, static_cast<double>(x[0]),
                    static_cast<double>(n));
}
Moments moments(const double* x, size_t n) {
  const Sums sums = loops().wide_sums(x, n);
  return moments_of(sums.distances, sums.squares, x[0], static_cast<double>(n));
}

}  // namespace cgx::zscore
