// What compilers make no good vectors of, for AVX-512. As vector-inl.h.

// 64 codes at a time.
inline void bits_to_planes(const uint8_t* codes, size_t n, int bits, uint8_t* planes,
                           size_t stride) {
  for (size_t at = 0; at < n; at += 64) {
    const __m512i some = _mm512_loadu_si512(codes + at);
    for (int bit = 0; bit < bits; ++bit) {
      const uint64_t gathered =
          _mm512_test_epi8_mask(some, _mm512_set1_epi8(static_cast<char>(1 << bit)));
      __builtin_memcpy(planes + static_cast<size_t>(bit) * stride + at / 8, &gathered, 8);
    }
  }
}

inline void planes_to_bits(const uint8_t* planes, size_t stride, size_t n, int bits,
                           uint8_t* codes) {
  for (size_t at = 0; at < n; at += 64) {
    __m512i found = _mm512_setzero_si512();
    for (int bit = 0; bit < bits; ++bit) {
      uint64_t mask;
      __builtin_memcpy(&mask, planes + static_cast<size_t>(bit) * stride + at / 8, 8);
      const __m512i one = _mm512_set1_epi8(static_cast<char>(1 << bit));
      found = _mm512_or_si512(found, _mm512_maskz_mov_epi8(mask, one));
    }
    _mm512_storeu_si512(codes + at, found);
  }
}

// As in vector_avx2-inl.h.
constexpr bool kOwnPlace = true;
inline bool place_floats(const float* x, size_t n, const Grid& grid, int32_t* words) {
  const __m512d step = _mm512_set1_pd(grid.step), inverse = _mm512_set1_pd(grid.inverse);
  const __m512d bound = _mm512_set1_pd(grid.bound);
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i least_normal = _mm512_set1_epi32(0x00800000);
  __mmask8 good = 0xff;
  __m512i special = _mm512_setzero_si512();
  for (size_t i = 0; i + 16 <= n; i += 16) {
    const __m512 values = _mm512_loadu_ps(x + i);
    for (int half = 0; half < 2; ++half) {
      const __m512d value = _mm512_cvtps_pd(half == 0 ? _mm512_castps512_ps256(values)
                                                      : _mm512_extractf32x8_ps(values, 1));
      const __m256i word = _mm512_cvtpd_epi32(_mm512_mul_pd(value, inverse));
      const __m512d back =
          _mm512_cvtps_pd(_mm512_cvtpd_ps(_mm512_mul_pd(_mm512_cvtepi32_pd(word), step)));
      const __m512d error = _mm512_abs_pd(_mm512_sub_pd(value, back));
      good &= _mm512_cmp_pd_mask(error, bound, _CMP_LE_OQ);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + i + 8 * static_cast<size_t>(half)),
                          word);
    }
    const __m512i bits = _mm512_castps_si512(values);
    const __mmask16 tiny = _mm512_cmplt_epi32_mask(_mm512_and_si512(bits, magnitude), least_normal);
    special = _mm512_or_si512(special, _mm512_maskz_mov_epi32(tiny, bits));
  }
  return good != 0xff || _mm512_test_epi32_mask(special, special) != 0;
}
