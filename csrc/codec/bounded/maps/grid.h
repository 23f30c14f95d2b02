// The grid of an absolute bound: value = step * q, with q a whole number.
//
// A decoded value is rounded to the tensor's own type, so a step of twice the bound is too wide where
// neighbours in that type are not much closer than the bound. All values of one binade are multiples
// of its unit in the last place u; a decoded value is one, too. So their difference is a multiple of
// u, at most m u with m = floor(bound / u) is allowed, and step <= (2 m + 1) u gives at most m u. The
// step of a block is the least of these over the binades from its greatest value down, and 2 bound.
#pragma once

#include "base/host_device.h"

namespace cgx::bounded {

struct Grid {
  double step = 0;
  double inverse = 0;  // 1 / step
  double bound = 0;    // |value - decoded value| in float64
};

/// Adding it to a number below 2^51 leaves the number, rounded to the nearest whole one (ties to
/// even), in the low bits.
inline constexpr double kRounder = 0x1.8p52;
inline constexpr uint64_t kRounderBits = 0x4338000000000000;

#if defined(__CUDA_ARCH__)
CGX_HD uint64_t double_bits(double x) { return static_cast<uint64_t>(__double_as_longlong(x)); }
CGX_HD double bits_double(uint64_t bits) {
  return __longlong_as_double(static_cast<long long>(bits));
}
#else
CGX_HD uint64_t double_bits(double x) { return __builtin_bit_cast(uint64_t, x); }
CGX_HD double bits_double(uint64_t bits) { return __builtin_bit_cast(double, bits); }
#endif

/// The greatest magnitude of a word. Words of 64 bits are numbers that a sum with kRounder holds.
/// (Version 1 has words beyond, of numbers that such a sum holds by chance: number_of() of them.)
template <typename Word>
inline constexpr Word kMostWord =
    sizeof(Word) == 4 ? static_cast<Word>(0x7fffffff) : static_cast<Word>(int64_t{1} << 51);

/// A word in the low bits of a sum with kRounder, and the whole number that it stands for. The word of
/// a number that is out of range gives another number, which is what the check of the bound sees.
template <typename Word>
CGX_HD Word word_of(double rounded) {
  if constexpr (sizeof(Word) == 4) {
    return static_cast<int32_t>(static_cast<uint32_t>(double_bits(rounded)));
  } else {
    return static_cast<int64_t>(double_bits(rounded) - kRounderBits);
  }
}
template <typename Word>
CGX_HD double number_of(Word word) {
  if constexpr (sizeof(Word) == 4) {
    return static_cast<double>(word);
  } else {
    return bits_double(static_cast<uint64_t>(word) + kRounderBits) - kRounder;
  }
}

/// Whether encoders write the word. One less than the least word of 32 bits is none (signed_zero.h).
template <typename Word>
CGX_HD bool is_written(Word word) {
  if constexpr (sizeof(Word) == 4) {
    return word >= -kMostWord<Word>;
  } else {
    return (static_cast<uint64_t>(word) + static_cast<uint64_t>(kMostWord<Word>)) >> 52 == 0;
  }
}

#if !defined(CGX_DEVICE_COMPILER)
/// The step for values of which the greatest has the unit in the last place `unit` (0: all values are
/// 0). `bound` is greater than 0.
Grid make_grid(double bound, double unit);

/// The greatest word whose value in the word's type is finite: at most kMostWord.
template <typename Word>
Word most_word(double step);

/// The unit in the last place of a float32, or of a float64, by the bits of its magnitude.
double unit_of_float(uint32_t magnitude);
double unit_of_double(uint64_t magnitude);
#endif

}  // namespace cgx::bounded
