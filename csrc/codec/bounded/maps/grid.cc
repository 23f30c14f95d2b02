#include "codec/bounded/maps/grid.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace cgx::bounded {

Grid make_grid(double bound, double unit) {
  double step = 2 * bound;
  // Below, 2 bound / u is so large that the odd number next to it changes nothing.
  for (int binade = 0; binade < 60 && unit > 0 && unit * 0x1p50 > bound; ++binade, unit /= 2) {
    step = std::min(step, (2 * std::floor(bound / unit) + 1) * unit);
  }
  return {step, 1 / step, bound};
}

template <typename Word>
Word most_word(double step) {
  using Value = std::conditional_t<sizeof(Word) == 4, float, double>;
  const auto finite = [&](Word word) {
    return std::isfinite(static_cast<Value>(static_cast<double>(word) * step));
  };
  Word least = 0, beyond = kMostWord<Word>;
  if (finite(beyond)) return beyond;
  while (beyond - least > 1) {
    const Word between = least + (beyond - least) / 2;
    (finite(between) ? least : beyond) = between;
  }
  return least;
}
template int32_t most_word<int32_t>(double);
template int64_t most_word<int64_t>(double);

double unit_of_float(uint32_t magnitude) {
  const int exponent = static_cast<int>(magnitude >> 23);
  return std::ldexp(1.0, std::max(exponent, 1) - 127 - 23);
}

double unit_of_double(uint64_t magnitude) {
  const int exponent = static_cast<int>(magnitude >> 52);
  return std::ldexp(1.0, std::max(exponent, 1) - 1023 - 52);
}

}  // namespace cgx::bounded
