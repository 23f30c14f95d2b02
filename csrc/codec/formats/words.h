// A real number as a word of its bits; for the host and for kernels.
#pragma once

#include "base/host_device.h"
#include "base/nan.h"

namespace cgx::formats {

template <typename Real>
struct WordOf;
template <>
struct WordOf<float> {
  using Word = uint32_t;
  using Signed = int32_t;
  static constexpr Word kSign = 0x80000000u, kInfinity = 0x7f800000u, kNanWord = kNan;
  static constexpr int kMantissa = 23, kBias = 127;
};
template <>
struct WordOf<double> {
  using Word = uint64_t;
  using Signed = int64_t;
  static constexpr Word kSign = 0x8000000000000000u, kInfinity = 0x7ff0000000000000u,
                        kNanWord = kWideNan;
  static constexpr int kMantissa = 52, kBias = 1023;
};

template <typename Word>
struct SignedOf {
  using Type = int32_t;
};
template <>
struct SignedOf<uint64_t> {
  using Type = int64_t;
};

CGX_HD_LOOP float real_of_word(uint32_t word) { return from_bits(word); }
CGX_HD_LOOP double real_of_word(uint64_t word) { return wide_from_bits(word); }

/// 2^e, exactly: of float from 2^-149 on, of double from 2^-1074 on; beyond the largest number an infinity.
template <typename Real>
CGX_HD Real power_of(int32_t e) {
  using Type = WordOf<Real>;
  using Word = typename Type::Word;
  constexpr int32_t kLeast = 1 - Type::kBias;  // of normal numbers
  if (e < kLeast) return real_of_word(Word{1} << (e - kLeast + Type::kMantissa));
  const int32_t field = e > Type::kBias ? 2 * Type::kBias + 1 : e + Type::kBias;
  return real_of_word(static_cast<Word>(field) << Type::kMantissa);
}

}  // namespace cgx::formats
