// The encoder of `trellis` at the level avx2: the lanes of a vector are the sequences of a block.
// Included by loops-inl.h.
//
// A step of all sequences is two vectors of records: byte j of one has m of subset j in its low
// bits; of the other, in bit 4, the bit b[t-2] of the path that stays at state j. So a state times 8
// is a shift.

/// Masks to the bytes 0 to 3 of each lane.
static inline I merge_masks(I m0, I m1, I m2, I m3) {
  const I even = _mm256_blend_epi16(m0, m2, 0xaa);
  const I odd = _mm256_blend_epi16(m1, m3, 0xaa);
  return _mm256_blendv_epi8(even, odd, set_int(0xff00ff00u));
}

template <int bits, int subset>
struct Subset {
  static constexpr int kSize = 1 << (bits - 1), kEntries = kSize < 4 ? 4 : kSize;
  static constexpr const float* kFirst = trellis::kLevels + trellis::first_level(bits) + subset;

  Walk<1, kSize> walk{kTree<bits, subset>.thresholds};
  Table<kEntries> levels;

  Subset() : levels(Array{}.of) {}

  /// The squared distance of the nearest level. Its number is `at`, with a bit above it; of two
  /// levels a mask of the second one.
  inline CGX_INLINE F distance(F u, I& at) const {
    if constexpr (bits == 2) {
      at = bits_of(_mm256_cmp_ps(u, set(kTree<bits, subset>.thresholds[1]), _CMP_GT_OQ));
    } else {
      at = walk(u, set_int(1));
    }
    const F off = sub(u, levels(at));
    return mul(off, off);
  }

 private:
  struct Array {
    float of[kEntries];
    Array() {  // the last level again: a mask is number 3
      for (int m = 0; m < kEntries; ++m) of[m] = kFirst[4 * (m < kSize ? m : kSize - 1)];
    }
  };
};

/// Squared distances to the nearest level of each subset, and its number in a record.
struct Distances {
  F of0, of1, of2, of3;
  I numbers;
};
template <int bits>
struct Subsets {
  Subset<bits, 0> subset0;
  Subset<bits, 1> subset1;
  Subset<bits, 2> subset2;
  Subset<bits, 3> subset3;

  inline CGX_INLINE Distances distances(F u) const {
    I at0, at1, at2, at3;
    Distances d;
    d.of0 = subset0.distance(u, at0), d.of1 = subset1.distance(u, at1);
    d.of2 = subset2.distance(u, at2), d.of3 = subset3.distance(u, at3);
    if constexpr (bits == 1) {
      d.numbers = set_int(0);
    } else if constexpr (bits == 2) {
      d.numbers = merge_masks(at0, at1, at2, at3);
    } else {
      const I low = or_(at0, shift_left<8>(at1)), high = or_(at2, shift_left<8>(at3));
      d.numbers = or_(low, shift_left<16>(high));
    }
    return d;
  }
};

template <int bits>
struct Encoder {
  static constexpr int kBits = bits, kMostBits = trellis::kMostBits;
  static constexpr size_t kTogether = 1;
  static constexpr int kLevels = 4 << (bits - 1);
  /// Of a chosen step: m, then the subset, which is the number of a level in `levels`; then b.
  static constexpr int kSubsetAt = bits - 1, kBitAt = bits <= 2 ? 3 : 6;

  Subsets<bits> subsets;
  Table<kLevels> levels;

  Encoder() : levels(Array{}.of) {}

  void quantize(Group<1>& group, size_t n) const {
    Steps steps;
    const I state = forth(group, n, steps);
    back(n, steps, state);
    for (size_t half = 0; half < 2; ++half) see(group, half, n, steps.numbers);
  }

 private:
  struct Array {
    float of[kLevels];
    Array() {
      for (int i = 0; i < kLevels; ++i) {
        of[(i % 4 << kSubsetAt) + i / 4] = trellis::kLevels[trellis::first_level(bits) + i];
      }
    }
  };

  struct Steps {
    alignas(64) uint32_t numbers[kLargestBlock];
    alignas(64) uint32_t stays[kLargestBlock];
  };

  static inline void store_step(uint32_t* to, I step) {
    _mm256_store_si256(reinterpret_cast<I*>(to), step);
  }
  static inline I load_step(const uint32_t* from) {
    return _mm256_load_si256(reinterpret_cast<const I*>(from));
  }

  /// Costs are not negative: their bits compare as they do, on more units than floats do.
  static inline CGX_INLINE I less_cost(F a, F b) {
    return _mm256_cmpgt_epi32(bits_of(b), bits_of(a));
  }
  static inline CGX_INLINE F least_cost(F a, F b) {
    return float_of(_mm256_min_epi32(bits_of(a), bits_of(b)));
  }

  /// All steps; returns the best last states, times 8.
  I forth(const Group<1>& group, size_t n, Steps& steps) const {
    const F by = set(group.inverse[0]);
    const float* z = group.z[0];
    F cost0 = set(0.0f), cost1 = set(trellis::kNoPath), cost2 = cost1, cost3 = cost1;
    const Subsets<bits> all = subsets;
    for (size_t i = 0; i < n; i += kLanes) {
      const Distances d = all.distances(mul(load_row(z + i), by));
      // The states 2 b[t-1] + b[t] from 0 to 3; the second path is the one with b[t-2] = 1.
      const F from0 = add(cost0, d.of0), from2 = add(cost2, d.of2);
      const F over0 = add(cost0, d.of2), over2 = add(cost2, d.of0);
      const F from1 = add(cost1, d.of1), from3 = add(cost3, d.of3);
      const F over1 = add(cost1, d.of3), over3 = add(cost3, d.of1);
      cost0 = least_cost(from2, from0), cost1 = least_cost(over2, over0);
      cost2 = least_cost(from3, from1), cost3 = least_cost(over3, over1);
      const I stays = merge_masks(less_cost(from2, from0), less_cost(over2, over0),
                                  less_cost(from3, from1), less_cost(over3, over1));
      if constexpr (bits > 1) store_step(steps.numbers + i, d.numbers);
      store_step(steps.stays + i, stays);
    }
    const I zero = set_int(0);
    I state = select_less(cost1, cost0, zero, set_int(8));
    F best = min(cost1, cost0);
    state = select_less(cost2, best, state, set_int(16));
    best = min(cost2, best);
    return select_less(cost3, best, state, set_int(24));
  }

  /// Replaces numbers by what is chosen of each step. Bits of the path are worth 8, or 16 as the
  /// upper bit of a state or a subset.
  static void back(size_t n, Steps& steps, I state) {
    const I eight = set_int(8), sixteen = set_int(16);
    for (size_t i = n; i > 0;) {
      i -= kLanes;
      const I b = and_(state, eight), b1 = and_(shift_right<1>(state), eight);
      const I b2 = and_(shift_right(load_step(steps.stays + i), state), sixteen);
      const I subset = or_(exclusive_or(add(b, b), b2), b1);
      state = or_(b1, b2);
      I chosen = or_(shift_right<3 - kSubsetAt>(subset), shift_left<kBitAt - 3>(b));
      if constexpr (bits > 1) {
        const I m = shift_right(load_step(steps.numbers + i), subset);
        chosen = or_(chosen, and_(m, set_int((1u << (bits - 1)) - 1)));
      }
      store_step(steps.numbers + i, chosen);
    }
  }

  /// Codes, and one half of the sums: all of their accumulators would not fit into registers.
  void see(Group<1>& group, size_t half, size_t n, const uint32_t* steps) const {
    const Table<kLevels> table = levels;
    const float* z = group.z[0];
    uint8_t* codes = group.codes[0];
    const F by = set(group.inverse[0]);
    F product0 = set(0.0f), product1 = product0, square0 = product0, square1 = product0;
    for (size_t i = 2 * kLanes * half; i < n; i += 8 * kLanes) {
      const auto one = [&](size_t at, F& product, F& square) CGX_INLINE {
        const I chosen = load_step(steps + at);
        const F c = table(chosen);
        product = add(product, mul(mul(load_row(z + at), by), c));
        square = add(square, mul(c, c));
        return chosen;
      };
      const I a = one(i, product0, square0), b = one(i + kLanes, product1, square1);
      const I c = one(i + 4 * kLanes, product0, square0);
      const I d = one(i + 5 * kLanes, product1, square1);
      const I mixed = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
      const I order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
      const I bytes = _mm256_permutevar8x32_epi32(mixed, order);
      const I m = and_(bytes, _mm256_set1_epi8((1 << (bits - 1)) - 1));
      const I bit = and_(_mm256_srli_epi16(bytes, kBitAt), _mm256_set1_epi8(1));
      const I code = or_(_mm256_add_epi8(m, m), bit);
      Pack::store_lane(reinterpret_cast<std::byte*>(codes + i), _mm256_castsi256_si128(code));
      Pack::store_lane(reinterpret_cast<std::byte*>(codes + i + 4 * kLanes),
                       _mm256_extracti128_si256(code, 1));
    }
    BlockSums& sums = group.sums[0];
    sums.product.lanes[2 * half] = product0, sums.product.lanes[2 * half + 1] = product1;
    sums.square.lanes[2 * half] = square0, sums.square.lanes[2 * half + 1] = square1;
  }
};
