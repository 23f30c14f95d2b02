// Finds out whether a block's values are few, or multiples of a unit.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "codec/bounded/field/geometry.h"
#include "codec/bounded/maps/own.h"

namespace cgx::bounded {

/// Runs of values: look(x, n).
using Look = std::function<void(const std::byte*, size_t)>;

/// What a sample suggests. Which of them holds for a block, its values must show.
struct Suggested {
  bool palette = false;
  std::optional<Multiples> multiples;  // of one unit
  bool rows = false;                   // each row may have a unit of its own
  bool mostly = false;                 // nearly all are the same,
  uint64_t most = 0;                   // namely this one, by its bits
  bool again = false;  // values of a floating-point type, or bits in them, are there again
  bool any() const { return palette || multiples || rows || mostly || again; }
};

/// each_run: calls its argument for each run of the sample. lossless: there is no bound, so that also
/// few repetitions say more than what blocks take otherwise.
Suggested suggested_by(DType element, bool lossless,
                       const std::function<void(const Look&)>& each_run);

/// A palette, with a table of its values.
class PaletteIndex {
 public:
  /// Of n values. False: they are more than Palette::kMost.
  bool make(DType element, const std::byte* x, size_t n);
  const Palette& palette() const { return palette_; }
  /// The number of the value with these bits; -1: it is not there.
  int32_t number_of(uint64_t bits) const;

 private:
  static constexpr int kSlotBits = 14;  // four times as many slots as values
  static size_t first_slot(uint64_t bits) {
    return static_cast<size_t>((bits * 0x9e3779b97f4a7c15) >> (64 - kSlotBits));
  }
  std::vector<uint64_t> bits_;    // by slot
  std::vector<int32_t> numbers_;  // by slot; -1: free
  Palette palette_;
};

/// A unit for each row of n values; none: some row has none.
std::optional<Multiples> row_multiples(DType element, const std::byte* x, size_t n,
                                       const field::Geometry& geometry);

}  // namespace cgx::bounded
