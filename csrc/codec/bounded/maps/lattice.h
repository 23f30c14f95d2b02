// The map of float16 and bfloat16 with a bound: numbers of groups of neighbouring values.
//
// These types have so few values that groups can be made for all of them: from 0 upwards, a group
// takes as many neighbours as one of them can stand for within the bound. So a code never leads
// between two values of the type, and where neighbours are farther apart than the bound every value
// has a code of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codec/bounded/element.h"

namespace cgx::bounded {

class Lattice {
 public:
  Lattice() = default;
  /// absolute: |x - y| <= bound; else |x - y| <= bound |x|, both in float64. bound >= 0. subnormal:
  /// these numbers are in groups, too; version 1 of the format leaves them out.
  Lattice(DType element, double bound, bool absolute, bool subnormal);

  /// Words of n values' bits; kNone: values that are in no group. True: there is at least one.
  bool to_words(const uint16_t* bits, size_t n, int32_t* words) const;
  static constexpr int16_t kNone = INT16_MIN;

  /// The bits of the values that stand for the words' groups. -most() <= words <= most().
  void from_words(const int32_t* words, size_t n, uint16_t* bits) const;
  int32_t most() const { return static_cast<int32_t>(values_.size() / 2); }

  std::span<const int16_t> table_of_words() const { return words_; }  // by bits
  std::span<const uint16_t> table_of_values() const {
    return values_;
  }  // by group, from -most() on

 private:
  std::vector<int16_t> words_;
  std::vector<uint16_t> values_;
};

/// The value of a float16's or bfloat16's bits.
double half_value(DType element, uint16_t bits);

}  // namespace cgx::bounded
