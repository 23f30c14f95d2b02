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
constexpr bool kQuickPlace = true;
inline bool quick_place(const float* x, size_t n, const Grid& grid, int32_t* words) {
  const __m512d step = _mm512_set1_pd(grid.step), inverse = _mm512_set1_pd(grid.inverse);
  const __m512d rounder = _mm512_set1_pd(kRounder);
  const __m512 bound = _mm512_set1_ps(static_cast<float>(grid.bound * kQuickBound));
  const __m512 reach = _mm512_set1_ps(static_cast<float>(grid.step * kQuickReach));
  const __m512i least_normal = _mm512_set1_epi32(0x00800000);
  __mmask16 good = 0xffff;
  __m512i special = _mm512_setzero_si512();
  for (size_t i = 0; i < n; i += 16) {
    const __m512 values = _mm512_loadu_ps(x + i);
    const __m512d sum0 = _mm512_add_pd(
        _mm512_mul_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(values)), inverse), rounder);
    const __m512d sum1 = _mm512_add_pd(
        _mm512_mul_pd(_mm512_cvtps_pd(_mm512_extractf32x8_ps(values, 1)), inverse), rounder);
    const __m256 back0 = _mm512_cvtpd_ps(_mm512_mul_pd(_mm512_sub_pd(sum0, rounder), step));
    const __m256 back1 = _mm512_cvtpd_ps(_mm512_mul_pd(_mm512_sub_pd(sum1, rounder), step));
    const __m512 back = _mm512_insertf32x8(_mm512_castps256_ps512(back0), back1, 1);
    const __m512 size = _mm512_abs_ps(values);
    good &= _mm512_cmp_ps_mask(_mm512_abs_ps(_mm512_sub_ps(values, back)), bound, _CMP_LE_OQ) &
            _mm512_cmp_ps_mask(size, reach, _CMP_LE_OQ);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + i),
                        _mm512_cvtepi64_epi32(_mm512_castpd_si512(sum0)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + i + 8),
                        _mm512_cvtepi64_epi32(_mm512_castpd_si512(sum1)));
    const __mmask16 tiny = _mm512_cmplt_epi32_mask(_mm512_castps_si512(size), least_normal);
    special = _mm512_or_si512(special, _mm512_maskz_mov_epi32(tiny, _mm512_castps_si512(values)));
  }
  return good != 0xffff || _mm512_test_epi32_mask(special, special) != 0;
}
