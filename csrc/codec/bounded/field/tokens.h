// Residuals as tokens of a byte and a few further bits.
//
// Small residuals have a token of their own: 0, -1, 1, -2 ... are 0, 1, 2, 3 ... A larger one has the
// token of its sign, the number of its bits and the highest of them; those below follow as they are.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <type_traits>

namespace cgx::bounded::field {

/// The token of a value that is stored with its own bits.
inline constexpr uint8_t kEscape = 255;

/// Residual: int32_t or int64_t.
template <typename Residual>
struct Tokens {
  using U = std::make_unsigned_t<Residual>;
  // Magnitudes below 2^kSmall have tokens of their own; larger ones keep kKept bits below the highest.
  // So all but one have a token below kEscape.
  static constexpr int kSmall = sizeof(Residual) == 4 ? 4 : 3;
  static constexpr int kKept = sizeof(Residual) == 4 ? 2 : 1;
  static constexpr uint32_t kFirstLong = 2u * (1u << kSmall) - 1;
  /// No residual has the tokens from here to kEscape.
  static constexpr uint32_t kEnd = kFirstLong + 2u * ((8 * sizeof(Residual) - 1 - kSmall) << kKept);
  /// The one residual that has no token.
  static constexpr U kTooLong = U{1} << (8 * sizeof(Residual) - 1);

  struct Token {
    uint8_t token;
    uint8_t count;  // of the bits that follow
    uint64_t bits;
  };

  static Token of(Residual residual) {
    const bool negative = residual < 0;
    const U magnitude = negative ? U{0} - static_cast<U>(residual) : static_cast<U>(residual);
    if (magnitude >> kSmall == 0) {
      const U folded = 2 * magnitude - (negative ? 1 : 0);
      return {static_cast<uint8_t>(folded), 0, 0};
    }
    if (magnitude >= kTooLong) return {kEscape, 0, 0};
    const int highest = static_cast<int>(std::bit_width(magnitude)) - 1;
    const int rest = highest - kKept;
    const uint32_t kept = static_cast<uint32_t>(magnitude >> rest) & ((1u << kKept) - 1);
    const uint32_t place = (static_cast<uint32_t>(highest - kSmall) << kKept) | kept;
    return {static_cast<uint8_t>(kFirstLong + 2 * place + (negative ? 1 : 0)),
            static_cast<uint8_t>(rest), static_cast<uint64_t>(magnitude & ((U{1} << rest) - 1))};
  }

  /// Bits that follow a token; of kEscape none.
  static int count_of(uint8_t token) {
    if (token < kFirstLong || token == kEscape) return 0;
    return static_cast<int>(((token - kFirstLong) >> 1) >> kKept) + kSmall - kKept;
  }

  /// What each token stands for, without the bits that follow it.
  struct Known {
    int8_t count;
    int8_t sign;  // 1 or -1
    Residual least;
  };
  static std::array<Known, 256> make_known() {
    std::array<Known, 256> made{};
    for (uint32_t token = 0; token < kEnd; ++token) {
      const auto byte = static_cast<uint8_t>(token);
      const Residual least = residual_of(byte, 0);
      made[byte] = {static_cast<int8_t>(count_of(byte)), static_cast<int8_t>(least < 0 ? -1 : 1),
                    least};
    }
    return made;
  }
  static const std::array<Known, 256>& known() {
    static const std::array<Known, 256> made = make_known();
    return made;
  }

  /// token: not kEscape.
  static Residual residual_of(uint8_t token, uint64_t bits) {
    if (token < kFirstLong) {
      const auto half = static_cast<Residual>((token + 1) / 2);
      return (token & 1) != 0 ? -half : half;
    }
    const uint32_t place = (token - kFirstLong) >> 1;
    const int rest = static_cast<int>(place >> kKept) + kSmall - kKept;
    const U high = (U{1} << kKept) | (place & ((1u << kKept) - 1));
    const U magnitude = (high << rest) | static_cast<U>(bits);
    return static_cast<Residual>(((token - kFirstLong) & 1) != 0 ? U{0} - magnitude : magnitude);
  }
};

}  // namespace cgx::bounded::field
