// The loops of one SIMD level. A file of ops/foreach_level-inl.h.

namespace cgx::bounded::ans {
namespace CGX_LEVEL {
namespace {

constexpr uint32_t kLeast = kLeastState, kSlotMask = kTotal - 1;

inline CGX_INLINE uint16_t word_at(const std::byte* at) {
  uint16_t word;
  __builtin_memcpy(&word, at, sizeof word);
  return word;
}

// One symbol off a state, which may need a word afterwards.
inline CGX_INLINE uint8_t take(uint32_t& state, const uint32_t* table) {
  const uint32_t packed = table[state & kSlotMask];
  state = (((packed >> 12) & kSlotMask) + 1) * (state >> kTotalBits) + (packed & kSlotMask);
  return static_cast<uint8_t>(packed >> 24);
}

inline CGX_INLINE void refill(uint32_t& state, Stream& stream) {
  if (state >= kLeast) return;
  if (stream.at == stream.end) {
    stream.cut = true;
    state <<= 16;
    return;
  }
  state = state << 16 | word_at(stream.at);
  stream.at += 2;
}

#if defined(CGX_ON_AVX2) || defined(CGX_ON_AVX512)

// Eight states. Where a state is too low, the next word goes below it, in the order of the states.
struct Eight {
  __m256i x;

  CGX_INLINE void load(const uint32_t* states) {
    x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(states));
  }
  CGX_INLINE void store(uint32_t* states) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(states), x);
  }

  // tables: where the table of each begins in the slots. Gives the symbols.
  CGX_INLINE __m256i take(const uint32_t* slots, __m256i tables) {
    const __m256i mask = _mm256_set1_epi32(static_cast<int>(kSlotMask));
    const __m256i place = _mm256_add_epi32(_mm256_and_si256(x, mask), tables);
    const __m256i packed = _mm256_i32gather_epi32(reinterpret_cast<const int*>(slots), place, 4);
    const __m256i frequency = _mm256_add_epi32(
        _mm256_and_si256(_mm256_srli_epi32(packed, 12), mask), _mm256_set1_epi32(1));
    x = _mm256_add_epi32(_mm256_mullo_epi32(frequency, _mm256_srli_epi32(x, kTotalBits)),
                         _mm256_and_si256(packed, mask));
    return _mm256_srli_epi32(packed, 24);
  }

  // The same for some of the states: those whose lanes of `some` have all bits set.
  CGX_INLINE __m256i take_some(const uint32_t* slots, __m256i tables, __m256i some) {
    const __m256i before = x;
    const __m256i symbols = take(slots, tables);
    x = _mm256_blendv_epi8(before, x, some);
    return symbols;
  }

  // At least eight words are there. States that were not read from are high enough.
  CGX_INLINE const std::byte* refill(const std::byte* at) {
    const __m256i low = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(kLeast)), x);
    const auto which = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(low)));
    const __m256i words =
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
    const __m256i order = _mm256_cvtepu8_epi32(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kExpand.places[which])));
    const __m256i next = _mm256_permutevar8x32_epi32(words, order);
    x = _mm256_blendv_epi8(x, _mm256_or_si256(_mm256_slli_epi32(x, 16), next), low);
    return at + 2 * __builtin_popcount(which);
  }
};

// The lowest bytes of eight numbers of 32 bits.
inline CGX_INLINE uint64_t bytes_of(__m256i numbers) {
  const __m256i lowest = _mm256_shuffle_epi8(
      numbers, _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4,
                                8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
  const auto low = static_cast<uint32_t>(_mm_cvtsi128_si32(_mm256_castsi256_si128(lowest)));
  const auto high = static_cast<uint32_t>(_mm_cvtsi128_si32(_mm256_extracti128_si256(lowest, 1)));
  return static_cast<uint64_t>(high) << 32 | low;
}

template <size_t kVectors>
inline CGX_INLINE size_t read_groups(Stream& stream, const uint32_t* slots, const uint8_t* tables,
                                     size_t n, uint8_t* symbols) {
  constexpr size_t kStates = 8 * kVectors;
  Eight x[kVectors];
  for (size_t k = 0; k < kVectors; ++k) x[k].load(stream.states + 8 * k);
  const std::byte* at = stream.at;
  size_t i = 0;
  while (i + kStates <= n && stream.end - at >= static_cast<std::ptrdiff_t>(2 * kStates)) {
    __m256i found[kVectors];
    for (size_t k = 0; k < kVectors; ++k) {
      const __m256i which = _mm256_cvtepu8_epi32(
          _mm_loadl_epi64(reinterpret_cast<const __m128i*>(tables + i + 8 * k)));
      found[k] = x[k].take(slots, _mm256_slli_epi32(which, kTotalBits));
    }
    for (size_t k = 0; k < kVectors; ++k) {
      at = x[k].refill(at);
      const uint64_t eight = bytes_of(found[k]);
      __builtin_memcpy(symbols + i + 8 * k, &eight, sizeof eight);
    }
    i += kStates;
  }
  if (i + kStates > n && stream.end - at >= static_cast<std::ptrdiff_t>(2 * kStates)) {
    // The end of the row, which not all states reach.
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    for (size_t k = 0; k < kVectors && i + 8 * k < n; ++k) {
      const auto left = static_cast<int>(n - i - 8 * k);
      const __m256i some = _mm256_cmpgt_epi32(_mm256_set1_epi32(left), lanes);
      const __m256i which = _mm256_and_si256(
          some, _mm256_cvtepu8_epi32(
                    _mm_loadl_epi64(reinterpret_cast<const __m128i*>(tables + i + 8 * k))));
      const __m256i found = x[k].take_some(slots, _mm256_slli_epi32(which, kTotalBits), some);
      at = x[k].refill(at);
      const uint64_t eight = bytes_of(found);
      __builtin_memcpy(symbols + i + 8 * k, &eight, sizeof eight);
    }
    i = n;
  }
  for (size_t k = 0; k < kVectors; ++k) x[k].store(stream.states + 8 * k);
  stream.at = at;
  return i;
}

template <size_t kVectors>
inline CGX_INLINE size_t read_windows_of(Stream& stream, const uint32_t* slots,
                                         const uint32_t* table_of, size_t each, uint8_t center,
                                         int shift, uint32_t* means, uint8_t* symbols) {
  constexpr size_t kStates = 8 * kVectors;
  Eight x[kVectors];
  __m256i mean[kVectors];
  for (size_t k = 0; k < kVectors; ++k) {
    x[k].load(stream.states + 8 * k);
    mean[k] = _mm256_setzero_si256();
  }
  const __m256i middle = _mm256_set1_epi32(center), two = _mm256_set1_epi32(2);
  // The exponent of mean + 2 as a float, and the highest bit of its mantissa.
  const __m256i bias = _mm256_set1_epi32((127 + 1) * 2);
  const __m128i down = _mm_cvtsi32_si128(shift), up = _mm_cvtsi32_si128(8 - shift);
  const std::byte* at = stream.at;
  size_t i = 0;
  // Symbols of eight steps are kept, so that they are written eight at once.
  alignas(32) uint8_t kept[8][kStates];
  const auto step = [&](uint8_t* to) CGX_INLINE {
    __m256i found[kVectors];
    for (size_t k = 0; k < kVectors; ++k) {
      const __m256 number = _mm256_cvtepi32_ps(_mm256_add_epi32(mean[k], two));
      const __m256i context =
          _mm256_sub_epi32(_mm256_srli_epi32(_mm256_castps_si256(number), 22), bias);
      const __m256i table =
          _mm256_i32gather_epi32(reinterpret_cast<const int*>(table_of), context, 4);
      found[k] = x[k].take(slots, table);
    }
    for (size_t k = 0; k < kVectors; ++k) {
      at = x[k].refill(at);
      const __m256i size = _mm256_abs_epi32(_mm256_sub_epi32(found[k], middle));
      mean[k] = _mm256_add_epi32(_mm256_sub_epi32(mean[k], _mm256_srl_epi32(mean[k], down)),
                                 _mm256_sll_epi32(size, up));
      const uint64_t eight = bytes_of(found[k]);
      __builtin_memcpy(to + 8 * k, &eight, sizeof eight);
    }
  };
  while (i + 8 <= each && stream.end - at >= static_cast<std::ptrdiff_t>(16 * kStates)) {
    for (size_t t = 0; t < 8; ++t) step(kept[t]);
    for (size_t k = 0; k < kStates; ++k) {
      uint64_t eight = 0;
      for (size_t t = 0; t < 8; ++t) eight |= static_cast<uint64_t>(kept[t][k]) << (8 * t);
      __builtin_memcpy(symbols + k * each + i, &eight, sizeof eight);
    }
    i += 8;
  }
  for (size_t k = 0; k < kVectors; ++k) {
    x[k].store(stream.states + 8 * k);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(means + 8 * k), mean[k]);
  }
  stream.at = at;
  return i;
}

inline size_t read_many(Stream& stream, size_t states, const uint32_t* slots, const uint8_t* tables,
                        size_t n, uint8_t* symbols) {
  switch (states) {
    case 8:
      return read_groups<1>(stream, slots, tables, n, symbols);
    case 16:
      return read_groups<2>(stream, slots, tables, n, symbols);
    case 32:
      return read_groups<4>(stream, slots, tables, n, symbols);
    default:
      return 0;
  }
}

inline size_t read_many_windows(Stream& stream, size_t states, const uint32_t* slots,
                                const uint32_t* table_of, size_t each, uint8_t center, int shift,
                                uint32_t* means, uint8_t* symbols) {
  switch (states) {
    case 8:
      return read_windows_of<1>(stream, slots, table_of, each, center, shift, means, symbols);
    case 16:
      return read_windows_of<2>(stream, slots, table_of, each, center, shift, means, symbols);
    case 32:
      return read_windows_of<4>(stream, slots, table_of, each, center, shift, means, symbols);
    default:
      return 0;
  }
}

#else

inline size_t read_many(Stream&, size_t, const uint32_t*, const uint8_t*, size_t, uint8_t*) {
  return 0;
}
inline size_t read_many_windows(Stream&, size_t, const uint32_t*, const uint32_t*, size_t, uint8_t,
                                int, uint32_t*, uint8_t*) {
  return 0;
}

#endif

inline void read(Stream& stream, size_t states, const uint32_t* slots, const uint8_t* tables,
                 size_t n, uint8_t* symbols) {
  size_t i = read_many(stream, states, slots, tables, n, symbols);
  for (; i < n; ++i) {
    uint32_t& state = stream.states[i & (states - 1)];
    symbols[i] = take(state, slots + tables[i] * size_t{kTotal});
    refill(state, stream);
  }
}

inline void read_windows(Stream& stream, size_t states, const uint32_t* slots,
                         const uint32_t* table_of, size_t n, uint8_t center, int shift,
                         uint8_t* symbols) {
  const size_t each = n / states;
  uint32_t means[kMostStates] = {};
  size_t i =
      read_many_windows(stream, states, slots, table_of, each, center, shift, means, symbols);
  for (; i < each; ++i) {
    for (size_t k = 0; k < states; ++k) {
      uint32_t& state = stream.states[k];
      const uint8_t symbol = take(state, slots + table_of[context_of(means[k])]);
      symbols[k * each + i] = symbol;
      means[k] = after(means[k], size_of_symbol(symbol, center), shift);
      refill(state, stream);
    }
  }
}

constexpr Loops kLoops{read, read_windows};

}  // namespace
}  // namespace CGX_LEVEL
}  // namespace cgx::bounded::ans
