#include "codec/bounded/log_grid.h"

#include <bit>
#include <cmath>

namespace cgx::bounded {
namespace {

constexpr int64_t kMostCodes = int64_t{1} << 40;
constexpr int64_t kLeastExponent = -1022, kGreatestExponent = 1023;
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
}

int64_t LogGrid::word(double x, int64_t origin) const {
  const double mantissa = bits_double((double_bits(x) & kMantissa) | kOne);
  const auto s = static_cast<size_t>((mantissa - 1) * (1 << bits_));
  const Segment& segment = segments_[s];
  int64_t part = static_cast<int64_t>((mantissa - segment.begin) * segment.inverse);
  if (part >= segment.count) part = segment.count - 1;
  const int64_t word = (exponent_of(x) - origin) * codes_ + segment.first + part + 1;
  return x < 0 ? -word : word;
}

double LogGrid::value(int64_t word, int64_t origin) const {
  const int64_t code = (word < 0 ? -word : word) - 1;
  if (code < 0) return 0;
  // A division of whole numbers would be most of the time; the quotient is off by one at most.
  auto binade = static_cast<int64_t>(static_cast<double>(code) * inverse_);
  binade -= binade * codes_ > code ? 1 : 0;
  binade += (binade + 1) * codes_ <= code ? 1 : 0;
  const int64_t within = code - binade * codes_;
  size_t s = 0;
  while (s + 1 < (size_t{1} << bits_) && segments_[s + 1].first <= within) ++s;
  const Segment& segment = segments_[s];
  const double mantissa =
      segment.begin + (static_cast<double>(within - segment.first) + 0.5) * segment.width;
  // Mantissas are below 2 and exponents those of normal numbers: the product is exact.
  const double magnitude =
      mantissa * bits_double(static_cast<uint64_t>(binade + origin + 1023) << 52);
  return word < 0 ? -magnitude : magnitude;
}

bool LogGrid::holds(int64_t word, int64_t origin) const {
  if (word == 0) return true;
  if (word == INT64_MIN) return false;
  const int64_t binade = ((word < 0 ? -word : word) - 1) / codes_;
  return origin >= kLeastExponent && origin <= kGreatestExponent &&
         binade <= kGreatestExponent - origin;
}

}  // namespace cgx::bounded
