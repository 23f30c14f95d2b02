// Values that the error-bounded compressor finds hard.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>

#include "bounded_blocks.h"
#include "data.h"

namespace cgx::native {

inline constexpr int kFloatPatterns = 16, kWholePatterns = 6;

/// Rounded to the type.
inline uint64_t bits_of_float(DType element, double x) {
  switch (element) {
    case DType::kFloat64:
      return __builtin_bit_cast(uint64_t, x);
    case DType::kFloat32:
      return float_bits(static_cast<float>(x));
    case DType::kFloat16:
      return float_to_half(static_cast<float>(x));
    default:
      return float_to_bfloat16(static_cast<float>(x));
  }
}

inline double greatest_of(DType element) {
  switch (element) {
    case DType::kFloat64:
      return std::numeric_limits<double>::max();
    case DType::kFloat16:
      return 65504;
    case DType::kFloat32:
      return static_cast<double>(std::numeric_limits<float>::max());
    default:
      return 0x1.fep127;
  }
}

/// The bits of value number i of n. `bound` is that of the grid, for values next to its borders.
inline uint64_t hard_float(DType element, int pattern, size_t i, size_t n, double bound,
                           Random& random) {
  const auto of = [&](double x) { return bits_of_float(element, x); };
  const double r = random.signed_unit(), gauss = r + random.signed_unit() + random.signed_unit();
  const int most = element == DType::kFloat64 ? 1023 : element == DType::kFloat16 ? 15 : 127;
  const double at = static_cast<double>(i);
  switch (pattern) {
    case 0:
      return of(gauss);
    case 1:  // any bits: NaNs, infinities, subnormals
      return random();
    case 2:  // magnitudes of all sizes
      return of(std::ldexp(r, static_cast<int>(random(2 * most)) - most));
    case 3: {  // half-way between two places, and next to it
      const double half = (std::nearbyint(r * 200) + 0.5) * 2 * bound;
      return of(half) + random(5) - 2;
    }
    case 4:  // nearly constant, one far away
      return of(i == n / 2 ? 3e4 : 1 + r * 1e-6);
    case 5:  // smooth
      return of(std::sin(at * 0.003) + 0.3 * std::cos(at * 0.0007));
    case 6:  // sorted
      return of(-3 + at * 0.01);
    case 7:  // zeros of both signs, alone
      return of(random(2) == 0 ? 0.0 : -0.0);
    case 8:  // runs of what is no number
      return of((i / 37) % 5 == 1   ? NAN
                : (i / 37) % 5 == 3 ? (r < 0 ? -INFINITY : INFINITY)
                                    : gauss);
    case 9:  // close to the greatest
      return of(greatest_of(element) * (1 - std::fabs(r) * 1e-3) * (random(2) == 0 ? 1 : -1));
    case 10:  // periodic, with a rare outlier
      return of(i % 501 == 77 ? r * 1e4 : std::sin(static_cast<double>(i % 16)));
    case 11:  // noise below the bound, and values at the ends of the words' range
      return of(i % 211 == 5 ? (r < 0 ? -1 : 1) * 0x1p32 * bound * (1 + r * 0x1p-22)
                             : r * 0.01 * bound);
    case 12:  // borders of binades
      return of(std::ldexp(random(2) == 0 ? 1.0 : -1.0, static_cast<int>(random(8)) - 4)) +
             random(5) - 2;
    case 13:  // many zeros of both signs among values on both sides
      return of(i % 3 == 0 ? (random(2) == 0 ? 0.0 : -0.0) : gauss);
    case 14:  // the same, and the ends of the words' range
      return of(i % 401 == 7 ? -0x1p32 * bound : random(2) == 0 ? -0.0 : r * 0.3 * bound);
    default:  // subnormal, and the least normal ones
      return of(std::ldexp(r, element == DType::kFloat64   ? -1019
                              : element == DType::kFloat16 ? -13
                                                           : -123));
  }
}

inline uint64_t hard_whole(int pattern, size_t i, Random& random) {
  switch (pattern) {
    case 0:
      return random();
    case 1:
      return random(17) - 8;
    case 2:  // the ends
      return random(4) == 0 ? uint64_t{0} : random(2) == 0 ? ~uint64_t{0} : 0x8080808080808080;
    case 3:  // sorted
      return i * 3;
    case 4:  // low bits that none has set
      return random() << 3;
    default:  // rare ones
      return i % 97 == 3 ? random() : 0;
  }
}

/// n values of a type; bools are 0 and 1.
inline Block hard_values(DType element, int pattern, size_t n, double bound, uint64_t seed) {
  Random random(seed);
  const size_t bytes = size_of(element);
  Block x(n * bytes);
  for (size_t i = 0; i < n; ++i) {
    uint64_t bits = is_floating(element)
                        ? hard_float(element, pattern % kFloatPatterns, i, n, bound, random)
                        : hard_whole(pattern % kWholePatterns, i, random);
    if (element == DType::kBool) bits &= 1;
    std::memcpy(x.data() + i * bytes, &bits, bytes);
  }
  return x;
}

/// A bound that a type may be asked for.
struct Promise {
  BoundKind kind;
  double bound;
};

inline std::vector<Promise> promises_of(DType element) {
  std::vector<Promise> all{{BoundKind::kLossless, 0}};
  if (!is_floating(element)) return all;
  for (const double bound : {1e-4, 0.7e-3, 0x1p-10, 1e-12, 3.0, 1e30, 0x1p-149})
    all.push_back({BoundKind::kAbsolute, bound});
  for (const double bound : {1e-2, 1e-3, 0x1p-11, 1e-6, 0.9}) {
    all.push_back({BoundKind::kPointwise, bound});
  }
  return all;
}

}  // namespace cgx::native
