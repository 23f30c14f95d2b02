#include "codec/casts/zscore/loops.h"

#include "base/unroll.h"

#define CGX_LEVEL_FILE "codec/casts/zscore/loops-inl.h"
#define CGX_LEVEL_SCALAR
#include "codec/ops/foreach_level-inl.h"

namespace cgx::zscore {
namespace {

Moments moments_of(const Sums& sums, double origin, size_t n) {
  const auto count = static_cast<double>(n);
  const double step = sums.distances / count;
  return {count, origin + step, sums.squares - sums.distances * step};
}

}  // namespace

const Loops& loops() {
  static constexpr cpu::ByLevel<Loops> kByLevel = CGX_BY_LEVEL(kLoops);
  return cpu::at_level(kByLevel);
}

Moments moments(const float* x, size_t n) {
  return moments_of(loops().sums(x, n), static_cast<double>(x[0]), n);
}
Moments moments(const double* x, size_t n) { return moments_of(loops().wide_sums(x, n), x[0], n); }

}  // namespace cgx::zscore
