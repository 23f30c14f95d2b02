// The quantizer of `trellis` over the vector operations of one level: the lanes of a vector are the
// sequences of a block, or of two. A file of ops/foreach_level-inl.h.

namespace cgx::trellis {
namespace CGX_LEVEL {
namespace {

using namespace cgx::cpu;

#include "codec/ops/simd-inl.h"
// These need the vector operations.
#include "codec/levels/search-inl.h"
#include "codec/rotation/blocks-inl.h"

/// The thresholds of a subset's levels.
template <int bits, int subset>
inline constexpr levels::Tree<1 << (bits - 1)> kTree{
    trellis::kLevels + trellis::first_level(bits) + subset, 4};

template <int bits>
struct Decoder {
  static constexpr int kBits = bits, kMostBits = trellis::kMostBits;
  static constexpr int kLevels = 4 << (bits - 1);

  alignas(64) float memory[kLevels];
  Table<kLevels> table;
  BlockCodes<bits> unpack;

  explicit Decoder(float factor) : table(fill(memory, factor)) {}
  static const float* fill(float* levels, float factor) {
    for (int i = 0; i < kLevels; ++i) {
      levels[i] = trellis::kLevels[trellis::first_level(bits) + i] * factor;
    }
    return levels;
  }

  /// `before`, `two_before`: the vectors before this one.
  F level_of(I code, I before, I two_before) const {
    const I one = set_int(1);
    I b1 = before, b2 = two_before;
    if constexpr (kLanes == 16) b1 = join_halves(before, code), b2 = before;
    const I subset = exclusive_or(shift_left<1>(code), shift_left<1>(and_(b2, one)));
    return table(or_(subset, and_(b1, one)));
  }

  void levels(const std::byte* codes, size_t n, float* z) const {
    const I zero = set_int(0);
    I before = zero, two_before = zero;
    for (size_t i = 0; i < n; i += kLanes) {
      const I code = unpack(codes, i);
      store_row(z + i, level_of(code, before, two_before));
      two_before = before, before = code;
    }
  }
};

#if defined(CGX_ON_AVX2)
#include "codec/families/trellis/paths_avx2-inl.h"
#else
template <int bits, int subset>
struct Subset {
  static constexpr int kSize = 1 << (bits - 1);

  Walk<1, kSize> walk{kTree<bits, subset>.thresholds};
  alignas(64) float memory[kSize];
  Table<kSize> levels;

  Subset() : levels(fill(memory)) {}
  static const float* fill(float* memory) {
    for (int m = 0; m < kSize; ++m) {
      memory[m] = trellis::kLevels[trellis::first_level(bits) + 4 * m + subset];
    }
    return memory;
  }

  /// The squared distance of the nearest level; its number goes to its bits of `step`.
  inline CGX_INLINE F distance(F u, I& step) const {
    constexpr int kPlace = 4 + 3 * subset;
    if constexpr (bits == 2) {  // two levels need no table
      const F threshold = set(kTree<bits, subset>.thresholds[1]);
      step = or_where_less(threshold, u, step, set_int(1 << kPlace));
      const F off = sub(u, select_less(threshold, u, set(memory[0]), set(memory[1])));
      return mul(off, off);
    }
    const I at = walk(u, set_int(1));
    const F off = sub(u, levels(at));
    if constexpr (bits > 1) step = or_(step, shift_left<kPlace>(and_(at, set_int(kSize - 1))));
    return mul(off, off);
  }
};

template <int bits>
struct Encoder {
  static constexpr int kBits = bits, kMostBits = trellis::kMostBits;
  static constexpr size_t kTogether = kLanes / trellis::kSequences;
  static constexpr size_t kMostSteps = kLargestBlock / trellis::kSequences;

  Decoder<bits> level_table{1.0f};

  void quantize(Group<kTogether>& group, size_t n) const {
    alignas(64) uint32_t steps[kMostSteps * kLanes];
    constexpr size_t kOther = kTogether - 1;
    const I state = forth(group, n, steps);
    back(group, n, steps, state);
    for (size_t k = 0; k <= kOther; ++k) see(group, k, n);
  }

 private:
  static inline void store_step(uint32_t* to, I step) {
    store(Float32{}, reinterpret_cast<std::byte*>(to), float_of(step));
  }
  static inline I load_step(const uint32_t* from) {
    return bits_of(load(Float32{}, reinterpret_cast<const std::byte*>(from)));
  }

  /// All steps; returns the best last states.
  static I forth(const Group<kTogether>& group, size_t n, uint32_t* steps) {
    constexpr size_t kOther = kTogether - 1;
    const Subset<bits, 0> subset0;
    const Subset<bits, 1> subset1;
    const Subset<bits, 2> subset2;
    const Subset<bits, 3> subset3;
    const F by = eight_of_each(group.inverse[0], group.inverse[kOther]);
    const I zero = set_int(0);
    F cost0 = set(0.0f), cost1 = set(trellis::kNoPath), cost2 = cost1, cost3 = cost1;
    for (size_t i = 0; i < n; i += trellis::kSequences, steps += kLanes) {
      const F u = mul(eight_of_each(group.z[0] + i, group.z[kOther] + i), by);
      I step = zero;
      const F d0 = subset0.distance(u, step), d1 = subset1.distance(u, step);
      const F d2 = subset2.distance(u, step), d3 = subset3.distance(u, step);
      // The states 2 b[t-1] + b[t] from 0 to 3; the second path is the one with b[t-2] = 1.
      const F from0 = add(cost0, d0), from2 = add(cost2, d2);
      const F over0 = add(cost0, d2), over2 = add(cost2, d0);
      const F from1 = add(cost1, d1), from3 = add(cost3, d3);
      const F over1 = add(cost1, d3), over3 = add(cost3, d1);
      step = or_where_less(from2, from0, step, set_int(1));
      step = or_where_less(over2, over0, step, set_int(2));
      step = or_where_less(from3, from1, step, set_int(4));
      step = or_where_less(over3, over1, step, set_int(8));
      cost0 = min(from2, from0), cost1 = min(over2, over0);
      cost2 = min(from3, from1), cost3 = min(over3, over1);
      store_step(steps, step);
    }
    I state = select_less(cost1, cost0, zero, set_int(1));
    F best = min(cost1, cost0);
    state = select_less(cost2, best, state, set_int(2));
    best = min(cost2, best);
    return select_less(cost3, best, state, set_int(3));
  }

  static void back(Group<kTogether>& group, size_t n, const uint32_t* steps, I state) {
    const I one = set_int(1);
    for (size_t i = n; i > 0;) {
      i -= trellis::kSequences;
      const I step = load_step(steps + i / trellis::kSequences * kLanes);
      const I b1 = shift_right<1>(state);
      const I b2 = and_(shift_right(step, state), one);
      I code = and_(state, one);
      if constexpr (bits > 1) {
        // 4 + 3 (2 (b ^ b2) + b1)
        const I subset = or_(shift_left<1>(exclusive_or(code, b2)), b1);
        const I place = add(add(subset, shift_left<1>(subset)), set_int(4));
        const I m = and_(shift_right(step, place), set_int((1u << (bits - 1)) - 1));
        code = or_(code, shift_left<1>(m));
      }
      state = or_(b1, shift_left<1>(b2));
      uint8_t bytes[kLanes];
      store_bytes(bytes, code);
      for (size_t k = 0; k < kTogether; ++k) {
        __builtin_memcpy(group.codes[k] + i, bytes + k * trellis::kSequences, trellis::kSequences);
      }
    }
  }

  /// The sums of a block, from its codes.
  void see(Group<kTogether>& group, size_t k, size_t n) const {
    const F by = set(group.inverse[k]);
    const Decoder<bits> decoder = level_table;
    BlockSums sums;
    const I zero = set_int(0);
    I before = zero, two_before = zero;
    for (size_t i = 0; i < n; i += kSumLanes) {
      for (size_t row = 0; row < kSums; ++row) {
        const size_t at = i + row * kLanes;
        const I code = load_codes(group.codes[k] + at);
        const F c = decoder.level_of(code, before, two_before);
        const F u = mul(load_row(group.z[k] + at), by);
        sums.product.see(row, u, c);
        sums.square.see(row, c, c);
        two_before = before, before = code;
      }
    }
    group.sums[k] = sums;
  }
};
#endif

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
}  // namespace cgx::trellis
