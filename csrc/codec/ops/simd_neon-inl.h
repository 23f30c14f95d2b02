// Vector operations of the level neon (aarch64). Included by simd-inl.h. A vector is a pair of registers: eight lanes, so that its codes fill whole bytes at every width.

struct F {
  float32x4_t a, b;
};
struct I {
  uint32x4_t a, b;
};
constexpr size_t kLanes = 8;

static inline F set(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
static inline I set_int(uint32_t x) { return {vdupq_n_u32(x), vdupq_n_u32(x)}; }
static inline I iota() {
  const uint32x4_t low = {0, 1, 2, 3};
  return {low, vaddq_u32(low, vdupq_n_u32(4))};
}
static inline F add(F x, F y) { return {vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b)}; }
static inline F sub(F x, F y) { return {vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b)}; }
static inline F mul(F x, F y) { return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b)}; }
static inline F div(F x, F y) { return {vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b)}; }
/// x * y + z and z - x * y with one rounding.
static inline F fused_add(F x, F y, F z) {
  return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b)};
}
static inline F fused_subtract_from(F z, F x, F y) {
  return {vfmsq_f32(z.a, x.a, y.a), vfmsq_f32(z.b, x.b, y.b)};
}
/// The second where either is NaN, as on x86; VMIN would give the NaN.
static inline F min(F x, F y) {
  return {vbslq_f32(vcltq_f32(x.a, y.a), x.a, y.a), vbslq_f32(vcltq_f32(x.b, y.b), x.b, y.b)};
}
static inline F max(F x, F y) {
  return {vbslq_f32(vcgtq_f32(x.a, y.a), x.a, y.a), vbslq_f32(vcgtq_f32(x.b, y.b), x.b, y.b)};
}
static inline float first_lane(F x) { return vgetq_lane_f32(x.a, 0); }
static inline float reduce_min(F x) { return vminvq_f32(vminq_f32(x.a, x.b)); }
static inline float reduce_max(F x) { return vmaxvq_f32(vmaxq_f32(x.a, x.b)); }

static inline I add(I x, I y) { return {vaddq_u32(x.a, y.a), vaddq_u32(x.b, y.b)}; }
static inline I mul_low(I x, I y) { return {vmulq_u32(x.a, y.a), vmulq_u32(x.b, y.b)}; }
static inline I exclusive_or(I x, I y) { return {veorq_u32(x.a, y.a), veorq_u32(x.b, y.b)}; }
static inline I exclusive_or(I x, I y, I z) { return exclusive_or(exclusive_or(x, y), z); }
static inline I and_(I x, I y) { return {vandq_u32(x.a, y.a), vandq_u32(x.b, y.b)}; }
static inline I min_unsigned(I x, I y) { return {vminq_u32(x.a, y.a), vminq_u32(x.b, y.b)}; }
template <int count>
static inline I shift_right(I x) {
  return {vshrq_n_u32(x.a, count), vshrq_n_u32(x.b, count)};
}
static inline I shift_right(I x, I counts) {
  return {vshlq_u32(x.a, vnegq_s32(vreinterpretq_s32_u32(counts.a))),
          vshlq_u32(x.b, vnegq_s32(vreinterpretq_s32_u32(counts.b)))};
}
/// NaN becomes 0.
static inline I to_int_nearest(F x) { return {vcvtnq_u32_f32(x.a), vcvtnq_u32_f32(x.b)}; }
static inline I to_int_truncated(F x) { return {vcvtq_u32_f32(x.a), vcvtq_u32_f32(x.b)}; }
static inline F to_float(I x) { return {vcvtq_f32_u32(x.a), vcvtq_f32_u32(x.b)}; }
static inline I bits_of(F x) { return {vreinterpretq_u32_f32(x.a), vreinterpretq_u32_f32(x.b)}; }
static inline F float_of(I x) { return {vreinterpretq_f32_u32(x.a), vreinterpretq_f32_u32(x.b)}; }
static inline I or_(I x, I y) { return {vorrq_u32(x.a, y.a), vorrq_u32(x.b, y.b)}; }
static inline I max_unsigned(I x, I y) { return {vmaxq_u32(x.a, y.a), vmaxq_u32(x.b, y.b)}; }
static inline uint32_t reduce_max_unsigned(I x) { return vmaxvq_u32(vmaxq_u32(x.a, x.b)); }
template <int count>
static inline I shift_left(I x) {
  return {vshlq_n_u32(x.a, count), vshlq_n_u32(x.b, count)};
}
/// y where p < q, else x.
static inline I select_less(F p, F q, I x, I y) {
  return {vbslq_u32(vcltq_f32(p.a, q.a), y.a, x.a), vbslq_u32(vcltq_f32(p.b, q.b), y.b, x.b)};
}
static inline F select_less(F p, F q, F x, F y) {
  return {vbslq_f32(vcltq_f32(p.a, q.a), y.a, x.a), vbslq_f32(vcltq_f32(p.b, q.b), y.b, x.b)};
}
/// x with the bits of y where p < q.
static inline I or_where_less(F p, F q, I x, I y) {
  return {vorrq_u32(x.a, vandq_u32(vcltq_f32(p.a, q.a), y.a)),
          vorrq_u32(x.b, vandq_u32(vcltq_f32(p.b, q.b), y.b))};
}
/// The second half of x, then the first half of y.
static inline I join_halves(I x, I y) { return {x.b, y.a}; }
/// Eight floats of x; then, in vectors with room for them, eight of y.
static inline F eight_of_each(const float* x, const float*) {
  return {vld1q_f32(x), vld1q_f32(x + 4)};
}
static inline F eight_of_each(float x, float) { return set(x); }
static inline void store_eight_of_each(float* x, float*, F v) {
  vst1q_f32(x, v.a), vst1q_f32(x + 4, v.b);
}
static inline I shift_left(I x, I counts) {
  return {vshlq_u32(x.a, vreinterpretq_s32_u32(counts.a)),
          vshlq_u32(x.b, vreinterpretq_s32_u32(counts.b))};
}
/// Codes that are bytes.
static inline I load_codes(const uint8_t* codes) {
  const uint16x8_t words = vmovl_u8(vld1_u8(codes));
  return {vmovl_u16(vget_low_u16(words)), vmovl_u16(vget_high_u16(words))};
}
/// Lane i is negated where bit i of the word is set.
static inline F negate(F x, uint64_t word) {
  const uint32x4_t bits = vdupq_n_u32(static_cast<uint32_t>(word));
  const int32x4_t low = {31, 30, 29, 28}, high = {27, 26, 25, 24};
  const uint32x4_t sign = vdupq_n_u32(0x80000000u);
  const I signs = {vandq_u32(vshlq_u32(bits, low), sign), vandq_u32(vshlq_u32(bits, high), sign)};
  return float_of(exclusive_or(bits_of(x), signs));
}
/// Of lanes that are `step` apart, the first gets the sum, the second the difference.
template <int step>
static inline F butterfly(F x) {
  if constexpr (step == 4) {
    return {vaddq_f32(x.a, x.b), vsubq_f32(x.a, x.b)};
  } else {
    const auto half = [](float32x4_t v) {
      const float32x4_t other = step == 1 ? vrev64q_f32(v) : vextq_f32(v, v, 2);
      const uint32x4_t second = step == 1 ? uint32x4_t{0, ~0u, 0, ~0u} : uint32x4_t{0, 0, ~0u, ~0u};
      return vbslq_f32(second, vsubq_f32(other, v), vaddq_f32(other, v));
    };
    return {half(x.a), half(x.b)};
  }
}
/// Entries of a table in memory; the index is below its length.
template <typename T>
static inline void gather_all(const T* table, I index, T* all) {
  uint32_t at[kLanes];
  vst1q_u32(at, index.a), vst1q_u32(at + 4, index.b);
  for (size_t i = 0; i < kLanes; ++i) all[i] = table[at[i]];
}
static inline F gather(const float* table, I index) {
  float all[kLanes];
  gather_all(table, index, all);
  return {vld1q_f32(all), vld1q_f32(all + 4)};
}
/// Entries of a table of floats, by the low bits of an index. `entries`: a power of two.
template <int entries>
struct Table {
  const float* memory;
  /// The table stays.
  explicit Table(const float* table) : memory(table) {}
  F operator()(I index) const { return gather(memory, and_(index, set_int(entries - 1))); }
};
/// From this many entries on a gather() is faster.
constexpr int kSlowTable = 64;

/// 1 is added to x where p > q.
static inline I increment_where_greater(I x, F p, F q) {
  return {vsubq_u32(x.a, vcgtq_f32(p.a, q.a)), vsubq_u32(x.b, vcgtq_f32(p.b, q.b))};
}

/// The code of a position times 2^24: its integer part, and 1 more where its fraction exceeds
/// random_unit(). As of avx512.
template <bool full>
struct RoundUp {
  static constexpr float kScale = 0x1p24f;
  I top;
  explicit RoundUp(float levels) : top(set_int(static_cast<uint32_t>(levels) << 24)) {}
  static I limit(I codes) { return codes; }
  I operator()(F position, I bits) const {
    const I fixed = {vcvtpq_u32_f32(position.a), vcvtpq_u32_f32(position.b)};
    return shift_right<24>(add(min_unsigned(fixed, top), shift_right<8>(bits)));
  }
};

/// The lanes in which a NaN was met, as bits that are 0.
struct Nans {
  uint32x4_t ordered;
};
static inline Nans nans(F x, F y) {
  const uint32x4_t p = vandq_u32(vceqq_f32(x.a, x.a), vceqq_f32(x.b, x.b));
  const uint32x4_t q = vandq_u32(vceqq_f32(y.a, y.a), vceqq_f32(y.b, y.b));
  return {vandq_u32(p, q)};
}
static inline Nans either(Nans x, Nans y) { return {vandq_u32(x.ordered, y.ordered)}; }
static inline bool any(Nans x) { return vminvq_u32(x.ordered) == 0; }
/// x, each NaN as the one of base/nan.h.
static inline F one_nan(F x) {
  const F nan = float_of(set_int(kNan));
  return {vbslq_f32(vceqq_f32(x.a, x.a), x.a, nan.a), vbslq_f32(vceqq_f32(x.b, x.b), x.b, nan.b)};
}

static inline F widen(Float16, uint16x8_t bits) {
  const float16x8_t halves = vreinterpretq_f16_u16(bits);
  return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_f32_f16(vget_high_f16(halves))};
}
static inline F widen(BFloat16, uint16x8_t bits) {
  return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(bits), 16)),
          vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(bits), 16))};
}
static inline uint8x16_t load_bytes(const std::byte* x) {
  return vld1q_u8(reinterpret_cast<const uint8_t*>(x));
}
static inline void store_16(void* out, uint8x16_t bytes) {
  vst1q_u8(static_cast<uint8_t*>(out), bytes);
}
static inline F load(Float32, const std::byte* x) {
  return {vreinterpretq_f32_u8(load_bytes(x)), vreinterpretq_f32_u8(load_bytes(x + 16))};
}
template <typename T>
static inline F load(T type, const std::byte* x) {
  return widen(type, vreinterpretq_u16_u8(load_bytes(x)));
}
/// The first n < kLanes values; 0 in the other lanes. Touches no other memory.
template <typename T>
static inline F load_first(T type, const std::byte* x, size_t n) {
  std::byte part[kLanes * T::kBytes] = {};
  __builtin_memcpy(part, x, n * T::kBytes);
  return load(type, part);
}
static inline F blend_first(size_t n, F x, F others) {
  const I lane = iota();
  const uint32x4_t count = vdupq_n_u32(static_cast<uint32_t>(n));
  return {vbslq_f32(vcltq_u32(lane.a, count), x.a, others.a),
          vbslq_f32(vcltq_u32(lane.b, count), x.b, others.b)};
}

static inline uint16x4_t narrow(Float16, float32x4_t x) {
  const uint16x4_t rounded = vreinterpret_u16_f16(vcvt_f16_f32(x));
  return vbsl_u16(vmovn_u32(vceqq_f32(x, x)), rounded, vdup_n_u16(kHalfNan));
}
static inline uint16x4_t narrow(BFloat16, float32x4_t x) {
  const uint32x4_t bits = vreinterpretq_u32_f32(x);
  const uint32x4_t high = vshrq_n_u32(bits, 16);
  const uint32x4_t odd = vandq_u32(high, vdupq_n_u32(1));
  const uint32x4_t rounded = vshrq_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
  return vmovn_u32(vbslq_u32(vceqq_f32(x, x), rounded, vdupq_n_u32(kBFloat16Nan)));
}
static inline void store(Float32, std::byte* y, F x) {
  store_16(y, vreinterpretq_u8_f32(x.a));
  store_16(y + 16, vreinterpretq_u8_f32(x.b));
}
template <typename T>
static inline void store(T type, std::byte* y, F x) {
  const uint16x8_t both = vcombine_u16(narrow(type, x.a), narrow(type, x.b));
  store_16(y, vreinterpretq_u8_u16(both));
}
template <typename T>
static inline void store_first(T type, std::byte* y, size_t n, F x) {
  std::byte part[kLanes * T::kBytes];
  store(type, part, x);
  __builtin_memcpy(y, part, n * T::kBytes);
}

/// Dwords below 256 to bytes, in order.
static inline uint8x8_t to_bytes(I x) {
  return vmovn_u16(vcombine_u16(vmovn_u32(x.a), vmovn_u32(x.b)));
}
static inline void store_bytes(uint8_t* out, I x) { vst1_u8(out, to_bytes(x)); }
template <typename Bucket>
static inline void store_bytes(uint8_t* out, I p, I q, I r, I s, const Bucket&) {
  vst1q_u8(out, vcombine_u8(to_bytes(p), to_bytes(q)));
  vst1q_u8(out + 16, vcombine_u8(to_bytes(r), to_bytes(s)));
}

/// kLanes codes from the start of a window of 16 bytes.
struct Unpack {
  uint8x16_t shuffle[2];
  I shift, mask;
  Unpack(int bits, int phase) : mask(set_int((1u << bits) - 1)) {
    const UnpackTable& table = kUnpack.of[bits][phase];
    shuffle[0] = vld1q_u8(table.shuffle), shuffle[1] = vld1q_u8(table.shuffle + 16);
    shift = {vld1q_u32(table.shift), vld1q_u32(table.shift + 4)};
  }
  I operator()(const std::byte* window) const {
    const uint8x16_t bytes = load_bytes(window);
    const I spread = {vreinterpretq_u32_u8(vqtbl1q_u8(bytes, shuffle[0])),
                      vreinterpretq_u32_u8(vqtbl1q_u8(bytes, shuffle[1]))};
    return and_(shift_right(spread, shift), mask);
  }
};

/// 16 codes, a byte each, to 2 * bits bytes. Writes 16 bytes.
/// Codes and bytes of one step, and the bytes that it may touch.
constexpr size_t kPackCodes = 16;
struct Pack {
  uint8x16_t pair, squeeze;
  uint16x8_t quad;
  int64x2_t shift;
  explicit Pack(int bits)
      : pair(vld1q_u8(kPack.of[bits].pair)),
        squeeze(vld1q_u8(kPack.of[bits].squeeze)),
        quad(vld1q_u16(kPack.of[bits].quad)),
        shift(vdupq_n_s64(4 * bits)) {}
  void operator()(const uint8_t* codes, std::byte* out) const {
    const uint8x16_t bytes = vld1q_u8(codes);
    const uint16x8_t words =
        vpaddq_u16(vmull_u8(vget_low_u8(bytes), vget_low_u8(pair)), vmull_high_u8(bytes, pair));
    const uint32x4_t dwords =
        vpaddq_u32(vmull_u16(vget_low_u16(words), vget_low_u16(quad)), vmull_high_u16(words, quad));
    const uint64x2_t both = vreinterpretq_u64_u32(dwords);
    const uint64x2_t high = vshlq_u64(vshrq_n_u64(both, 32), shift);
    const uint64x2_t low = vandq_u64(both, vdupq_n_u64(0xffffffff));
    store_16(out, vqtbl1q_u8(vreinterpretq_u8_u64(vorrq_u64(low, high)), squeeze));
  }
};
