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

// A faster place() of n float32 values without a curve, n a multiple of 16. False: all is well, and the
// words are those of place(). True: place() decides.
//
// The error is compared in float32, which is exact for values near each other, with a bound that is
// smaller by more than any rounding; values of which the place might not fit an int32 are left to
// place().
constexpr bool kQuickPlace = true;
inline bool quick_place(const float* x, size_t n, const Grid& grid, int32_t* words) {
  const __m256d step = _mm256_set1_pd(grid.step), inverse = _mm256_set1_pd(grid.inverse);
  const __m256d rounder = _mm256_set1_pd(kRounder);
  const __m256 bound = _mm256_set1_ps(static_cast<float>(grid.bound * kQuickBound));
  const __m256 reach = _mm256_set1_ps(static_cast<float>(grid.step * kQuickReach));
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  const __m256i least_normal = _mm256_set1_epi32(0x00800000);
  // The low halves of four sums, from two registers of two lanes.
  const __m256i lower = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
  __m256 good = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
  __m256i special = _mm256_setzero_si256();
  for (size_t i = 0; i < n; i += 8) {
    const __m256 values = _mm256_loadu_ps(x + i);
    const __m256d sum0 = _mm256_add_pd(
        _mm256_mul_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(values)), inverse), rounder);
    const __m256d sum1 = _mm256_add_pd(
        _mm256_mul_pd(_mm256_cvtps_pd(_mm256_extractf128_ps(values, 1)), inverse), rounder);
    const __m128 back0 = _mm256_cvtpd_ps(_mm256_mul_pd(_mm256_sub_pd(sum0, rounder), step));
    const __m128 back1 = _mm256_cvtpd_ps(_mm256_mul_pd(_mm256_sub_pd(sum1, rounder), step));
    const __m256 back = _mm256_set_m128(back1, back0);
    const __m256 error = _mm256_and_ps(magnitude, _mm256_sub_ps(values, back));
    const __m256 size = _mm256_and_ps(magnitude, values);
    good = _mm256_and_ps(good, _mm256_and_ps(_mm256_cmp_ps(error, bound, _CMP_LE_OQ),
                                             _mm256_cmp_ps(size, reach, _CMP_LE_OQ)));
    const __m256i low0 = _mm256_permutevar8x32_epi32(_mm256_castpd_si256(sum0), lower);
    const __m256i low1 = _mm256_permutevar8x32_epi32(_mm256_castpd_si256(sum1), lower);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + i),
                        _mm256_blend_epi32(low0, low1, 0xf0));
    const __m256i tiny = _mm256_cmpgt_epi32(least_normal, _mm256_castps_si256(size));
    special = _mm256_or_si256(special, _mm256_and_si256(tiny, _mm256_castps_si256(values)));
  }
  return _mm256_movemask_ps(good) != 255 || _mm256_testz_si256(special, special) == 0;
}
