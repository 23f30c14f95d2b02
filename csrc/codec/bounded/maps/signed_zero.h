// Words of blocks with many -0: pruned weights, outputs of ReLU and the like. As special values these
// would take 6 bytes each. So -0 becomes the word -1, and words that were negative become one less.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace cgx::bounded {

/// `bits` of n values to `plain`, -0 as 0.
template <typename Bits>
void without_signed_zeros(const Bits* bits, size_t n, Bits* plain) {
  constexpr Bits kMinusZero = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  for (size_t i = 0; i < n; ++i) plain[i] = bits[i] == kMinusZero ? Bits{0} : bits[i];
}

/// Words of values that were taken without signed zeros. None of them is the least of its type.
template <typename Word, typename Bits>
void add_signed_zeros(const Bits* bits, size_t n, Word* words) {
  using U = std::make_unsigned_t<Word>;
  constexpr Bits kMinusZero = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  for (size_t i = 0; i < n; ++i) {
    const bool less = words[i] < 0 || bits[i] == kMinusZero;
    words[i] = static_cast<Word>(static_cast<U>(words[i]) - (less ? U{1} : U{0}));
  }
}

/// The inverse: words without signed zeros. `negative` gets the sign bits for put_signs().
template <typename Word, typename Bits>
void take_signed_zeros(Word* words, size_t n, Bits* negative) {
  using U = std::make_unsigned_t<Word>;
  constexpr Bits kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  for (size_t i = 0; i < n; ++i) {
    const bool less = words[i] < 0;
    words[i] = static_cast<Word>(static_cast<U>(words[i]) + (less ? U{1} : U{0}));
    negative[i] = less ? kSign : Bits{0};
  }
}

template <typename Bits>
void put_signs(const Bits* negative, size_t n, Bits* bits) {
  for (size_t i = 0; i < n; ++i) bits[i] = static_cast<Bits>(bits[i] | negative[i]);
}

}  // namespace cgx::bounded
