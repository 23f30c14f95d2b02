// The loops of the error-bounded compressor, compiled once per SIMD level, with equal results on
// each. They work on slices that fit the first-level cache, so a block's values are read once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "codec/bounded/kinds.h"
#include "codec/bounded/maps/grid.h"

namespace cgx::bounded {

/// Values of a slice; a multiple of 64. The last slice of a block may have fewer.
inline constexpr size_t kSlice = 1024;

/// Asks for the values a slice after these: the processor's own prefetching ends with a page.
inline __attribute__((always_inline)) void prefetch(const float* x) {
  // Not by the pointer: these values need not exist.
  __builtin_prefetch(
      reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(x) + kSlice * sizeof *x));
}

/// Facts about n >= 1 values, from one pass over their bits.
struct Seen {
  uint64_t greatest;  // bits of the greatest finite magnitude, of floating-point values
  uint64_t differ;    // 0: all values have the same bits
  uint64_t any;       // all bits that are set in a value
};

/// Low bits of a slice of a block: whole bytes first, each in a plane of its own, then planes of
/// bits. `bytes` and `bits` point to the slice's place in the block's first plane of each kind; to
/// nowhere, if there is none.
template <typename Byte>
struct Low {
  int width;  // bits that a residual leaves here: 8 * whole + the rest
  Byte* bytes;
  size_t byte_stride;  // from a plane to the next
  Byte* bits;
  size_t bit_stride;

  /// Of the slice that begins `values` later.
  Low after(size_t values) const {
    return {width, width >= 8 ? bytes + values : nullptr, byte_stride,
            width % 8 != 0 ? bits + values / 8 : nullptr, bit_stride};
  }
};

template <typename Word>
struct Extremes {
  Word least, greatest;
};

/// n is at most kSlice, except in lengths() and extremes(). `Word` is int32_t (of float) or int64_t (of
/// double); all of its arithmetic wraps.
template <typename Word, typename Value>
struct WordLoops {
  void (*look)(const Value* x, size_t n, Seen* seen);
  /// Places on the grid. True: at least one of them does not give its value back as promised, or is not
  /// written (is_written()).
  /// `fit` (or null): what is taken off a value first, in steps.
  bool (*to_grid)(const Value* x, size_t n, const Grid& grid, const double* fit, Word* words);
  /// True: the magnitude of at least one word is above `most`. With `fit` they are not looked at.
  bool (*from_grid)(const Word* words, size_t n, double step, const double* fit, Word most,
                    Value* x);
  /// out[i] = words[i] - words[i - 1]; `before` precedes the first. out is not words.
  void (*difference)(const Word* words, size_t n, Word before, Word* out);
  /// The inverse, in place. Returns the last word.
  Word (*sum)(Word* words, size_t n, Word before);
  /// u = residual - base; symbol = u >> low.width, the rest to `low`. True: at least one is kOutlier.
  bool (*split)(const Word* residuals, size_t n, Word base, const Low<uint8_t>& low,
                uint8_t* symbols);
  /// Does to_grid() without a curve and split() of its words in one pass. True: the output is not
  /// valid, and the caller runs the two, since one of them may return true, or since this level has
  /// no such pass.
  bool (*to_symbols)(const Value* x, size_t n, const Grid& grid, Word base, const Low<uint8_t>& low,
                     uint8_t* symbols);
  /// True: at least one symbol is kOutlier.
  bool (*join)(const uint8_t* symbols, size_t n, Word base, const Low<const uint8_t>& low,
               Word* residuals);
  /// Bits of each residual's distance from the center, without the sign.
  void (*lengths)(const Word* residuals, size_t n, Word center, Word* lengths);
  /// The least and the greatest of the residuals whose length is at most `longest`. At least one is.
  Extremes<Word> (*extremes)(const Word* residuals, const Word* lengths, size_t n, Word longest);
};

/// The order of floating-point values (maps/order.h). Bits: the signed integers as wide as their type. shift, origin: as
/// of an Order. Any n.
template <typename Word, typename Bits>
struct OrderLoops {
  /// Words of n values.
  void (*to)(const Bits* x, size_t n, int shift, int64_t origin, Word* words);
  /// The inverse. False: no value has one of the words.
  bool (*from)(const Word* words, size_t n, int shift, int64_t origin, Bits* x);
};

struct Loops {
  WordLoops<int32_t, float> narrow;
  WordLoops<int64_t, double> wide;
  OrderLoops<int32_t, int16_t> half_order;
  OrderLoops<int32_t, int32_t> narrow_order;
  OrderLoops<int64_t, int64_t> wide_order;
};

/// The loops of the level in force.
const Loops& loops();

/// Values of float32 and float64 by their words.
template <typename Word>
using ValueOf = std::conditional_t<sizeof(Word) == 4, float, double>;

template <typename Word>
constexpr int kWordBits = 8 * static_cast<int>(sizeof(Word));

template <typename Word>
const WordLoops<Word, ValueOf<Word>>& word_loops() {
  if constexpr (sizeof(Word) == 4) {
    return loops().narrow;
  } else {
    return loops().wide;
  }
}

}  // namespace cgx::bounded
