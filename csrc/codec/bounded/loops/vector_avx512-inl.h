// Loops that compilers vectorise poorly, in AVX-512. As vector-inl.h.

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
inline __mmask16 place_by_doubles(__m512 values, const Grid& grid, int32_t* words) {
  const __m512d step = _mm512_set1_pd(grid.step), inverse = _mm512_set1_pd(grid.inverse);
  const __m512d rounder = _mm512_set1_pd(kRounder);
  const __m512 bound = _mm512_set1_ps(static_cast<float>(grid.bound * kQuickBound));
  const __m512 reach = _mm512_set1_ps(static_cast<float>(grid.step * kQuickReach));
  const __m512d sum0 = _mm512_add_pd(
      _mm512_mul_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(values)), inverse), rounder);
  const __m512d sum1 = _mm512_add_pd(
      _mm512_mul_pd(_mm512_cvtps_pd(_mm512_extractf32x8_ps(values, 1)), inverse), rounder);
  const __m256 back0 = _mm512_cvtpd_ps(_mm512_mul_pd(_mm512_sub_pd(sum0, rounder), step));
  const __m256 back1 = _mm512_cvtpd_ps(_mm512_mul_pd(_mm512_sub_pd(sum1, rounder), step));
  const __m512 back = _mm512_insertf32x8(_mm512_castps256_ps512(back0), back1, 1);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(words),
                      _mm512_cvtepi64_epi32(_mm512_castpd_si512(sum0)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + 8),
                      _mm512_cvtepi64_epi32(_mm512_castpd_si512(sum1)));
  return _mm512_cmp_ps_mask(_mm512_abs_ps(_mm512_sub_ps(values, back)), bound, _CMP_LE_OQ) &
         _mm512_cmp_ps_mask(_mm512_abs_ps(values), reach, _CMP_LE_OQ);
}

inline __m512i joined(const __m128i* parts) {
  const __m256i first = _mm256_set_m128i(parts[1], parts[0]);
  return _mm512_inserti64x4(_mm512_castsi256_si512(first), _mm256_set_m128i(parts[3], parts[2]), 1);
}

// As in vector_avx2-inl.h.
constexpr size_t kGroup = 64, kRegisters = 4;
using Register = __m512i;

inline __m512i load(const int32_t* words) { return _mm512_loadu_si512(words); }
inline void store(int32_t* words, __m512i some) { _mm512_storeu_si512(words, some); }

class Placer {
 public:
  explicit Placer(const Grid& grid) : grid_(grid) {
    const SureGrid sure = sure_grid(grid);
    inverse_ = _mm512_set1_ps(sure.inverse);
    rest_ = _mm512_set1_ps(sure.rest);
  }

  void place(const float* x, __m512i* words) {
    constexpr int kGreatestMagnitude = 0b1011;
    // Under DAZ a negative subnormal number would be -0 to this instruction: Encoder has a FloatMode.
    constexpr int kMinusZero = 0x04;
    // Where NaN is lost in the first, the second has the place of no number, -2^31.
    __m512 farthest = _mm512_setzero_ps(), greatest = _mm512_setzero_ps();
    for (size_t k = 0; k < 2; ++k) {
      prefetch(x + 16 * k);
      const __m512 values = _mm512_loadu_ps(x + 16 * k);
      words[k] = _mm512_cvtps_epi32(_mm512_mul_ps(values, inverse_));
      const __m512 place = _mm512_cvtepi32_ps(words[k]);
      const __m512 off = _mm512_fmadd_ps(values, rest_, _mm512_fmsub_ps(values, inverse_, place));
      farthest = _mm512_range_ps(farthest, off, kGreatestMagnitude);
      greatest = _mm512_range_ps(greatest, place, kGreatestMagnitude);
      special_ |= _mm512_fpclass_ps_mask(values, kMinusZero);
    }
    const __m512 far = _mm512_fmadd_ps(greatest, _mm512_set1_ps(kSureSlack), farthest);
    if (_mm512_cmp_ps_mask(far, _mm512_set1_ps(kSureHalf), _CMP_NLE_UQ) == 0) return;
    for (size_t k = 0; k < 2; ++k) {
      int32_t placed[16];
      good_ &= place_by_doubles(_mm512_loadu_ps(x + 16 * k), grid_, placed);
      words[k] = load(placed);
    }
  }

  bool well() const { return good_ == 0xffff && special_ == 0; }

 private:
  const Grid& grid_;
  __m512 inverse_, rest_;
  __mmask16 good_ = 0xffff, special_ = 0;
};

// Conversions to bytes saturate, or leave the low bytes.
class Splitter {
 public:
  Splitter(int32_t base, const Low<uint8_t>& low, uint8_t* symbols)
      : low_(low), symbols_(symbols), offset_(_mm512_set1_epi32(base)) {}

  void split(const __m512i* words, size_t i) {
    const __m128i width = _mm_cvtsi32_si128(low_.width);
    const int whole = low_.width / 8, bits = low_.width % 8;
    __m512i above[4];
    __m128i some[4];
    for (size_t k = 0; k < 4; ++k) {
      above[k] = _mm512_sub_epi32(words[k], offset_);
      const __m128i symbol = _mm512_cvtusepi32_epi8(_mm512_srl_epi32(above[k], width));
      greatest_ = _mm_max_epu8(greatest_, symbol);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(symbols_ + i + 16 * k), symbol);
    }
    for (int plane = 0; plane < whole; ++plane) {
      const __m128i at = _mm_cvtsi32_si128(8 * plane);
      for (size_t k = 0; k < 4; ++k) {
        some[k] = _mm512_cvtepi32_epi8(_mm512_srl_epi32(above[k], at));
      }
      _mm512_storeu_si512(low_.bytes + static_cast<size_t>(plane) * low_.byte_stride + i,
                          joined(some));
    }
    if (bits == 0) return;
    const __m128i below = _mm_cvtsi32_si128(8 * whole);
    for (size_t k = 0; k < 4; ++k) {
      some[k] = _mm512_cvtepi32_epi8(_mm512_srl_epi32(above[k], below));
    }
    const __m512i codes = joined(some);
    __m512i bit_of = _mm512_set1_epi8(1);
    for (int bit = 0; bit < bits; ++bit, bit_of = _mm512_add_epi8(bit_of, bit_of)) {
      const uint64_t gathered = _mm512_test_epi8_mask(codes, bit_of);
      __builtin_memcpy(low_.bits + static_cast<size_t>(bit) * low_.bit_stride + i / 8, &gathered,
                       8);
    }
  }

  bool outlier() const {
    return _mm_cmpeq_epi8_mask(greatest_, _mm_set1_epi8(static_cast<char>(kOutlier))) != 0;
  }

 private:
  const Low<uint8_t>& low_;
  uint8_t* const symbols_;
  const __m512i offset_;
  __m128i greatest_ = _mm_setzero_si128();
};
