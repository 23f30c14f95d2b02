// The map of a pointwise bound, |x - y| <= p |x|: codes that grow with the logarithm of |x|, without a
// logarithm, so that every machine gets the same ones.
//
// A binade [2^e, 2^(e+1)) is cut into `segments` of equal width. Segment s begins at 2^e a with
// a = 1 + s / segments and holds `count` codes at equal distances, each in the middle of its part: a
// part is at most 2 p a wide, so half of it is at most p |x|. 2 to 16 segments come close to the
// logarithm: their codes are a few percent more.
#pragma once

#include <cstdint>

#include "codec/bounded/maps/log_table.h"

namespace cgx::bounded {

class LogGrid {
 public:
  LogGrid() = default;
  /// The fewest codes a binade among all numbers of segments. 0 < p < 1.
  explicit LogGrid(double pointwise);

  /// Codes of a binade; 0: too many for a word.
  int64_t codes() const { return table_.codes; }

  /// The word of a finite float64 other than 0: 1 and more, negative for negative values; and the
  /// value() of that word. kSubnormal: as LogTable has it.
  using Place = LogTable::Place;
  template <bool kSubnormal = true>
  Place place(double x, int64_t origin) const {
    return table_.place<kSubnormal>(x, origin);
  }
  template <bool kSubnormal = true>
  double value(int64_t word, int64_t origin) const {
    return table_.value<kSubnormal>(word, origin);
  }

  /// The greatest word, by its magnitude, that stands for a number.
  int64_t most(int64_t origin) const { return table_.most(origin); }

  const LogTable& table() const { return table_; }

 private:
  LogTable table_{};
};

}  // namespace cgx::bounded
