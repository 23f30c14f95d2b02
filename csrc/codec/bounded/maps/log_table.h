// The table of a log grid (log_grid.h), and its formulas, for the host and for kernels.
#pragma once

#include "codec/bounded/maps/grid.h"

namespace cgx::bounded {

struct LogTable {
  static constexpr int kMostSegments = 16;
  static constexpr int kParts = 256;
  static constexpr int64_t kGreatestExponent = 1023;

  struct Segment {
    double begin, inverse, width;  // of a part: width, and its inverse
    int64_t first, count;          // codes
  };
  Segment segments[kMostSegments];
  // By parts of a binade's codes: the segment of the first of them.
  uint8_t segment_of[kParts];
  double inverse;  // 1 / codes
  int64_t codes;   // of a binade
  int32_t bits;    // segments = 2^bits

  /// Exponents are not below that of the least subnormal float64.
  static constexpr int64_t kLeastExponent = -1074, kLeastNormal = -1022;

  struct Place {
    int64_t word;
    double value;
  };
  /// The word of a finite float64 other than 0, and the value() of that word. kSubnormal: the number
  /// may be subnormal, its exponent may be below `origin` (then the word is 0), and the origin below
  /// the exponents of normal numbers.
  template <bool kSubnormal = true>
  CGX_HD Place place(double x, int64_t origin) const;
  template <bool kSubnormal = true>
  CGX_HD double value(int64_t word, int64_t origin) const;
  /// The greatest word, by its magnitude, that stands for a number. Below 2^11 2^40.
  CGX_HD int64_t most(int64_t origin) const { return (kGreatestExponent - origin + 1) * codes; }

 private:
  // The product is exact where the exponent is one of a normal number: the mantissa is below 2.
  template <bool kSubnormal>
  CGX_HD static double magnitude_of(const Segment& segment, int64_t part, int64_t exponent) {
    uint64_t scale = static_cast<uint64_t>(exponent + 1023) << 52;
    if (kSubnormal && exponent < kLeastNormal) scale = uint64_t{1} << (exponent - kLeastExponent);
    return (segment.begin + (static_cast<double>(part) + 0.5) * segment.width) * bits_double(scale);
  }
};

/// The exponent of a normal float64; -1023: of 0 and subnormal numbers.
CGX_HD int exponent_field(double x) {
  return static_cast<int>((double_bits(x) >> 52) & 0x7ff) - 1023;
}
/// The exponent of a finite float64 other than 0.
CGX_HD int exponent_of(double x) {
  const int field = exponent_field(x);
  return field == -1023 ? exponent_field(x * 0x1p54) - 54 : field;
}

/// |x - y| <= bound |x|, where products of tiny numbers are not rounded to subnormal ones.
CGX_HD bool is_within(double x, double y, double bound) {
  const double magnitude = x < 0 ? -x : x, off = x < y ? y - x : x - y;
  const double scale = magnitude < 0x1p-900 ? 0x1p100 : 1;
  return off * scale <= bound * (magnitude * scale);
}

template <bool kSubnormal>
CGX_HD LogTable::Place LogTable::place(double x, int64_t origin) const {
  constexpr uint64_t kOne = 0x3ff0000000000000, kMantissa = 0x000fffffffffffff;
  const int64_t exponent = kSubnormal ? exponent_of(x) : exponent_field(x);
  if (kSubnormal && exponent < origin) return {0, 0};
  const double normal = kSubnormal && exponent < kLeastNormal ? x * 0x1p54 : x;
  const double mantissa = bits_double((double_bits(normal) & kMantissa) | kOne);
  const Segment& segment = segments[static_cast<int>((mantissa - 1) * (1 << bits))];
  auto part = static_cast<int64_t>((mantissa - segment.begin) * segment.inverse);
  if (part >= segment.count) part = segment.count - 1;
  const int64_t word = (exponent - origin) * codes + segment.first + part + 1;
  const double magnitude = magnitude_of<kSubnormal>(segment, part, exponent);
  return x < 0 ? Place{-word, -magnitude} : Place{word, magnitude};
}

template <bool kSubnormal>
CGX_HD double LogTable::value(int64_t word, int64_t origin) const {
  const int64_t code = (word < 0 ? -word : word) - 1;
  if (code < 0) return 0;
  // A division of whole numbers would be most of the time; the quotient is off by one at most.
  auto binade = static_cast<int64_t>(static_cast<double>(code) * inverse);
  binade -= binade * codes > code ? 1 : 0;
  binade += (binade + 1) * codes <= code ? 1 : 0;
  const int64_t within = code - binade * codes;
  int s = segment_of[static_cast<int>(static_cast<double>(within) * inverse * kParts)];
  while (s + 1 < (1 << bits) && segments[s + 1].first <= within) ++s;
  const double magnitude =
      magnitude_of<kSubnormal>(segments[s], within - segments[s].first, binade + origin);
  return word < 0 ? -magnitude : magnitude;
}

}  // namespace cgx::bounded
