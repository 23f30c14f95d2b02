// The loops of `maxmin` over the vector operations of one level. A file of ops/foreach_level-inl.h.
//
// Encoding makes two passes over a bucket, the second from the first-level cache: extremes, then
// codes as bytes, which a Sink packs. So buckets need not start on byte borders, or be multiples of
// anything.

namespace cgx::maxmin {
namespace CGX_LEVEL {
namespace {

using namespace cgx::cpu;

#include "codec/ops/simd-inl.h"

/// Buckets whose extremes are found in one go, so that the long way from the last value to the meta
/// (folding lanes, divisions) of one hides behind the next; no more values than the first-level
/// cache keeps.
constexpr size_t kGroup = 8;
constexpr size_t kGroupValues = 1024;

// Positions on the scale of codes. A division costs as much as all else together, so buckets of
// ordinary size multiply by the reciprocal, in two parts high + low = 1/step (1 + 2^-48), on GPUs
// (1 + 2^-47). Proof that no code differs from the formula's, which divides and rounds; B is the
// integer significand of the step, in [2^23, 2^24), v = a / step exactly, a = x - min as rounded,
// and f(v) the code of v:
//
// Nearest. v' = a high + RN(a low), before it is rounded, is within v 2^-46.4 of v. f steps only at
// the middles m between a float k + 1/2 and a neighbour of it: m = (H 2^t +- 1) 2^e with H = 2k + 1
// < 2^9 and the bracket in [2^24, 2^25), so t >= 16. In units of ulp(step) 2^e, a is a multiple of
// 2^23, so a - step m is an integer D = -+B mod 2^16; it is not 0, for no quotient of floats is
// such a middle. |v - m| / v is at least |D| 2^-49. So no step lies between v and v' if 8 <= B mod
// 2^16 <= 2^16 - 8 or B mod 2^16 = 0.
//
// Stochastic. RN(v') = q is one of the two floats around v, so r = a - q step is exact, and RN(q +
// r high) = RN(v) (Markstein; Handbook of Floating-Point Arithmetic, 2nd ed., theorem 4.10) unless
// B = 2^24 - 1. What underflows is too small to matter: of v < 2^-24 only counts whether RN(v) > 0,
// which holds for every a > 0 in the buckets that are let through, and for q.

/// Any bucket. A NaN becomes 0x80000000 in the conversions, which the minimum turns into top = 0.
struct AnyBucket {
  F scale, offset, step;
  I top;
  AnyBucket(MaxMinMeta meta, float levels) {
    const MaxMinScale s = maxmin_scale(meta, levels);
    scale = set(s.scale), offset = set(s.offset), step = set(s.step);
    top = set_int(static_cast<uint32_t>(s.top));
  }
  static I limit(I codes) { return codes; }
  F position(F x) const { return div(sub(mul(x, scale), offset), step); }
  I nearest(F x) const { return min_unsigned(to_int_nearest(position(x)), top); }
  I stochastic(F x, I bits) const {
    const F u = unit_of(bits);
    const F p = position(x);
    const I floor = to_int_truncated(p);
    return min_unsigned(increment_where_greater(floor, sub(p, to_float(floor)), u), top);
  }
};

/// maxmin_by_reciprocal() ones. No position reaches top + 1/2.
struct NearestBucket {
  F offset, high, low;
  NearestBucket(MaxMinMeta meta, float) : offset(set(meta.min)) {
    const MaxMinReciprocal r = maxmin_reciprocal(meta.unit);
    high = set(r.high), low = set(r.low);
  }
  static I limit(I codes) { return codes; }
  I nearest(F x) const {
    const F a = sub(x, offset);
    return to_int_nearest(fused_add(a, high, mul(a, low)));
  }
};

/// stochastic_by_reciprocal() ones. Positions are multiplied by RoundUp::kScale, a power of two.
/// full: of 8 bits.
template <bool full>
struct StochasticBucket {
  F offset, high, low, step;
  RoundUp<full> round_up;
  StochasticBucket(MaxMinMeta meta, float levels)
      : offset(set(meta.min)),
        step(set(meta.unit * (1.0f / RoundUp<full>::kScale))),
        round_up(levels) {
    const MaxMinReciprocal r = maxmin_reciprocal(meta.unit);
    high = set(r.high * RoundUp<full>::kScale), low = set(r.low * RoundUp<full>::kScale);
  }
  I limit(I codes) const { return round_up.limit(codes); }
  I stochastic(F x, I bits) const {
    const F a = sub(x, offset);
    const F q = fused_add(a, high, mul(a, low));
    const F rest = fused_subtract_from(a, q, step);
    return round_up(fused_add(rest, high, q), bits);
  }
};

struct Nearest {
  static constexpr bool kNearest = true;
  template <bool full>
  using Bucket = NearestBucket;
  static bool by_reciprocal(MaxMinMeta meta) { return maxmin_by_reciprocal(meta); }
  Nearest(RandomKey, uint32_t) {}
  template <typename Bucket>
  inline CGX_INLINE I code(const Bucket& bucket, F x) {
    return bucket.nearest(x);
  }
};

struct Stochastic {
  static constexpr bool kNearest = false;
  template <bool full>
  using Bucket = StochasticBucket<full>;
  static bool by_reciprocal(MaxMinMeta meta) { return maxmin_stochastic_by_reciprocal(meta); }
  I weyl, high;
  Stochastic(RandomKey key, uint32_t index)
      : weyl(add(set_int(key.low + index * kRandomStep), mul_low(iota(), set_int(kRandomStep)))),
        high(set_int(key.high)) {}
  template <typename Bucket>
  inline CGX_INLINE I code(const Bucket& bucket, F x) {
    I bits = exclusive_or(weyl, shift_right<16>(weyl), high);
    weyl = add(weyl, set_int(static_cast<uint32_t>(kLanes) * kRandomStep));
    bits = mul_low(bits, set_int(0x7feb352du));
    bits = exclusive_or(bits, shift_right<15>(bits));
    bits = mul_low(bits, set_int(0x846ca68bu));
    return bucket.stochastic(x, bits);
  }
};

/// Codes as bytes; up to kLanes - 1 bytes beyond codes[n - 1] are overwritten.
template <typename T, typename Bucket, typename R>
static inline CGX_INLINE void quantize(T type, const std::byte* x, size_t n, const Bucket& bucket,
                                       R rounding, uint8_t* codes) {
  auto code = [&](size_t i)
                  CGX_INLINE { return rounding.code(bucket, load(type, x + i * T::kBytes)); };
  size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    const I a = code(i);
    const I b = code(i + kLanes);
    const I c = code(i + 2 * kLanes);
    const I d = code(i + 3 * kLanes);
    store_bytes(codes + i, a, b, c, d, bucket);
  }
  for (; i + kLanes <= n; i += kLanes) store_bytes(codes + i, bucket.limit(code(i)));
  if (i < n) {
    const F rest = load_first(type, x + i * T::kBytes, n - i);
    store_bytes(codes + i, bucket.limit(rounding.code(bucket, rest)));
  }
}

/// Codes of a bucket of n values, the first of which is number `index` of the call.
template <typename T, typename R, typename Bucket>
static inline CGX_INLINE void encode_bucket(const Bucket& bucket, const std::byte* x, size_t n,
                                            RandomKey key, uint64_t index, Sink& sink) {
  for (size_t i = 0; i < n;) {
    const uint64_t at = index + i;
    const uint64_t same_key = (uint64_t{1} << 32) - static_cast<uint32_t>(at);
    const size_t take = smaller(smaller(n - i, kSinkCodes - sink.fill), same_key);
    const R rounding(key_of_high(key, static_cast<uint32_t>(at >> 32)), static_cast<uint32_t>(at));
    if (uint8_t* bytes = sink.whole_bytes(take)) {
      quantize(T{}, x + i * T::kBytes, take, bucket, rounding, bytes);
      i += take;
      continue;
    }
    quantize(T{}, x + i * T::kBytes, take, bucket, rounding, sink.codes + sink.fill);
    sink.fill += take;
    i += take;
    if (sink.fill == kSinkCodes) sink.flush();
  }
}

static inline MaxMinMeta meta_of(const Part& part, const Extremes& e, const std::byte* x, size_t n,
                                 size_t bytes, float levels) {
  const bool zero = part.exact_zeros && e.min < 0.0f && e.max >= 0.0f && holds_zero(x, n, bytes);
  return zero ? maxmin_meta_with_zero(e.min, e.max, e.finite, levels)
              : maxmin_meta(e.min, e.max, e.finite, levels);
}

#if defined(CGX_ON_AVX2)
#include "codec/families/maxmin/pairs-inl.h"
#endif

template <typename T, typename R>
static void encode_as(const Part& part, const std::byte* x, RandomKey key, uint64_t index,
                      std::byte* meta_out, std::byte* codes) {
  const float levels = maxmin_levels(part.bits);
  Sink sink(codes, part.n, part.bits);
  MaxMinMeta metas[kGroup];
  size_t ready = 0, next = 0;  // metas
  size_t done = 0;
#if defined(CGX_ON_AVX2)
  if constexpr (R::kNearest) {
    done = encode_pairs(T{}, part, x, meta_out, sink);
    meta_out += done / part.bucket_size * sizeof(MaxMinMeta);
  }
#endif
  for (size_t start = done; start < part.n; start += part.bucket_size) {
    if (next == ready) {
      next = ready = 0;
      for (size_t at = start; at < part.n && ready < kGroup; at += part.bucket_size) {
        const size_t n = smaller(part.bucket_size, part.n - at);
        if (ready > 0 && at + n - start > kGroupValues) break;
        const std::byte* bucket = x + at * T::kBytes;
        const Extremes e = extremes(T{}, bucket, n);
        metas[ready++] = meta_of(part, e, bucket, n, T::kBytes, levels);
      }
      __builtin_memcpy(meta_out, metas, ready * sizeof(MaxMinMeta));
      meta_out += ready * sizeof(MaxMinMeta);
    }
    const MaxMinMeta meta = metas[next++];
    const size_t n = smaller(part.bucket_size, part.n - start);
    const std::byte* bucket = x + start * T::kBytes;
    if (R::by_reciprocal(meta) && part.bits == 8) {
      const typename R::template Bucket<true> fast(meta, levels);
      encode_bucket<T, R>(fast, bucket, n, key, index + start, sink);
    } else if (R::by_reciprocal(meta)) {
      const typename R::template Bucket<false> fast(meta, levels);
      encode_bucket<T, R>(fast, bucket, n, key, index + start, sink);
    } else {
      encode_bucket<T, R>(AnyBucket(meta, levels), bucket, n, key, index + start, sink);
    }
  }
  sink.flush();
}

template <typename T>
static void encode_rounding(const Part& part, const std::byte* x, Rounding rounding, RandomKey key,
                            uint64_t index, std::byte* meta, std::byte* codes) {
  if (rounding == Rounding::kNearest) {
    encode_as<T, Nearest>(part, x, key, index, meta, codes);
  } else {
    encode_as<T, Stochastic>(part, x, key, index, meta, codes);
  }
}

static void encode(const Part& part, const std::byte* x, DType dtype, Rounding rounding,
                   RandomKey key, uint64_t index, std::byte* meta, std::byte* codes) {
  switch (dtype) {
    default:  // float32
      return encode_rounding<Float32>(part, x, rounding, key, index, meta, codes);
    case DType::kFloat16:
      return encode_rounding<Float16>(part, x, rounding, key, index, meta, codes);
    case DType::kBFloat16:
      return encode_rounding<BFloat16>(part, x, rounding, key, index, meta, codes);
  }
}

struct RegularValue {
  F min, unit;
  explicit RegularValue(MaxMinMeta meta) : min(set(meta.min)), unit(set(meta.unit)) {}
  F operator()(I code) const { return add(min, mul(unit, to_float(code))); }
};

struct WideValue {
  F half_min, unit;
  explicit WideValue(MaxMinMeta meta) : half_min(set(0.5f * meta.min)), unit(set(-meta.unit)) {}
  F operator()(I code) const {
    const F half = add(half_min, mul(unit, to_float(code)));
    return mul(set(2.0f), min(half, set(0x1.fffffep126f)));
  }
};

/// One bucket, whose codes start `phase` bits into *in. Windows of 16 bytes are read where they fit
/// before `end`. A NaN among the sums is rare: their products are added up, one operation for two vectors,
/// and the sums are looked through where that is one, as it may be of large values, too.
template <bool add_to, typename Value>
static inline void decode_bucket(const std::byte* in, const std::byte* end, int bits, int phase,
                                 size_t n, Value value, float* y) {
  const Unpack unpack(bits, phase);
  const size_t step = kLanes / 8 * static_cast<size_t>(bits);
  const size_t left = static_cast<size_t>(end - in);
  const size_t windows = left < 16 ? 0 : (left - 16) / step + 1;
  const size_t fast = smaller(n / kLanes, windows) * kLanes;
  std::byte* out = reinterpret_cast<std::byte*>(y);
  size_t i = 0;
  F all = set(0.0f);
  const auto write = [&]() CGX_INLINE {
    F v = value(unpack(in));
    in += step;
    std::byte* at = out + 4 * i;
    if constexpr (add_to) v = add(load(Float32{}, at), v);
    store(Float32{}, at, v);
    i += kLanes;
    return v;
  };
  while (i + kLanes < fast) {
    const F v = write(), w = write();
    if constexpr (add_to) all = fused_add(v, w, all);
  }
  if (i < fast) all = add(all, write());
  if (add_to && any(nans(all, all))) make_one_nan(Float32{}, out, fast);
  for (; i < n; i += kLanes) {
    std::byte window[16] = {};
    __builtin_memcpy(window, in, smaller(16, static_cast<size_t>(end - in)));
    const F v = value(unpack(window));
    std::byte* at = out + 4 * i;
    if (n - i >= kLanes) {
      in += step;
      store(Float32{}, at, add_to ? one_nan(add(load(Float32{}, at), v)) : v);
    } else {
      const F sum = add_to ? one_nan(add(load_first(Float32{}, at, n - i), v)) : v;
      store_first(Float32{}, at, n - i, sum);
    }
  }
}

template <bool add_to>
static void decode_as(const Part& part, const std::byte* meta_in, const std::byte* codes,
                      float* y) {
  const size_t bits = static_cast<size_t>(part.bits);
  const std::byte* end = codes + (part.n * bits + 7) / 8;
  for (size_t start = 0; start < part.n; start += part.bucket_size) {
    const size_t n = smaller(part.bucket_size, part.n - start);
    MaxMinMeta meta;
    __builtin_memcpy(&meta, meta_in, sizeof meta);
    meta_in += sizeof meta;
    const std::byte* in = codes + start * bits / 8;
    const int phase = static_cast<int>(start * bits % 8);
    if (meta.unit < 0.0f) {
      decode_bucket<add_to>(in, end, part.bits, phase, n, WideValue(meta), y + start);
    } else {
      decode_bucket<add_to>(in, end, part.bits, phase, n, RegularValue(meta), y + start);
    }
  }
}

static void decode(const Part& part, const std::byte* meta, const std::byte* codes, float* y,
                   bool add_to) {
  if (add_to) {
    decode_as<true>(part, meta, codes, y);
  } else {
    decode_as<false>(part, meta, codes, y);
  }
}

constexpr Loops kLoops{encode, decode};

}  // namespace
}  // namespace CGX_LEVEL
}  // namespace cgx::maxmin
