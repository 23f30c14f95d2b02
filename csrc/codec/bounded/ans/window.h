// Contexts of symbols that stand in a row: how large those before are, by a mean that forgets.
//
// The size of a symbol is its distance from the block's center. The context is the logarithm to base 2
// of the mean in 1/256, in halves.
#pragma once

#include <bit>
#include <cstdint>

namespace cgx::bounded::ans {

/// Contexts that a mean may give: it is below 2^16 - 2.
inline constexpr size_t kWindowContexts = 30;

inline uint32_t size_of_symbol(uint8_t symbol, uint8_t center) {
  return symbol > center ? uint32_t{symbol} - center : uint32_t{center} - symbol;
}

/// The mean after one more symbol of that size. shift: the last 2^shift symbols count most, 1 to 6.
inline uint32_t after(uint32_t mean, uint32_t size, int shift) {
  return mean - (mean >> shift) + (size << (8 - shift));
}

inline uint32_t context_of(uint32_t mean) {
  const uint32_t two = mean + 2;
  const int highest = 31 - std::countl_zero(two);
  return static_cast<uint32_t>(2 * highest) - 2 + ((two >> (highest - 1)) & 1);
}

}  // namespace cgx::bounded::ans
