// Vector operations of the level avx2 (with F16C). Included by simd-inl.h.

using F = __m256;
using I = __m256i;
constexpr size_t kLanes = 8;

static inline I first(size_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline F set(float x) { return _mm256_set1_ps(x); }
static inline I set_int(uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
static inline I iota() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
static inline F add(F a, F b) { return _mm256_add_ps(a, b); }
static inline F sub(F a, F b) { return _mm256_sub_ps(a, b); }
static inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
static inline F div(F a, F b) { return _mm256_div_ps(a, b); }
/// a * b + c and c - a * b with one rounding.
static inline F fused_add(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
static inline F fused_subtract_from(F c, F a, F b) { return _mm256_fnmadd_ps(a, b, c); }
static inline F min(F a, F b) { return _mm256_min_ps(a, b); }
static inline F max(F a, F b) { return _mm256_max_ps(a, b); }
static inline float first_lane(F a) { return _mm256_cvtss_f32(a); }
static inline float reduce_min(F a) {
  __m128 v = _mm_min_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  v = _mm_min_ps(v, _mm_movehl_ps(v, v));
  return _mm_cvtss_f32(_mm_min_ss(v, _mm_movehdup_ps(v)));
}
/// Folded in halves.
static inline float sum_of_lanes(F a) {
  __m128 v = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  v = _mm_add_ps(v, _mm_movehl_ps(v, v));
  return _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)));
}
static inline float reduce_max(F a) {
  __m128 v = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  v = _mm_max_ps(v, _mm_movehl_ps(v, v));
  return _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)));
}

static inline I add(I a, I b) { return _mm256_add_epi32(a, b); }
static inline I mul_low(I a, I b) { return _mm256_mullo_epi32(a, b); }
static inline I exclusive_or(I a, I b) { return _mm256_xor_si256(a, b); }
static inline I exclusive_or(I a, I b, I c) { return exclusive_or(exclusive_or(a, b), c); }
static inline I and_(I a, I b) { return _mm256_and_si256(a, b); }
static inline I min_unsigned(I a, I b) { return _mm256_min_epu32(a, b); }
template <int count>
static inline I shift_right(I a) {
  return _mm256_srli_epi32(a, count);
}
static inline I shift_right(I a, I counts) { return _mm256_srlv_epi32(a, counts); }
static inline I to_int_nearest(F a) { return _mm256_cvtps_epi32(a); }
static inline I to_int_truncated(F a) { return _mm256_cvttps_epi32(a); }
static inline F to_float(I a) { return _mm256_cvtepi32_ps(a); }
static inline I bits_of(F a) { return _mm256_castps_si256(a); }
static inline F float_of(I a) { return _mm256_castsi256_ps(a); }
static inline I or_(I a, I b) { return _mm256_or_si256(a, b); }
static inline I max_unsigned(I a, I b) { return _mm256_max_epu32(a, b); }
static inline uint32_t reduce_max_unsigned(I a) {
  __m128i v = _mm_max_epu32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  v = _mm_max_epu32(v, _mm_shuffle_epi32(v, 0x4e));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epu32(v, _mm_shuffle_epi32(v, 0xb1))));
}
template <int count>
static inline I shift_left(I a) {
  return _mm256_slli_epi32(a, count);
}
/// b where x < y, else a.
static inline F select_less(F x, F y, F a, F b) {
  return _mm256_blendv_ps(a, b, _mm256_cmp_ps(x, y, _CMP_LT_OQ));
}
static inline I select_less(F x, F y, I a, I b) {
  return bits_of(select_less(x, y, float_of(a), float_of(b)));
}
/// a with the bits of b where x < y.
static inline I or_where_less(F x, F y, I a, I b) {
  return or_(a, and_(bits_of(_mm256_cmp_ps(x, y, _CMP_LT_OQ)), b));
}
/// The second half of a, then the first half of b.
static inline I join_halves(I a, I b) { return _mm256_permute2x128_si256(a, b, 0x21); }
/// Eight floats of a; then, in vectors with room for them, eight of b.
static inline F eight_of_each(const float* a, const float*) { return _mm256_loadu_ps(a); }
static inline F eight_of_each(float a, float) { return set(a); }
static inline void store_eight_of_each(float* a, float*, F v) { _mm256_storeu_ps(a, v); }
static inline I shift_left(I a, I counts) { return _mm256_sllv_epi32(a, counts); }
/// Codes that are bytes.
static inline I load_codes(const uint8_t* codes) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
}
/// Lane i is negated where bit i of the word is set.
static inline F negate(F a, uint64_t word) {
  const I bits = set_int(static_cast<uint32_t>(word));
  const I place = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
  const I signs = and_(_mm256_sllv_epi32(bits, place), set_int(0x80000000u));
  return float_of(exclusive_or(bits_of(a), signs));
}
/// Of lanes that are `step` apart, the first gets the sum, the second the difference.
template <int step>
static inline F butterfly(F a) {
  F other;
  if constexpr (step == 1) other = _mm256_permute_ps(a, 0xb1);
  if constexpr (step == 2) other = _mm256_permute_ps(a, 0x4e);
  if constexpr (step == 4) other = _mm256_permute2f128_ps(a, a, 1);
  constexpr uint32_t kFirst = 0x3f800000u, kSecond = 0xbf800000u;  // 1, -1: no rounding
  const I signs =
      _mm256_setr_epi32(kFirst, static_cast<int>(step == 1 ? kSecond : kFirst),
                        static_cast<int>(step == 2 ? kSecond : kFirst),
                        static_cast<int>(step == 4 ? kFirst : kSecond),
                        static_cast<int>(step == 4 ? kSecond : kFirst),
                        static_cast<int>(step == 2 ? kFirst : kSecond),
                        static_cast<int>(step == 1 ? kFirst : kSecond), static_cast<int>(kSecond));
  return fused_add(a, float_of(signs), other);
}
/// Entries of a table of floats, by the low bits of an index. `entries`: a power of two.
template <int entries>
struct Table {
  Table<entries / 2> low, high;
  explicit Table(const float* table) : low(table), high(table + entries / 2) {}
  F operator()(I index) const {
    constexpr int kPlace = entries == 16 ? 28 : entries == 32 ? 27 : entries == 64 ? 26 : 25;
    static_assert(entries <= 128);
    return _mm256_blendv_ps(low(index), high(index), float_of(shift_left<kPlace>(index)));
  }
};
template <int entries>
  requires(entries <= 8)
struct Table<entries> {
  F all;
  explicit Table(const float* table) {
    alignas(32) float entry[8];
    for (int i = 0; i < 8; ++i) entry[i] = table[i % entries];
    all = _mm256_load_ps(entry);
  }
  F operator()(I index) const {
    if constexpr (entries <= 4) return _mm256_permutevar_ps(all, index);  // sooner there
    return _mm256_permutevar8x32_ps(all, index);
  }
};
/// From this many entries on a gather() is faster.
constexpr int kSlowTable = 64;
/// Entries of a table in memory; the index is below its length.
static inline F gather(const float* table, I index) { return _mm256_i32gather_ps(table, index, 4); }

/// 1 is added to a where x > y.
static inline I increment_where_greater(I a, F x, F y) {
  return _mm256_sub_epi32(a, bits_of(_mm256_cmp_ps(x, y, _CMP_GT_OQ)));
}

static inline F unit_of(I bits);  // random-inl.h

/// The code of a position: its integer part, and 1 more where its fraction exceeds random_unit().
template <bool full>
struct RoundUp {
  static constexpr float kScale = 1.0f;
  I top;
  explicit RoundUp(float levels) : top(set_int(static_cast<uint32_t>(levels))) {}
  static I limit(I codes) { return codes; }
  I operator()(F position, I bits) const {
    const I floor = to_int_truncated(position);
    const F fraction = sub(position, to_float(floor));
    return min_unsigned(increment_where_greater(floor, fraction, unit_of(bits)), top);
  }
};

/// A set of lanes in which a NaN was met.
using Nans = F;
static inline Nans nans(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_UNORD_Q); }
static inline Nans either(Nans a, Nans b) { return _mm256_or_ps(a, b); }
static inline bool any(Nans a) { return _mm256_movemask_ps(a) != 0; }
/// a, each NaN as the one of base/nan.h.
static inline F one_nan(F a) { return _mm256_blendv_ps(a, float_of(set_int(kNan)), nans(a, a)); }

static inline F widen(Float16, __m128i bits) { return _mm256_cvtph_ps(bits); }
static inline F widen(BFloat16, __m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
static inline F load(Float32, const std::byte* x) {
  return _mm256_loadu_ps(reinterpret_cast<const float*>(x));
}
template <typename T>
static inline F load(T type, const std::byte* x) {
  return widen(type, _mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
}
/// The first n < kLanes values; 0 in the other lanes. Touches no other memory.
static inline F load_first(Float32, const std::byte* x, size_t n) {
  return _mm256_maskload_ps(reinterpret_cast<const float*>(x), first(n));
}
template <typename T>
static inline F load_first(T type, const std::byte* x, size_t n) {
  alignas(16) uint16_t part[kLanes] = {};
  __builtin_memcpy(part, x, 2 * n);
  return widen(type, _mm_load_si128(reinterpret_cast<const __m128i*>(part)));
}
static inline F blend_first(size_t n, F a, F others) {
  return _mm256_blendv_ps(others, a, _mm256_castsi256_ps(first(n)));
}

static inline __m128i narrow(Float16, F a) {
  return _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline __m128i narrow(BFloat16, F a) {
  const I bits = bits_of(a);
  const I high = shift_right<16>(bits);
  const I odd = and_(high, set_int(1));
  const I rounded = shift_right<16>(add(bits, add(odd, set_int(0x7fff))));
  const I chosen = _mm256_blendv_epi8(rounded, set_int(kBFloat16Nan), bits_of(nans(a, a)));
  return _mm_packus_epi32(_mm256_castsi256_si128(chosen), _mm256_extracti128_si256(chosen, 1));
}
static inline void store(Float32, std::byte* y, F a) {
  _mm256_storeu_ps(reinterpret_cast<float*>(y), a);
}
template <typename T>
static inline void store(T type, std::byte* y, F a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(y), narrow(type, a));
}
static inline void store_first(Float32, std::byte* y, size_t n, F a) {
  _mm256_maskstore_ps(reinterpret_cast<float*>(y), first(n), a);
}
template <typename T>
static inline void store_first(T type, std::byte* y, size_t n, F a) {
  alignas(16) uint16_t part[kLanes];
  _mm_store_si128(reinterpret_cast<__m128i*>(part), narrow(type, a));
  __builtin_memcpy(y, part, 2 * n);
}

/// 4 * kLanes dwords below 256 to bytes, in order.
template <typename Bucket>
static inline void store_bytes(uint8_t* out, I a, I b, I c, I d, const Bucket&) {
  const I packed = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
  const I order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<I*>(out), _mm256_permutevar8x32_epi32(packed, order));
}
static inline void store_bytes(uint8_t* out, I a) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_packus_epi16(words, words));
}

/// kLanes codes from the start of a window of 16 bytes.
struct Unpack {
  I shuffle, shift, mask;
  Unpack(int bits, int phase)
      : shuffle(_mm256_load_si256(reinterpret_cast<const I*>(kUnpack.of[bits][phase].shuffle))),
        shift(_mm256_load_si256(reinterpret_cast<const I*>(kUnpack.of[bits][phase].shift))),
        mask(set_int((1u << bits) - 1)) {}
  I operator()(const std::byte* window) const { return and_(unmasked(window), mask); }
  /// With bits of the next codes above each.
  I unmasked(const std::byte* window) const {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(window));
    return shift_right(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), shuffle), shift);
  }
};

#include "codec/ops/simd_avx2_pack-inl.h"
