// The map of a pointwise bound, |x - y| <= p |x|: codes that grow with the logarithm of |x|, without a
// logarithm, so that every machine gets the same ones.
//
// A binade [2^e, 2^(e+1)) is cut into `segments` of equal width. Segment s begins at 2^e a with
// a = 1 + s / segments and holds `count` codes at equal distances, each in the middle of its part: a
// part is at most 2 p a wide, so half of it is at most p |x|. 2 to 16 segments come close to the
// logarithm: their codes are a few percent more.
#pragma once

#include <array>
#include <cstdint>

#include "codec/bounded/maps/grid.h"

namespace cgx::bounded {

class LogGrid {
 public:
  static constexpr int kMostSegments = 16;

  LogGrid() = default;
  /// The fewest codes a binade among all numbers of segments. 0 < p < 1.
  explicit LogGrid(double pointwise);

  /// Codes of a binade; 0: too many for a word.
  int64_t codes() const { return codes_; }

  /// The word of a normal float64, 1 and more, negative for negative values; and what value() makes
  /// of it. Exponents are not below `origin`.
  struct Place {
    int64_t word;
    double value;
  };
  Place place(double x, int64_t origin) const;
  double value(int64_t word, int64_t origin) const;

  /// The greatest word, by its magnitude, that stands for a number.
  int64_t most(int64_t origin) const;

 private:
  struct Segment {
    double begin, inverse, width;  // of a part: width, and its inverse
    int64_t first, count;          // codes
  };
  static double magnitude_of(const Segment& segment, int64_t part, int64_t exponent);

  int bits_ = 0;  // segments = 2^bits
  int64_t codes_ = 0;
  double inverse_ = 0;  // 1 / codes_
  std::array<Segment, kMostSegments> segments_{};
  // By parts of a binade's codes: the segment of the first of them.
  static constexpr int kParts = 256;
  std::array<uint8_t, kParts> segment_of_{};
};

/// The exponent of a normal float64.
inline int exponent_of(double x) { return static_cast<int>((double_bits(x) >> 52) & 0x7ff) - 1023; }

}  // namespace cgx::bounded
