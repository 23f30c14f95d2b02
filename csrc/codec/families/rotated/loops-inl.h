// The quantizer of `rotated` over the vector operations of one level.
// A file of ops/foreach_level-inl.h.

namespace cgx::rotated {
namespace CGX_LEVEL {
namespace {

using namespace cgx::cpu;

#include "codec/ops/simd-inl.h"
// These need the vector operations.
#include "codec/levels/search-inl.h"
#include "codec/rotation/blocks-inl.h"

/// The levels of magnitudes: from registers, or from memory where there are many.
template <int bits>
struct Magnitudes {
  static constexpr int kCount = 1 << (bits - 1);
  static constexpr bool kInRegisters = kCount < kSlowTable;
  alignas(64) float memory[kCount];
  Table<kInRegisters ? kCount : 1> table;

  explicit Magnitudes(float factor) : table(fill(memory, factor)) {}
  static const float* fill(float* levels, float factor) {
    for (int i = 0; i < kCount; ++i) {
      levels[i] = rotated::kLevels[rotated::first_level(bits) + i] * factor;
    }
    return levels;
  }
  F operator()(I index) const {
    if constexpr (kInRegisters) return table(index);
    return gather(memory, and_(index, set_int(kCount - 1)));
  }
};

/// The levels of codes, with their signs, times a factor. Two vectors of them are looked up as fast
/// as one of magnitudes; of more levels the sign is put on afterwards.
template <int bits, bool few = (1 << bits) <= 2 * static_cast<int>(kLanes)>
struct Levels {
  Magnitudes<bits> magnitudes;
  explicit Levels(float factor) : magnitudes(factor) {}
  F operator()(I code) const {
    const I sign = set_int(0x80000000u);
    const I negative = exclusive_or(and_(shift_left<32 - bits>(code), sign), sign);
    return float_of(exclusive_or(bits_of(magnitudes(code)), negative));
  }
};
template <int bits>
struct Levels<bits, true> {
  static constexpr int kHalf = 1 << (bits - 1);
  alignas(64) float memory[2 * kHalf];
  Table<2 * kHalf> table;
  explicit Levels(float factor) : table(fill(memory, factor)) {}
  static const float* fill(float* levels, float factor) {
    for (int i = 0; i < kHalf; ++i) {
      levels[kHalf + i] = rotated::kLevels[rotated::first_level(bits) + i] * factor;
      levels[i] = -levels[kHalf + i];
    }
    return levels;
  }
  F operator()(I code) const { return table(code); }
};

/// Writes 4 * kLanes codes, a byte each: `at`, with its topmost bit inverted where u is negative.
template <int bits>
static inline CGX_INLINE void store_codes(uint8_t* codes, const I* at, const I* u) {
#if defined(CGX_ON_AVX2)
  // Saturation keeps signs, and four vectors of them are handled at once.
  const I signs =
      _mm256_packs_epi16(_mm256_packs_epi32(u[0], u[1]), _mm256_packs_epi32(u[2], u[3]));
  const I low =
      _mm256_packus_epi16(_mm256_packs_epi32(at[0], at[1]), _mm256_packs_epi32(at[2], at[3]));
  const I top = _mm256_srli_epi16(and_(signs, _mm256_set1_epi8(-128)), 8 - bits);
  const I order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<I*>(codes),
                      _mm256_permutevar8x32_epi32(exclusive_or(low, top), order));
#else
  struct NoLimit {
    static I limit(I codes) { return codes; }
  };
  const auto code = [=](size_t k) CGX_INLINE {
    return exclusive_or(at[k], shift_left<bits - 1>(shift_right<31>(u[k])));
  };
  store_bytes(codes, code(0), code(1), code(2), code(3), NoLimit{});
#endif
}

/// The number of thresholds below a magnitude, plus 2^(bits-1), and its level.
template <int bits>
struct TreeSearch {
  Walk<1, 1 << (bits - 1)> walk{rotated::kTree<bits>.thresholds};
  Magnitudes<bits> magnitudes{1.0f};

  void operator()(F magnitude, I& at, F& level) const {
#if defined(CGX_ON_AVX2)
    if constexpr (bits == 2) {  // the root alone
      // Magnitudes compare as their bits do, on more units than floats do.
      const F root = set(rotated::kTree<bits>.thresholds[1]);
      at = _mm256_sub_epi32(set_int(2), _mm256_cmpgt_epi32(bits_of(magnitude), bits_of(root)));
      level = magnitudes(at);
      return;
    }
#endif
    at = walk(magnitude, set_int(1));
    level = magnitudes(at);
  }
};
/// The same for wider codes: an estimate that may be one too low, and one comparison.
template <int bits>
struct LineSearch {
  static constexpr const auto& kLines = rotated::kLines<bits>;
  static_assert(kLines.works);
  Table<kLines.kSegments> offset{kLines.offset}, slope{kLines.slope};
  Magnitudes<bits> magnitudes{1.0f};

  void operator()(F magnitude, I& at, F& level) const {
    const I segment = min_unsigned(to_int_truncated(mul(magnitude, set(kLines.kPerUnit))),
                                   set_int(kLines.kSegments - 1));
    const I low =
        min_unsigned(to_int_truncated(fused_add(magnitude, slope(segment), offset(segment))),
                     set_int(Magnitudes<bits>::kCount - 2));
    const F below = magnitudes(low), above = magnitudes(add(low, set_int(1)));
    const F threshold = mul(set(0.5f), add(below, above));
    at = or_(increment_where_greater(low, magnitude, threshold), set_int(1 << (bits - 1)));
    level = select_less(threshold, magnitude, below, above);
  }
};
template <int bits, bool wide = bits >= 7>
struct SearchOf {
  using Type = TreeSearch<bits>;
};
template <int bits>
struct SearchOf<bits, true> {
  using Type = LineSearch<bits>;
};

template <int bits>
struct Encoder {
  static constexpr int kBits = bits, kMostBits = rotated::kMostBits;
  static constexpr size_t kTogether = 1;

  using Search = typename SearchOf<bits>::Type;
  Search tables;

  void quantize(Group<kTogether>& group, size_t n) const {
    // In registers: stores to codes could change `tables`, as far as compilers know.
    const Search search = tables;
    const float* z = group.z[0];
    uint8_t* codes = group.codes[0];
    BlockSums sums;
    const F by = set(group.inverse[0]);
    const I mask = set_int(0x7fffffffu);
    for (size_t i = 0; i < n; i += 4 * kLanes) {
      I at[4], sign[4];
      for (size_t k = 0; k < 4; ++k) {
        const F u = mul(load_row(z + i + k * kLanes), by);
        const F magnitude = float_of(and_(bits_of(u), mask));
        F level;
        sign[k] = bits_of(u);
        search(magnitude, at[k], level);
        sums.product.see(k, magnitude, level);
        sums.square.see(k, level, level);
      }
      store_codes<bits>(codes + i, at, sign);
    }
    group.sums[0] = sums;
  }
};

template <int bits>
struct Decoder {
  static constexpr int kBits = bits, kMostBits = rotated::kMostBits;

  Levels<bits> levels_of;
  BlockCodes<bits> unpack;

  explicit Decoder(float factor) : levels_of(factor) {}
  F level(const std::byte* codes, size_t at) const {
#if defined(CGX_ON_AVX2)
    if constexpr (bits == 1) {  // the negative level, negated where a bit is set
      const uint8_t byte = reinterpret_cast<const uint8_t*>(codes)[at / 8];
      return _mm256_xor_ps(load_row(kSignMasks.of[byte]), set(levels_of.memory[0]));
    }
#endif
    return levels_of(unpack(codes, at));
  }
};

static void encode(const Part& part, const std::byte* x, DType dtype, std::byte* scales,
                   std::byte* codes) {
  encode_all<Encoder>(scalar::kLoops, part, x, dtype, scales, codes);
}
static void decode(const Part& part, const std::byte* scales, const std::byte* codes, float* y,
                   bool add_to) {
  decode_all<Decoder>(scalar::kLoops, part, scales, codes, y, add_to);
}

constexpr Loops kLoops{encode, decode};

}  // namespace
}  // namespace CGX_LEVEL
}  // namespace cgx::rotated
