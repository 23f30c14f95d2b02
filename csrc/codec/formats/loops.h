// Loops over values that become numbers of a format, by SIMD level.
#pragma once

#include <algorithm>
#include <cstddef>

#include "codec/formats/rules.h"
#include "codec/ops/by_level.h"
#include "codec/ops/random.h"

namespace cgx::formats {

/// Both rules of a Casting, or of numbers in fixed point. Values of float64 are rounded by `wide`, except by CPD's rule, which knows
/// float32 only.
struct Rules {
  template <typename Description>
  explicit Rules(const Description& of)
      : kind(kind_of(of)), narrow(rule_of<float>(of)), wide(rule_of<double>(of)) {}

  Kind kind;
  Rule<float> narrow;
  Rule<double> wide;
};

/// The random bits of values from number `counter` on, as codec/ops/random.h has them; `counter` does not
/// overflow within the values.
struct Draws {
  RandomKey key;
  uint32_t counter = 0;

  /// The state of the first value's number; the next one's is kRandomStep more.
  uint32_t state() const { return key.low + counter * kRandomStep; }
};

/// A value's random bits, of its state: none unless a rounding is stochastic.
template <Kind kind>
CGX_HD_LOOP uint32_t drawn(const Draws& draws, uint32_t state, int32_t shift) {
  return kind == Kind::kStochastic ? random_bits_of(state, draws.key.high) >> shift : 0;
}

/// Calls work(first, n, draws) for parts of n values whose numbers begin with `number`: within a part the
/// counter, which has the low word of a value's number, does not overflow.
template <typename Work>
void in_draws(RandomKey key, uint64_t number, size_t n, const Work& work) {
  for (size_t done = 0; done < n;) {
    const uint64_t at = number + done, left = (uint64_t{1} << 32) - (at & 0xffffffffu);
    const auto some = static_cast<size_t>(std::min<uint64_t>(n - done, left));
    work(done, some,
         Draws{key_of_high(key, static_cast<uint32_t>(at >> 32)), static_cast<uint32_t>(at)});
    done += some;
  }
}

struct Loops {
  /// y = x in the format; y may be x. By Kind.
  void (*narrow[kKinds])(const Rules& rules, const float* x, size_t n, Draws draws, float* y);
  void (*wide[kKinds])(const Rules& rules, const double* x, size_t n, Draws draws, double* y);
  /// The greatest magnitude; NaN if there is one.
  float (*greatest)(const float* x, size_t n);
  double (*wide_greatest)(const double* x, size_t n);
};

/// The loops of the level in force. ConfigError: CGX_CPU_LEVEL is bad.
const Loops& loops();

/// y = x in the format; y may be x. index: the number of x[0].
void cast(const Rules& rules, const float* x, size_t n, RandomKey key, uint64_t index, float* y);
void cast(const Rules& rules, const double* x, size_t n, RandomKey key, uint64_t index, double* y);

/// The greatest magnitude; NaN if there is one.
inline float greatest(const float* x, size_t n) { return loops().greatest(x, n); }
inline double greatest(const double* x, size_t n) { return loops().wide_greatest(x, n); }

/// How many of the finite values are below `lowest` or above `largest`.
size_t count_beyond(const float* x, size_t n, double lowest, double largest);
size_t count_beyond(const double* x, size_t n, double lowest, double largest);

}  // namespace cgx::formats
