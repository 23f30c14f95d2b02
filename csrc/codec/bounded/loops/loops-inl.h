// The loops of one SIMD level. A file of ops/foreach_level-inl.h. The compiler vectorises them; every
// operation is exact or rounded once, so vectors give the same bits.

namespace cgx::bounded {
namespace CGX_LEVEL {
namespace {

#if defined(CGX_ON_AVX2)
#include "codec/bounded/loops/vector_avx2-inl.h"
#elif defined(CGX_ON_AVX512)
#include "codec/bounded/loops/vector_avx512-inl.h"
#else
#include "codec/bounded/loops/vector-inl.h"
#endif
#if defined(CGX_ON_AVX2) || defined(CGX_ON_AVX512)
// This needs the header above.
#include "codec/bounded/loops/quick-inl.h"
#endif

template <typename Word>
struct Of;
template <>
struct Of<int32_t> {
  using Unsigned = uint32_t;
  static constexpr Unsigned kMagnitude = 0x7fffffff;
  static constexpr Unsigned kInfinity = 0x7f800000;
};
template <>
struct Of<int64_t> {
  using Unsigned = uint64_t;
  static constexpr Unsigned kMagnitude = 0x7fffffffffffffff;
  static constexpr Unsigned kInfinity = 0x7ff0000000000000;
};

template <>
struct Of<int16_t> {
  using Unsigned = uint16_t;
};

#include "codec/bounded/loops/order-inl.h"

// A word in the low bits of a sum with kRounder, and the whole number that it stands for. The word of
// a number that is out of range gives another number, which is what the check of the bound sees.
template <typename Word>
inline CGX_INLINE Word word_of(double rounded) {
  if constexpr (sizeof(Word) == 4) {
    return static_cast<int32_t>(static_cast<uint32_t>(__builtin_bit_cast(uint64_t, rounded)));
  } else {
    return static_cast<int64_t>(__builtin_bit_cast(uint64_t, rounded) - kRounderBits);
  }
}
template <typename Word>
inline CGX_INLINE double number_of(Word word) {
  if constexpr (sizeof(Word) == 4) {
    return static_cast<double>(word);
  } else {
    return __builtin_bit_cast(double, static_cast<uint64_t>(word) + kRounderBits) - kRounder;
  }
}

template <typename Word>
void look(const ValueOf<Word>* x, size_t n, Seen* seen) {
  using U = typename Of<Word>::Unsigned;
  const Word first = __builtin_bit_cast(Word, x[0]);
  Word greatest = 0;  // signed: compilers have a vector's maximum of these
  U differ = 0, any = 0;
  for (size_t i = 0; i < n; ++i) {
    const Word bits = __builtin_bit_cast(Word, x[i]);
    const Word magnitude = bits & static_cast<Word>(Of<Word>::kMagnitude);
    const Word finite = magnitude < static_cast<Word>(Of<Word>::kInfinity) ? magnitude : 0;
    greatest = finite > greatest ? finite : greatest;
    differ |= static_cast<U>(bits ^ first);
    any |= static_cast<U>(bits);
  }
  *seen = {static_cast<U>(greatest), differ, any};
}

template <typename Word, bool kFit>
bool place(const ValueOf<Word>* x, size_t n, Grid grid, const double* fit, Word* words) {
  using V = ValueOf<Word>;
  using U = typename Of<Word>::Unsigned;
  uint64_t wide = 0;
  [[maybe_unused]] Word least = 0;
  [[maybe_unused]] U places = 0;  // all bits of them, from -kMostWord on
  for (size_t i = 0; i < n; ++i) {
    const double value = static_cast<double>(x[i]);
    double position = value * grid.inverse;
    if constexpr (kFit) position -= fit[i];
    const Word word = word_of<Word>(position + kRounder);
    double number = number_of(word);
    if constexpr (kFit) number += fit[i];
    const double back = static_cast<double>(static_cast<V>(number * grid.step));
    wide |= __builtin_fabs(value - back) <= grid.bound ? 0 : 1;
    if constexpr (sizeof(Word) == 4) {
      least = word < least ? word : least;
    } else {
      places |= static_cast<U>(word) + static_cast<U>(kMostWord<Word>);
    }
    words[i] = word;
  }
  if constexpr (sizeof(Word) == 4) {
    wide |= least == INT32_MIN ? 1 : 0;
  } else {
    wide |= places >> 52;
  }
  // -0 comes back as it is.
  uint32_t special = 0;
  for (size_t i = 0; i < n; ++i) {
    special |= __builtin_bit_cast(U, x[i]) == Of<Word>::kMagnitude + 1 ? 1 : 0;
  }
  return (wide | special) != 0;
}

template <typename Word>
bool to_grid(const ValueOf<Word>* x, size_t n, const Grid& grid, const double* fit, Word* words) {
  if (fit != nullptr) return place<Word, true>(x, n, grid, fit, words);
  if constexpr (kQuick && sizeof(Word) == 4) {
    if (!quick_place(x, n, grid, words)) return false;
  }
  return place<Word, false>(x, n, grid, fit, words);
}

template <typename Word>
bool from_grid(const Word* words, size_t n, double step, const double* fit, Word most,
               ValueOf<Word>* x) {
  using V = ValueOf<Word>;
  using U = typename Of<Word>::Unsigned;
  if (fit != nullptr) {
    for (size_t i = 0; i < n; ++i) x[i] = static_cast<V>((number_of(words[i]) + fit[i]) * step);
    return false;
  }
  U farthest = 0;  // above -most
  for (size_t i = 0; i < n; ++i) {
    const U above = static_cast<U>(words[i]) + static_cast<U>(most);
    farthest = above > farthest ? above : farthest;
    x[i] = static_cast<V>(number_of(words[i]) * step);
  }
  return farthest > 2 * static_cast<U>(most);
}

template <typename Word>
void difference(const Word* words, size_t n, Word before, Word* __restrict out) {
  using U = typename Of<Word>::Unsigned;
  if (n == 0) return;
  out[0] = static_cast<Word>(static_cast<U>(words[0]) - static_cast<U>(before));
  for (size_t i = 1; i < n; ++i) {
    out[i] = static_cast<Word>(static_cast<U>(words[i]) - static_cast<U>(words[i - 1]));
  }
}

template <typename Word>
Word sum(Word* words, size_t n, Word before) {
  using U = typename Of<Word>::Unsigned;
  U total = static_cast<U>(before);
  for (size_t i = 0; i < n; ++i) {
    total += static_cast<U>(words[i]);
    words[i] = static_cast<Word>(total);
  }
  return static_cast<Word>(total);
}

template <typename Word>
bool split(const Word* residuals, size_t n, Word base, const Low<uint8_t>& low,
           uint8_t* __restrict symbols) {
  if constexpr (kQuick && sizeof(Word) == 4) {
    if (n % 64 == 0) return quick_split(residuals, n, base, low, symbols);
  }
  using U = typename Of<Word>::Unsigned;
  const int width = low.width;
  const U offset = static_cast<U>(base);
  uint8_t outlier = 0;
  for (size_t i = 0; i < n; ++i) {
    const U high = (static_cast<U>(residuals[i]) - offset) >> width;
    const uint8_t symbol = static_cast<uint8_t>(high < kOutlier ? high : kOutlier);
    symbols[i] = symbol;
    outlier |= symbol == kOutlier ? 1 : 0;
  }
  int at = 0;
  for (; at + 8 <= width; at += 8) {
    uint8_t* __restrict plane = low.bytes + static_cast<size_t>(at / 8) * low.byte_stride;
    for (size_t i = 0; i < n; ++i) {
      plane[i] = static_cast<uint8_t>((static_cast<U>(residuals[i]) - offset) >> at);
    }
  }
  if (at < width) {
    alignas(64) uint8_t codes[kSlice];
    for (size_t i = 0; i < n; ++i) {
      codes[i] = static_cast<uint8_t>((static_cast<U>(residuals[i]) - offset) >> at);
    }
    for (size_t i = n; i % 64 != 0; ++i) codes[i] = 0;
    bits_to_planes(codes, n, width - at, low.bits, low.bit_stride);
  }
  return outlier != 0;
}

template <typename Word>
bool to_symbols(const ValueOf<Word>* x, size_t n, const Grid& grid, Word base,
                const Low<uint8_t>& low, uint8_t* symbols) {
  if constexpr (kQuick && sizeof(Word) == 4) {
    return quick_symbols(x, n, grid, base, low, symbols);
  }
  return true;
}

// Symbols, kWhole planes of bytes and, with kRest, codes of the bits that are left, in one pass.
template <typename Word, int kWhole, bool kRest>
void join_all(const uint8_t* symbols, size_t n, Word base, const Low<const uint8_t>& low,
              const uint8_t* codes, Word* __restrict residuals) {
  using U = typename Of<Word>::Unsigned;
  const int width = low.width;
  const U offset = static_cast<U>(base);
  const uint8_t* const second = low.bytes + (kWhole > 1 ? low.byte_stride : 0);
  for (size_t i = 0; i < n; ++i) {
    U sum = (static_cast<U>(symbols[i]) << width) + offset;
    if constexpr (kWhole > 0) sum += static_cast<U>(low.bytes[i]);
    if constexpr (kWhole > 1) sum += static_cast<U>(second[i]) << 8;
    if constexpr (kRest) sum += static_cast<U>(codes[i]) << (8 * kWhole);
    residuals[i] = static_cast<Word>(sum);
  }
}

template <typename Word>
bool join(const uint8_t* symbols, size_t n, Word base, const Low<const uint8_t>& low,
          Word* __restrict residuals) {
  using U = typename Of<Word>::Unsigned;
  const int width = low.width, whole = width / 8;
  const bool rest = width % 8 != 0;
  alignas(64) uint8_t codes[kSlice];
  if (rest) planes_to_bits(low.bits, low.bit_stride, n, width % 8, codes);
  switch (2 * (whole < 2 ? whole : 2) + (rest && whole < 3 ? 1 : 0)) {
    case 0:
      join_all<Word, 0, false>(symbols, n, base, low, codes, residuals);
      break;
    case 1:
      join_all<Word, 0, true>(symbols, n, base, low, codes, residuals);
      break;
    case 2:
      join_all<Word, 1, false>(symbols, n, base, low, codes, residuals);
      break;
    case 3:
      join_all<Word, 1, true>(symbols, n, base, low, codes, residuals);
      break;
    case 4:
      join_all<Word, 2, false>(symbols, n, base, low, codes, residuals);
      break;
    default:
      join_all<Word, 2, true>(symbols, n, base, low, codes, residuals);
  }
  for (int k = 2; k < whole; ++k) {
    const uint8_t* plane = low.bytes + static_cast<size_t>(k) * low.byte_stride;
    for (size_t i = 0; i < n; ++i) {
      residuals[i] =
          static_cast<Word>(static_cast<U>(residuals[i]) + (static_cast<U>(plane[i]) << (8 * k)));
    }
  }
  if (rest && whole > 2) {
    for (size_t i = 0; i < n; ++i) {
      residuals[i] = static_cast<Word>(static_cast<U>(residuals[i]) +
                                       (static_cast<U>(codes[i]) << (8 * whole)));
    }
  }
  uint8_t greatest = 0;
  for (size_t i = 0; i < n; ++i) greatest = symbols[i] > greatest ? symbols[i] : greatest;
  return greatest == kOutlier;
}

template <typename Word>
void lengths(const Word* residuals, size_t n, Word center, Word* __restrict out) {
  using U = typename Of<Word>::Unsigned;
  constexpr int kBits = 8 * static_cast<int>(sizeof(Word));
  for (size_t i = 0; i < n; ++i) {
    const auto x = static_cast<Word>(static_cast<U>(residuals[i]) - static_cast<U>(center));
    const auto magnitude = static_cast<Word>(x ^ (x >> (kBits - 1)));
    if constexpr (kBits == 32) {
      // By the exponent of a float32, which compilers make vectors of. The bit below the highest is
      // cleared, so that no rounding reaches the next power of 2.
      const auto number = static_cast<float>(magnitude & ~(magnitude >> 1));
      const int32_t exponent = __builtin_bit_cast(int32_t, number) >> 23;
      out[i] = exponent > 126 ? exponent - 126 : 0;
    } else {
      out[i] = magnitude == 0 ? 0 : kBits - __builtin_clzll(static_cast<U>(magnitude));
    }
  }
}

template <typename Word>
Extremes<Word> extremes(const Word* residuals, const Word* lengths, size_t n, Word longest) {
  constexpr Word kGreatest = static_cast<Word>(Of<Word>::kMagnitude), kLeast = ~kGreatest;
  Word least = kGreatest, greatest = kLeast;
  for (size_t i = 0; i < n; ++i) {
    // By masks: compilers make branches of a choice here, which nobody can predict.
    const Word beyond = lengths[i] > longest ? -1 : 0;
    const Word low = (residuals[i] & ~beyond) | (kGreatest & beyond);
    const Word high = (residuals[i] & ~beyond) | (kLeast & beyond);
    least = low < least ? low : least;
    greatest = high > greatest ? high : greatest;
  }
  return {least, greatest};
}

template <typename Word>
constexpr WordLoops<Word, ValueOf<Word>> make_loops() {
  return {look<Word>,  to_grid<Word>,    from_grid<Word>, difference<Word>, sum<Word>,
          split<Word>, to_symbols<Word>, join<Word>,      lengths<Word>,    extremes<Word>};
}

template <typename Word, typename Bits>
constexpr OrderLoops<Word, Bits> make_order() {
  return {to_order<Word, Bits>, from_order<Word, Bits>};
}

constexpr Loops kLoops{make_loops<int32_t>(), make_loops<int64_t>(), make_order<int32_t, int16_t>(),
                       make_order<int32_t, int32_t>(), make_order<int64_t, int64_t>()};

}  // namespace
}  // namespace CGX_LEVEL
}  // namespace cgx::bounded
