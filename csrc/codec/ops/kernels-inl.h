// Conversions and other loops without a family, over the vector operations of one level. A file of
// foreach_level-inl.h.

namespace cgx::cpu {
namespace CGX_LEVEL {
namespace {

#include "codec/ops/simd-inl.h"

/// 0 x is 0 for finite values and NaN for others, and a sum that has met a NaN stays one.
template <typename T>
static bool all_finite_as(T type, const std::byte* x, size_t n) {
  constexpr size_t kStride = 64 * kLanes;
  const F zero = set(0.0f);
  const auto load_at = [=](size_t i) CGX_INLINE { return load(type, x + i * T::kBytes); };
  size_t i = 0;
  for (; i + 4 * kLanes <= n;) {
    const size_t stop = smaller(n - 4 * kLanes, i + kStride);
    F a = zero, b = zero, c = zero, d = zero;
    for (; i <= stop; i += 4 * kLanes) {
      a = fused_add(load_at(i), zero, a);
      b = fused_add(load_at(i + kLanes), zero, b);
      c = fused_add(load_at(i + 2 * kLanes), zero, c);
      d = fused_add(load_at(i + 3 * kLanes), zero, d);
    }
    if (any(either(nans(a, b), nans(c, d)))) return false;
  }
  for (; i + kLanes <= n; i += kLanes) {
    const F v = mul(load_at(i), zero);
    if (any(nans(v, v))) return false;
  }
  if (i == n) return true;
  const F v = mul(load_first(type, x + i * T::kBytes, n - i), zero);
  return !any(nans(v, v));
}

/// Writes n values. take(i): the kLanes values from number i on; take_last(i): those that are left. A
/// NaN is rare: vectors are written as they are, and looked through again where one was met. y may be
/// what take() reads.
template <typename T, typename Take, typename TakeLast>
static inline CGX_INLINE void write_values(T type, std::byte* y, size_t n, const Take& take,
                                           const TakeLast& take_last) {
  constexpr size_t kStride = 8 * kLanes;
  size_t i = 0;
  for (; i + kStride <= n; i += kStride) {
    Nans found = nans(set(0.0f), set(0.0f));
    for (size_t k = i; k < i + kStride; k += 2 * kLanes) {
      const F v = take(k), w = take(k + kLanes);
      found = either(found, nans(v, w));
      store(type, y + k * T::kBytes, v);
      store(type, y + (k + kLanes) * T::kBytes, w);
    }
    if (any(found)) make_one_nan(type, y + i * T::kBytes, kStride);
  }
  for (; i + kLanes <= n; i += kLanes) store(type, y + i * T::kBytes, one_nan(take(i)));
  if (i < n) store_first(type, y + i * T::kBytes, n - i, one_nan(take_last(i)));
}

template <bool add_to, typename T>
static void to_float_as(T type, const std::byte* x, size_t n, float* y) {
  std::byte* out = reinterpret_cast<std::byte*>(y);
  const Float32 single;
  const auto take = [=](size_t i) CGX_INLINE {
    const F v = load(type, x + i * T::kBytes);
    return add_to ? add(load(single, out + 4 * i), v) : v;
  };
  const auto take_last = [=](size_t i) CGX_INLINE {
    const F v = load_first(type, x + i * T::kBytes, n - i);
    return add_to ? add(load_first(single, out + 4 * i, n - i), v) : v;
  };
  write_values(single, out, n, take, take_last);
}

template <typename T>
static void from_float_as(T type, const float* x, size_t n, std::byte* y) {
  const std::byte* in = reinterpret_cast<const std::byte*>(x);
  const Float32 single;
  write_values(
      type, y, n, [=](size_t i) CGX_INLINE { return load(single, in + 4 * i); },
      [=](size_t i) CGX_INLINE { return load_first(single, in + 4 * i, n - i); });
}

static bool all_finite(const std::byte* x, DType dtype, size_t n) {
  switch (dtype) {
    case DType::kFloat16:
      return all_finite_as(Float16{}, x, n);
    case DType::kBFloat16:
      return all_finite_as(BFloat16{}, x, n);
    default:
      return all_finite_as(Float32{}, x, n);
  }
}

template <bool add_to>
static void widen_values(const std::byte* x, DType dtype, size_t n, float* y) {
  switch (dtype) {
    case DType::kFloat16:
      return to_float_as<add_to>(Float16{}, x, n, y);
    case DType::kBFloat16:
      return to_float_as<add_to>(BFloat16{}, x, n, y);
    default:
      return to_float_as<add_to>(Float32{}, x, n, y);
  }
}

static void values_to_float(const std::byte* x, DType dtype, size_t n, float* y) {
  widen_values<false>(x, dtype, n, y);
}

static void add_to_float(const std::byte* x, DType dtype, size_t n, float* y) {
  widen_values<true>(x, dtype, n, y);
}

static void from_float(const float* x, DType dtype, size_t n, std::byte* y) {
  switch (dtype) {
    case DType::kFloat16:
      return from_float_as(Float16{}, x, n, y);
    case DType::kBFloat16:
      return from_float_as(BFloat16{}, x, n, y);
    default:
      return from_float_as(Float32{}, x, n, y);
  }
}

static void add_pair(const float* a, const float* b, size_t n, float* y) {
  const std::byte* x0 = reinterpret_cast<const std::byte*>(a);
  const std::byte* x1 = reinterpret_cast<const std::byte*>(b);
  const Float32 single;
  write_values(
      single, reinterpret_cast<std::byte*>(y), n,
      [=](size_t i) CGX_INLINE { return add(load(single, x0 + 4 * i), load(single, x1 + 4 * i)); },
      [=](size_t i) CGX_INLINE {
        return add(load_first(single, x0 + 4 * i, n - i), load_first(single, x1 + 4 * i, n - i));
      });
}

static void divide(float* y, size_t n, float divisor) {
  std::byte* out = reinterpret_cast<std::byte*>(y);
  const Float32 single;
  const F by = set(divisor);
  write_values(
      single, out, n, [=](size_t i) CGX_INLINE { return div(load(single, out + 4 * i), by); },
      [=](size_t i) CGX_INLINE { return div(load_first(single, out + 4 * i, n - i), by); });
}

static void scan(const std::byte* x, DType dtype, size_t n, float* low, float* high) {
  Extremes e{};
  switch (dtype) {
    default:  // float32
      e = extremes(Float32{}, x, n);
      break;
    case DType::kFloat16:
      e = extremes(Float16{}, x, n);
      break;
    case DType::kBFloat16:
      e = extremes(BFloat16{}, x, n);
      break;
  }
  *low = e.min;
  *high = e.max;
}

constexpr Kernels kLoops{all_finite, values_to_float, add_to_float, from_float,
                         add_pair,   divide,          scan};

}  // namespace
}  // namespace CGX_LEVEL
}  // namespace cgx::cpu
