// Loops that compilers vectorise poorly, in AVX2. As vector-inl.h.

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

// place() of 8 values, with a quicker check of the bound. The result is all ones where it has found
// the value to be right. The error is compared in float32, which is exact for values near each
// other, with a bound that is smaller by more than any rounding; values of which the place might
// not fit an int32 are left to place().
inline __m256i place_by_doubles(__m256 values, const Grid& grid, int32_t* words) {
  const __m256d step = _mm256_set1_pd(grid.step), inverse = _mm256_set1_pd(grid.inverse);
  const __m256d rounder = _mm256_set1_pd(kRounder);
  const __m256 bound = _mm256_set1_ps(static_cast<float>(grid.bound * kQuickBound));
  const __m256 reach = _mm256_set1_ps(static_cast<float>(grid.step * kQuickReach));
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  // The low halves of four sums, from two registers of two lanes.
  const __m256i lower = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
  const __m256d sum0 = _mm256_add_pd(
      _mm256_mul_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(values)), inverse), rounder);
  const __m256d sum1 = _mm256_add_pd(
      _mm256_mul_pd(_mm256_cvtps_pd(_mm256_extractf128_ps(values, 1)), inverse), rounder);
  const __m128 back0 = _mm256_cvtpd_ps(_mm256_mul_pd(_mm256_sub_pd(sum0, rounder), step));
  const __m128 back1 = _mm256_cvtpd_ps(_mm256_mul_pd(_mm256_sub_pd(sum1, rounder), step));
  const __m256 error =
      _mm256_and_ps(magnitude, _mm256_sub_ps(values, _mm256_set_m128(back1, back0)));
  const __m256i low0 = _mm256_permutevar8x32_epi32(_mm256_castpd_si256(sum0), lower);
  const __m256i low1 = _mm256_permutevar8x32_epi32(_mm256_castpd_si256(sum1), lower);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), _mm256_blend_epi32(low0, low1, 0xf0));
  return _mm256_castps_si256(
      _mm256_and_ps(_mm256_cmp_ps(error, bound, _CMP_LE_OQ),
                    _mm256_cmp_ps(_mm256_and_ps(magnitude, values), reach, _CMP_LE_OQ)));
}

// The low bytes of 32 words below 256, in their order.
inline __m256i low_bytes(const __m256i* words) {
  const __m256i first = _mm256_packus_epi32(words[0], words[1]);
  const __m256i second = _mm256_packus_epi32(words[2], words[3]);
  // Packing works within lanes of 16 bytes: four bytes of each half of a register lie together.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(first, second), order);
}

// quick-inl.h uses the following. It works on kGroup words at a time, in kRegisters registers.
constexpr size_t kGroup = 32, kRegisters = 4;
using Register = __m256i;

inline __m256i load(const int32_t* words) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
}
inline void store(int32_t* words, __m256i some) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), some);
}

// Does what place() does to float32 values without a curve, faster: float32 arithmetic finds most
// places (quick.h).
class Placer {
 public:
  explicit Placer(const Grid& grid) : grid_(grid) {
    const SureGrid sure = sure_grid(grid);
    inverse_ = _mm256_set1_ps(sure.inverse);
    rest_ = _mm256_set1_ps(sure.rest);
  }

  // Writes the words of 32 values. If well() is true afterwards, place() would write the same.
  void place(const float* x, __m256i* words) {
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    const __m256 slack = _mm256_set1_ps(kSureSlack);
    const __m256i half = _mm256_set1_epi32(__builtin_bit_cast(int32_t, kSureHalf));
    const __m256i minus_zero = _mm256_set1_epi32(static_cast<int32_t>(0x80000000));
    __m256i farthest = _mm256_setzero_si256();
    for (size_t k = 0; k < 4; ++k) {
      if (k % 2 == 0) prefetch(x + 8 * k);
      const __m256 values = _mm256_loadu_ps(x + 8 * k);
      words[k] = _mm256_cvtps_epi32(_mm256_mul_ps(values, inverse_));
      const __m256 place = _mm256_cvtepi32_ps(words[k]);
      const __m256 off = _mm256_fmadd_ps(values, rest_, _mm256_fmsub_ps(values, inverse_, place));
      const __m256 far =
          _mm256_fmadd_ps(_mm256_and_ps(magnitude, place), slack, _mm256_and_ps(magnitude, off));
      // As bits, so that NaN is far, too.
      farthest = _mm256_max_epu32(farthest, _mm256_castps_si256(far));
      special_ =
          _mm256_or_si256(special_, _mm256_cmpeq_epi32(_mm256_castps_si256(values), minus_zero));
    }
    const __m256i sure_all = _mm256_cmpeq_epi32(_mm256_min_epu32(farthest, half), farthest);
    if (_mm256_movemask_epi8(sure_all) == -1) return;
    for (size_t k = 0; k < 4; ++k) {
      int32_t placed[8];
      const __m256 values = _mm256_loadu_ps(x + 8 * k);
      good_ = _mm256_and_si256(good_, place_by_doubles(values, grid_, placed));
      words[k] = load(placed);
    }
  }

  // False: one of the values needs place().
  bool well() const {
    return _mm256_movemask_epi8(good_) == -1 && _mm256_testz_si256(special_, special_) != 0;
  }

 private:
  const Grid& grid_;
  __m256 inverse_, rest_;
  __m256i good_ = _mm256_set1_epi32(-1), special_ = _mm256_setzero_si256();
};

// split() in one pass.
class Splitter {
 public:
  Splitter(int32_t base, const Low<uint8_t>& low, uint8_t* symbols)
      : low_(low), symbols_(symbols), offset_(_mm256_set1_epi32(base)) {}

  // A group of words, which begins at place i.
  void split(const __m256i* words, size_t i) {
    const __m256i byte = _mm256_set1_epi32(255);
    const __m128i width = _mm_cvtsi32_si128(low_.width);
    const int whole = low_.width / 8, bits = low_.width % 8;
    __m256i above[4], some[4];
    for (size_t k = 0; k < 4; ++k) {
      above[k] = _mm256_sub_epi32(words[k], offset_);
      some[k] = _mm256_min_epu32(_mm256_srl_epi32(above[k], width), byte);
    }
    const __m256i symbol = low_bytes(some);
    greatest_ = _mm256_max_epu8(greatest_, symbol);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(symbols_ + i), symbol);
    for (int plane = 0; plane < whole; ++plane) {
      const __m128i at = _mm_cvtsi32_si128(8 * plane);
      for (size_t k = 0; k < 4; ++k) {
        some[k] = _mm256_and_si256(_mm256_srl_epi32(above[k], at), byte);
      }
      uint8_t* to = low_.bytes + static_cast<size_t>(plane) * low_.byte_stride + i;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), low_bytes(some));
    }
    if (bits == 0) return;
    // The sign bit of a byte is what is gathered: bit 7 first.
    const __m128i below = _mm_cvtsi32_si128(8 * whole), up = _mm_cvtsi32_si128(8 - bits);
    for (size_t k = 0; k < 4; ++k) {
      some[k] = _mm256_and_si256(_mm256_srl_epi32(above[k], below), byte);
    }
    __m256i left = _mm256_sll_epi16(low_bytes(some), up);
    for (int bit = bits; bit-- > 0; left = _mm256_add_epi8(left, left)) {
      const uint32_t gathered = static_cast<uint32_t>(_mm256_movemask_epi8(left));
      __builtin_memcpy(low_.bits + static_cast<size_t>(bit) * low_.bit_stride + i / 8, &gathered,
                       4);
    }
  }

  bool outlier() const {
    const __m256i outlier = _mm256_set1_epi8(static_cast<char>(kOutlier));
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(greatest_, outlier)) != 0;
  }

 private:
  const Low<uint8_t>& low_;
  uint8_t* const symbols_;
  const __m256i offset_;
  __m256i greatest_ = _mm256_setzero_si256();
};
