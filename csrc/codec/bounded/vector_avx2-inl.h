// What compilers make no good vectors of, for AVX2. As vector-inl.h.

// 32 codes at a time.
inline void bits_to_planes(const uint8_t* codes, size_t n, int bits, uint8_t* planes,
                           size_t stride) {
  for (size_t at = 0; at < n; at += 32) {
    __m256i left = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + at));
    // The sign bit of a byte is what is gathered: bit 7 first.
    left = _mm256_sll_epi16(left, _mm_cvtsi32_si128(8 - bits));
    for (int bit = bits; bit-- > 0; left = _mm256_add_epi8(left, left)) {
      const uint32_t gathered = static_cast<uint32_t>(_mm256_movemask_epi8(left));
      __builtin_memcpy(planes + static_cast<size_t>(bit) * stride + at / 8, &gathered, 4);
    }
  }
  // The planes end at a multiple of 64 codes.
  if ((n + 31) / 32 % 2 != 0) {
    for (int bit = 0; bit < bits; ++bit) {
      __builtin_memset(planes + static_cast<size_t>(bit) * stride + (n + 31) / 32 * 4, 0, 4);
    }
  }
}

inline void planes_to_bits(const uint8_t* planes, size_t stride, size_t n, int bits,
                           uint8_t* codes) {
  const __m256i byte_of = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2,
                                           2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
  const __m256i bit_of = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
  const size_t end = (n + 63) / 64 * 64;
  for (size_t at = 0; at < end; at += 32) {
    __m256i found = _mm256_setzero_si256();
    for (int bit = 0; bit < bits; ++bit) {
      int32_t four;
      __builtin_memcpy(&four, planes + static_cast<size_t>(bit) * stride + at / 8, 4);
      const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(four), byte_of);
      const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit_of), bit_of);
      found = _mm256_or_si256(found,
                              _mm256_and_si256(set, _mm256_set1_epi8(static_cast<char>(1 << bit))));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + at), found);
  }
}

// place() of float32 without a curve, eight values at a time: as the loop in loops-inl.h, but for what
// comes out of a value whose place fits no int32, which fails the check all the same. n is a
// multiple of 16.
constexpr bool kOwnPlace = true;
inline bool place_floats(const float* x, size_t n, const Grid& grid, int32_t* words) {
  const __m256d step = _mm256_set1_pd(grid.step), inverse = _mm256_set1_pd(grid.inverse);
  const __m256d bound = _mm256_set1_pd(grid.bound), sign = _mm256_set1_pd(-0.0);
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  const __m256i least_normal = _mm256_set1_epi32(0x00800000);
  __m256d good = _mm256_castsi256_pd(_mm256_set1_epi32(-1));
  __m256i special = _mm256_setzero_si256();
  for (size_t i = 0; i + 8 <= n; i += 8) {
    const __m256 values = _mm256_loadu_ps(x + i);
    for (int half = 0; half < 2; ++half) {
      const __m256d value = _mm256_cvtps_pd(half == 0 ? _mm256_castps256_ps128(values)
                                                      : _mm256_extractf128_ps(values, 1));
      const __m128i word = _mm256_cvtpd_epi32(_mm256_mul_pd(value, inverse));
      const __m256d back =
          _mm256_cvtps_pd(_mm256_cvtpd_ps(_mm256_mul_pd(_mm256_cvtepi32_pd(word), step)));
      const __m256d error = _mm256_andnot_pd(sign, _mm256_sub_pd(value, back));
      good = _mm256_and_pd(good, _mm256_cmp_pd(error, bound, _CMP_LE_OQ));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(words + i + 4 * static_cast<size_t>(half)), word);
    }
    const __m256i bits = _mm256_castps_si256(values);
    const __m256i tiny = _mm256_cmpgt_epi32(least_normal, _mm256_and_si256(bits, magnitude));
    special = _mm256_or_si256(special, _mm256_and_si256(tiny, bits));
  }
  return _mm256_movemask_pd(good) != 15 || _mm256_testz_si256(special, special) == 0;
}
