#include "codec/bounded/maps/log_grid.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace cgx::bounded {
namespace {

constexpr int64_t kMostCodes = int64_t{1} << 40;
constexpr int64_t kGreatestExponent = 1023;
constexpr uint64_t kOne = 0x3ff0000000000000;
constexpr uint64_t kMantissa = 0x000fffffffffffff;

}  // namespace

LogGrid::LogGrid(double pointwise) {
  for (int bits = 0; (1 << bits) <= kMostSegments; ++bits) {
    const double width = 1.0 / (1 << bits);
    std::array<Segment, kMostSegments> segments{};
    double codes = 0;
    for (int s = 0; s < (1 << bits); ++s) {
      const double begin = 1 + s * width;
      const double count = std::ceil(width / (2 * pointwise * begin));
      if (!(codes + count < static_cast<double>(kMostCodes))) return;
      segments[static_cast<size_t>(s)] = {begin, count / width, width / count,
                                          static_cast<int64_t>(codes), static_cast<int64_t>(count)};
      codes += count;
    }
    if (codes_ == 0 || static_cast<int64_t>(codes) < codes_) {
      codes_ = static_cast<int64_t>(codes);
      bits_ = bits;
      segments_ = segments;
      inverse_ = 1 / codes;
    }
  }
  for (int part = 0; part < kParts; ++part) {
    // One part earlier: what rounding may move is found by going on from there.
    const double first = static_cast<double>(codes_) * std::max(part - 1, 0) / kParts;
    uint8_t s = 0;
    while (s + 1 < (1 << bits_) && static_cast<double>(segments_[s + 1u].first) <= first) ++s;
    segment_of_[static_cast<size_t>(part)] = s;
  }
}

LogGrid::Place LogGrid::place(double x, int64_t origin) const {
  const double mantissa = bits_double((double_bits(x) & kMantissa) | kOne);
  const auto s = static_cast<size_t>((mantissa - 1) * (1 << bits_));
  const Segment& segment = segments_[s];
  auto part = static_cast<int64_t>((mantissa - segment.begin) * segment.inverse);
  if (part >= segment.count) part = segment.count - 1;
  const int64_t exponent = exponent_of(x);
  const int64_t word = (exponent - origin) * codes_ + segment.first + part + 1;
  const double magnitude = magnitude_of(segment, part, exponent);
  return x < 0 ? Place{-word, -magnitude} : Place{word, magnitude};
}

// The product is exact: the mantissa is below 2, and the exponent is one of a normal number.
double LogGrid::magnitude_of(const Segment& segment, int64_t part, int64_t exponent) {
  return (segment.begin + (static_cast<double>(part) + 0.5) * segment.width) *
         bits_double(static_cast<uint64_t>(exponent + 1023) << 52);
}

double LogGrid::value(int64_t word, int64_t origin) const {
  const int64_t code = (word < 0 ? -word : word) - 1;
  if (code < 0) return 0;
  // A division of whole numbers would be most of the time; the quotient is off by one at most.
  auto binade = static_cast<int64_t>(static_cast<double>(code) * inverse_);
  binade -= binade * codes_ > code ? 1 : 0;
  binade += (binade + 1) * codes_ <= code ? 1 : 0;
  const int64_t within = code - binade * codes_;
  size_t s = segment_of_[static_cast<size_t>(static_cast<double>(within) * inverse_ * kParts)];
  while (s + 1 < (size_t{1} << bits_) && segments_[s + 1].first <= within) ++s;
  const double magnitude = magnitude_of(segments_[s], within - segments_[s].first, binade + origin);
  return word < 0 ? -magnitude : magnitude;
}

int64_t LogGrid::most(int64_t origin) const {
  return (kGreatestExponent - origin + 1) * codes_;  // below 2^11 2^40
}

}  // namespace cgx::bounded
