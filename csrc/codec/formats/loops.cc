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
  // The counter has the low word of a value's number, the key its high word.
  for (size_t done = 0; done < n;) {
    const uint64_t number = index + done;
    const uint64_t left = (uint64_t{1} << 32) - (number & 0xffffffffu);
    const auto some = static_cast<size_t>(std::min<uint64_t>(n - done, left));
    const Draws draws{key_of_high(key, static_cast<uint32_t>(number >> 32)),
                      static_cast<uint32_t>(number)};
    loop(rules, x + done, some, draws, y + done);
    done += some;
  }
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
