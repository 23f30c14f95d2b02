// The random signs of a block, over the vector operations of one level. Included by blocks-inl.h.

#if defined(CGX_ON_AVX2)
/// All made before they are needed, so that their long way does not hold up the values. A byte of
/// them is the number of a vector's mask.
struct Signs {
  uint64_t words[kLargestBlock / 64];
  Signs(uint64_t state, size_t n) {
    for (size_t i = 0; i < n / 64; ++i, state += 64 * rotation::kSignStep) {
      words[i] = rotation::sign_word(state);
    }
  }
  inline CGX_INLINE F on(F v, size_t at) const {
    const uint8_t byte = reinterpret_cast<const uint8_t*>(words)[at / 8];
    return _mm256_xor_ps(v, load_row(kSignMasks.of[byte]));
  }
};
#else
struct Signs {
  uint64_t state;
  uint64_t word = 0;
  Signs(uint64_t start, size_t) : state(start) {}
  inline CGX_INLINE F on(F v, size_t at) {
    if (at % 64 == 0) word = rotation::sign_word(rotation::sign_state(state, at));
    return negate(v, word >> (at % 64));
  }
};
#endif
