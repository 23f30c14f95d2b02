// Vector operations of the level avx512: F, BW, VL, DQ. Included by simd-inl.h.

using F = __m512;
using I = __m512i;
constexpr size_t kLanes = 16;

static inline __mmask16 first(size_t n) { return static_cast<__mmask16>((1u << n) - 1); }

static inline F set(float x) { return _mm512_set1_ps(x); }
static inline I set_int(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
static inline I iota() {
  return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
static inline F add(F a, F b) { return _mm512_add_ps(a, b); }
static inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
static inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
static inline F div(F a, F b) { return _mm512_div_ps(a, b); }
/// a * b + c and c - a * b with one rounding.
static inline F fused_add(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
static inline F fused_subtract_from(F c, F a, F b) { return _mm512_fnmadd_ps(a, b, c); }
static inline F min(F a, F b) { return _mm512_min_ps(a, b); }
static inline F max(F a, F b) { return _mm512_max_ps(a, b); }
static inline float first_lane(F a) { return _mm512_cvtss_f32(a); }
static inline float reduce_min(F a) { return _mm512_reduce_min_ps(a); }
static inline float reduce_max(F a) { return _mm512_reduce_max_ps(a); }

static inline I add(I a, I b) { return _mm512_add_epi32(a, b); }
static inline I mul_low(I a, I b) { return _mm512_mullo_epi32(a, b); }
static inline I exclusive_or(I a, I b) { return _mm512_xor_si512(a, b); }
static inline I exclusive_or(I a, I b, I c) { return _mm512_ternarylogic_epi32(a, b, c, 0x96); }
static inline I and_(I a, I b) { return _mm512_and_si512(a, b); }
static inline I min_unsigned(I a, I b) { return _mm512_min_epu32(a, b); }
template <int count>
static inline I shift_right(I a) {
  return _mm512_srli_epi32(a, count);
}
static inline I shift_right(I a, I counts) { return _mm512_srlv_epi32(a, counts); }
static inline I to_int_nearest(F a) { return _mm512_cvtps_epi32(a); }
static inline I to_int_truncated(F a) { return _mm512_cvttps_epi32(a); }
static inline F to_float(I a) { return _mm512_cvtepi32_ps(a); }
static inline I bits_of(F a) { return _mm512_castps_si512(a); }
static inline F float_of(I a) { return _mm512_castsi512_ps(a); }
static inline I or_(I a, I b) { return _mm512_or_si512(a, b); }
static inline I max_unsigned(I a, I b) { return _mm512_max_epu32(a, b); }
static inline uint32_t reduce_max_unsigned(I a) { return _mm512_reduce_max_epu32(a); }
template <int count>
static inline I shift_left(I a) {
  return _mm512_slli_epi32(a, count);
}
/// b where x < y, else a.
static inline I select_less(F x, F y, I a, I b) {
  return _mm512_mask_mov_epi32(a, _mm512_cmp_ps_mask(x, y, _CMP_LT_OQ), b);
}
static inline F select_less(F x, F y, F a, F b) {
  return _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(x, y, _CMP_LT_OQ), b);
}
/// a with the bits of b where x < y.
static inline I or_where_less(F x, F y, I a, I b) {
  return _mm512_mask_or_epi32(a, _mm512_cmp_ps_mask(x, y, _CMP_LT_OQ), a, b);
}
/// The second half of a, then the first half of b.
static inline I join_halves(I a, I b) { return _mm512_shuffle_i64x2(a, b, 0x4e); }
/// Eight floats of a; then, in vectors with room for them, eight of b.
static inline F eight_of_each(const float* a, const float* b) {
  return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(a)), _mm256_loadu_ps(b), 1);
}
static inline F eight_of_each(float a, float b) {
  return _mm512_insertf32x8(set(a), _mm256_set1_ps(b), 1);
}
static inline void store_eight_of_each(float* a, float* b, F v) {
  _mm256_storeu_ps(a, _mm512_castps512_ps256(v));
  _mm256_storeu_ps(b, _mm512_extractf32x8_ps(v, 1));
}
static inline I shift_left(I a, I counts) { return _mm512_sllv_epi32(a, counts); }
/// Codes that are bytes.
static inline I load_codes(const uint8_t* codes) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
}
/// Lane i is negated where bit i of the word is set.
static inline F negate(F a, uint64_t word) {
  const I bits = bits_of(a);
  return float_of(
      _mm512_mask_xor_epi32(bits, static_cast<__mmask16>(word), bits, set_int(0x80000000u)));
}
/// Of lanes that are `step` apart, the first gets the sum, the second the difference.
template <int step>
static inline F butterfly(F a) {
  F other;
  if constexpr (step == 1) other = _mm512_permute_ps(a, 0xb1);
  if constexpr (step == 2) other = _mm512_permute_ps(a, 0x4e);
  if constexpr (step == 4) other = _mm512_shuffle_f32x4(a, a, 0xb1);
  if constexpr (step == 8) other = _mm512_shuffle_f32x4(a, a, 0x4e);
  // other + a or other - a with one rounding, as add() and sub(); on other units than the adders.
  const auto sign = [](int lane) { return lane & step ? -1.0f : 1.0f; };
  const F signs =
      _mm512_setr_ps(sign(0), sign(1), sign(2), sign(3), sign(4), sign(5), sign(6), sign(7),
                     sign(8), sign(9), sign(10), sign(11), sign(12), sign(13), sign(14), sign(15));
  return fused_add(a, signs, other);
}
/// Entries of a table of floats, by the low bits of an index. `entries`: a power of two.
template <int entries>
struct Table {
  Table<entries / 2> low, high;
  explicit Table(const float* table) : low(table), high(table + entries / 2) {}
  F operator()(I index) const {
    return _mm512_mask_blend_ps(_mm512_test_epi32_mask(index, set_int(entries / 2)), low(index),
                                high(index));
  }
};
template <int entries>
  requires(entries <= 32)
struct Table<entries> {
  F low, high;
  explicit Table(const float* table) {
    alignas(64) float all[32];
    for (int i = 0; i < 32; ++i) all[i] = table[i % entries];
    low = _mm512_load_ps(all), high = _mm512_load_ps(all + 16);
  }
  F operator()(I index) const {
    if constexpr (entries <= 16) return _mm512_permutexvar_ps(index, low);
    return _mm512_permutex2var_ps(low, index, high);
  }
};
/// From this many entries on a gather() is faster.
constexpr int kSlowTable = 256;
/// Entries of a table in memory; the index is below its length.
static inline F gather(const float* table, I index) { return _mm512_i32gather_ps(index, table, 4); }

/// 1 is added to a where x > y.
static inline I increment_where_greater(I a, F x, F y) {
  return _mm512_mask_add_epi32(a, _mm512_cmp_ps_mask(x, y, _CMP_GT_OQ), a, _mm512_set1_epi32(1));
}

/// The code of a position times 2^24: its integer part, and 1 more where its fraction exceeds
/// random_unit(). A position from 1 on is a multiple of 2^-23, a smaller one is rounded up to one
/// of 2^-24, which changes no comparison; the sum carries where the fraction is larger. A position
/// may exceed the highest code by some 2^-16, which must not carry: with fewer than 8 bits that is
/// mended later, by limit(), in 64 codes at once.
template <bool full>
struct RoundUp {
  static constexpr float kScale = 0x1p24f;
  I top;
  explicit RoundUp(float levels)
      : top(full ? set_int(static_cast<uint32_t>(levels) << 24)
                 : _mm512_set1_epi8(static_cast<char>(levels))) {}
  /// Codes limited to the top code, as bytes or as dwords.
  I limit(I codes) const { return full ? codes : _mm512_min_epu8(codes, top); }
  I operator()(F position, I bits) const {
    const I fixed = _mm512_cvt_roundps_epu32(position, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
    return shift_right<24>(add(full ? min_unsigned(fixed, top) : fixed, shift_right<8>(bits)));
  }
};

/// A set of lanes in which a NaN was met.
using Nans = __mmask16;
static inline Nans nans(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q); }
static inline Nans either(Nans a, Nans b) { return static_cast<Nans>(a | b); }
static inline bool any(Nans a) { return a != 0; }
/// a, each NaN as the one of base/nan.h.
static inline F one_nan(F a) {
  return _mm512_mask_mov_ps(a, nans(a, a), _mm512_castsi512_ps(set_int(kNan)));
}

static inline F load(Float32, const std::byte* x) { return _mm512_loadu_ps(x); }
static inline F load(Float16, const std::byte* x) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
}
static inline F load(BFloat16, const std::byte* x) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
/// The first n < kLanes values; 0 in the other lanes. Touches no other memory.
static inline F load_first(Float32, const std::byte* x, size_t n) {
  return _mm512_maskz_loadu_ps(first(n), x);
}
static inline F load_first(Float16, const std::byte* x, size_t n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), x));
}
static inline F load_first(BFloat16, const std::byte* x, size_t n) {
  const __m256i bits = _mm256_maskz_loadu_epi16(first(n), x);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
static inline F blend_first(size_t n, F a, F others) {
  return _mm512_mask_blend_ps(first(n), others, a);
}

static inline __m256i narrow(Float16, F a) {
  return _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline __m256i narrow(BFloat16, F a) {
  const I bits = bits_of(a);
  const I high = shift_right<16>(bits);
  const I odd = and_(high, set_int(1));
  const I rounded = shift_right<16>(add(bits, add(odd, set_int(0x7fff))));
  return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nans(a, a), set_int(kBFloat16Nan)));
}
static inline void store(Float32, std::byte* y, F a) { _mm512_storeu_ps(y, a); }
template <typename T>
static inline void store(T type, std::byte* y, F a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), narrow(type, a));
}
static inline void store_first(Float32, std::byte* y, size_t n, F a) {
  _mm512_mask_storeu_ps(y, first(n), a);
}
template <typename T>
static inline void store_first(T type, std::byte* y, size_t n, F a) {
  _mm256_mask_storeu_epi16(y, first(n), narrow(type, a));
}

/// 4 * kLanes dwords below 256 to bytes, in order.
template <typename Bucket>
static inline void store_bytes(uint8_t* out, I a, I b, I c, I d, const Bucket& bucket) {
  const I low = _mm512_packs_epi32(a, b), high = _mm512_packs_epi32(c, d);
  const I packed = bucket.limit(_mm512_packus_epi16(low, high));
  const I order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_si512(out, _mm512_permutexvar_epi32(order, packed));
}
static inline void store_bytes(uint8_t* out, I a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(a));
}

/// kLanes codes from a window of 16 bytes.
struct Unpack {
  I shuffle, shift, mask;
  Unpack(int bits, int phase)
      : shuffle(_mm512_load_si512(kUnpack.of[bits][phase].shuffle)),
        shift(_mm512_load_si512(kUnpack.of[bits][phase].shift)),
        mask(set_int((1u << bits) - 1)) {}
  I operator()(const std::byte* window) const {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(window));
    const I spread = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes), shuffle);
    return and_(shift_right(spread, shift), mask);
  }
};

/// 64 codes, a byte each, to 8 * bits bytes. Writes up to 16 bytes at once, in rising order.
/// Codes and bytes of one step, and the bytes that it may touch.
constexpr size_t kPackCodes = 64;
struct Pack {
  I pair, quad, squeeze, low;
  __m128i shift;
  size_t lane_bytes;
  int width;
  explicit Pack(int bits)
      : pair(broadcast(kPack.of[bits].pair)),
        quad(broadcast(kPack.of[bits].quad)),
        squeeze(broadcast(kPack.of[bits].squeeze)),
        low(_mm512_set1_epi64(0xffffffff)),
        shift(_mm_cvtsi32_si128(4 * bits)),
        lane_bytes(2 * static_cast<size_t>(bits)),
        width(bits) {}
  static I broadcast(const void* table) {
    return _mm512_broadcast_i32x4(_mm_load_si128(static_cast<const __m128i*>(table)));
  }
  void operator()(const uint8_t* codes, std::byte* out) const {
    const I bytes = _mm512_loadu_si512(codes);
    // Widths that divide a byte need no shuffle.
    if (width == 1) {
      const __mmask64 mask = _mm512_test_epi8_mask(bytes, bytes);
      __builtin_memcpy(out, &mask, sizeof mask);
      return;
    }
    const I words = _mm512_maddubs_epi16(pair, bytes);
    if (width == 4) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi16_epi8(words));
      return;
    }
    if (width == 2) {
      return store_lane(out, _mm512_cvtepi32_epi8(_mm512_madd_epi16(words, quad)));
    }
    const I dwords = _mm512_madd_epi16(words, quad);
    const I high = _mm512_sll_epi64(_mm512_srli_epi64(dwords, 32), shift);
    const I packed = _mm512_shuffle_epi8(_mm512_or_si512(and_(dwords, low), high), squeeze);
    store_lane(out, _mm512_castsi512_si128(packed));
    store_lane(out + lane_bytes, _mm512_extracti32x4_epi32(packed, 1));
    store_lane(out + 2 * lane_bytes, _mm512_extracti32x4_epi32(packed, 2));
    store_lane(out + 3 * lane_bytes, _mm512_extracti32x4_epi32(packed, 3));
  }
  static void store_lane(std::byte* out, __m128i lane) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), lane);
  }
};
