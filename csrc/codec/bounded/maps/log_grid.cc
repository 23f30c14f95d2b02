#include "codec/bounded/maps/log_grid.h"

#include <algorithm>
#include <cmath>

namespace cgx::bounded {
namespace {

constexpr int64_t kMostCodes = int64_t{1} << 40;

}  // namespace

LogGrid::LogGrid(double pointwise) {
  for (int bits = 0; (1 << bits) <= LogTable::kMostSegments; ++bits) {
    const double width = 1.0 / (1 << bits);
    LogTable made{};
    double codes = 0;
    for (int s = 0; s < (1 << bits); ++s) {
      const double begin = 1 + s * width;
      const double count = std::ceil(width / (2 * pointwise * begin));
      if (!(codes + count < static_cast<double>(kMostCodes))) return;
      made.segments[s] = {begin, count / width, width / count, static_cast<int64_t>(codes),
                          static_cast<int64_t>(count)};
      codes += count;
    }
    if (table_.codes != 0 && static_cast<int64_t>(codes) >= table_.codes) continue;
    made.codes = static_cast<int64_t>(codes);
    made.bits = bits;
    made.inverse = 1 / codes;
    table_ = made;
  }
  for (int part = 0; part < LogTable::kParts; ++part) {
    // One part earlier: what rounding may move is found by going on from there.
    const double first = static_cast<double>(codes()) * std::max(part - 1, 0) / LogTable::kParts;
    uint8_t s = 0;
    while (s + 1 < (1 << table_.bits) && static_cast<double>(table_.segments[s + 1].first) <= first)
      ++s;
    table_.segment_of[part] = s;
  }
}

}  // namespace cgx::bounded
