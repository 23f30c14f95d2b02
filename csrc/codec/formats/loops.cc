#include "codec/formats/loops.h"

#include <algorithm>
#include <limits>

#include "base/unroll.h"

#define CGX_LEVEL_FILE "codec/formats/loops-inl.h"
#define CGX_LEVEL_SCALAR
#include "codec/ops/foreach_level-inl.h"

namespace cgx::formats {
namespace {

template <typename Real, typename Loop>
void in_words(Loop loop, const Rules& rules, const Real* x, size_t n, RandomKey key, uint64_t index,
              Real* y) {
  in_draws(key, index, n, [&](size_t first, size_t some, const Draws& draws) {
    loop(rules, x + first, some, draws, y + first);
  });
}

template <typename Real>
size_t beyond(const Real* x, size_t n, double lowest, double largest) {
  const auto low = static_cast<Real>(lowest), high = static_cast<Real>(largest);
  const Real infinity = std::numeric_limits<Real>::infinity();
  size_t count = 0;
  for (size_t i = 0; i < n; ++i) {
    count += ((x[i] > high) & (x[i] < infinity)) | ((x[i] < low) & (x[i] > -infinity));
  }
  return count;
}

}  // namespace

const Loops& loops() {
  static constexpr cpu::ByLevel<Loops> kByLevel = CGX_BY_LEVEL(kLoops);
  return cpu::at_level(kByLevel);
}

void cast(const Rules& rules, const float* x, size_t n, RandomKey key, uint64_t index, float* y) {
  in_words(loops().narrow[static_cast<int>(rules.kind)], rules, x, n, key, index, y);
}
void cast(const Rules& rules, const double* x, size_t n, RandomKey key, uint64_t index, double* y) {
  in_words(loops().wide[static_cast<int>(rules.kind)], rules, x, n, key, index, y);
}

size_t count_beyond(const float* x, size_t n, double lowest, double largest) {
  return beyond(x, n, lowest, largest);
}
size_t count_beyond(const double* x, size_t n, double lowest, double largest) {
  return beyond(x, n, lowest, largest);
}

}  // namespace cgx::formats
