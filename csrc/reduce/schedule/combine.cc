#include "reduce/schedule/combine.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "base/nan.h"
#include "codec/ops/convert.h"
#include "codec/ops/finite.h"

// Values may lie where others of the same number do, never where those of another number do.
#if defined(__clang__)
#define CGX_VALUE_BY_VALUE _Pragma("clang loop vectorize(assume_safety)")
#else
#define CGX_VALUE_BY_VALUE _Pragma("GCC ivdep")
#endif

namespace cgx {
namespace {

// Bytes that are combined at once: what is between two inputs stays in the first-level cache.
constexpr size_t kPieceBytes = 8192;
constexpr size_t kPieceFloats = kPieceBytes / sizeof(float);

using PairOp = void (*)(const std::byte* a, const std::byte* b, size_t n, std::byte* out);

template <typename T>
T value_at(const std::byte* x, size_t i) {
  T value;
  std::memcpy(&value, x + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void put_value(std::byte* x, size_t i, T value) {
  std::memcpy(x + i * sizeof(T), &value, sizeof(T));
}

// A number other than 0 is true.
struct Truth {
  uint8_t byte;
};

template <Combine op>
Truth apply(Truth a, Truth b) {
  const int left = a.byte != 0, right = b.byte != 0;
  if constexpr (op == Combine::kBitXor) return {static_cast<uint8_t>(left ^ right)};
  constexpr bool any = op == Combine::kSum || op == Combine::kMax || op == Combine::kBitOr;
  return {static_cast<uint8_t>(any ? left | right : left & right)};
}

template <Combine op, typename T>
T apply(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if constexpr (op == Combine::kSum) return one_nan(a + b);
    if constexpr (op == Combine::kProduct) return one_nan(a * b);
    if constexpr (op == Combine::kMin) return one_nan(b < a || b != b ? b : a);
    if constexpr (op == Combine::kMax) return one_nan(b > a || b != b ? b : a);
  } else {
    // Of 32 bits or more: smaller ones would become signed ones, whose overflow is undefined.
    using Narrow = std::make_unsigned_t<T>;
    using Wide = std::conditional_t<sizeof(T) < 4, uint32_t, Narrow>;
    const Wide left = static_cast<Narrow>(a), right = static_cast<Narrow>(b);
    if constexpr (op == Combine::kSum) return static_cast<T>(left + right);
    if constexpr (op == Combine::kProduct) return static_cast<T>(left * right);
    if constexpr (op == Combine::kMin) return b < a ? b : a;
    if constexpr (op == Combine::kMax) return b > a ? b : a;
    if constexpr (op == Combine::kBitAnd) return static_cast<T>(left & right);
    if constexpr (op == Combine::kBitOr) return static_cast<T>(left | right);
    if constexpr (op == Combine::kBitXor) return static_cast<T>(left ^ right);
  }
}

template <Combine op, typename T>
void combine_pair(const std::byte* a, const std::byte* b, size_t n, std::byte* out) {
  CGX_VALUE_BY_VALUE
  for (size_t i = 0; i < n; ++i) {
    put_value<T>(out, i, apply<op>(value_at<T>(a, i), value_at<T>(b, i)));
  }
}

template <typename T>
PairOp pair_op(Combine op) {
  constexpr bool has_bits = !std::is_floating_point_v<T>;
  switch (op) {
    case Combine::kSum:
      return combine_pair<Combine::kSum, T>;
    case Combine::kProduct:
      return combine_pair<Combine::kProduct, T>;
    case Combine::kMin:
      return combine_pair<Combine::kMin, T>;
    case Combine::kMax:
      return combine_pair<Combine::kMax, T>;
    case Combine::kBitAnd:
      if constexpr (has_bits) return combine_pair<Combine::kBitAnd, T>;
      break;
    case Combine::kBitOr:
      if constexpr (has_bits) return combine_pair<Combine::kBitOr, T>;
      break;
    case Combine::kBitXor:
      if constexpr (has_bits) return combine_pair<Combine::kBitXor, T>;
      break;
  }
  throw Error(str_of("no ", name_of(op), " of such values"));
}

// Only the order of numbers knows signs.
template <typename T>
PairOp integer_op(Combine op) {
  if (op == Combine::kMin || op == Combine::kMax) return pair_op<T>(op);
  return pair_op<std::make_unsigned_t<T>>(op);
}

PairOp pair_op_of(Combine op, DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return pair_op<float>(op);
    case DType::kFloat64:
      return pair_op<double>(op);
    case DType::kUInt8:
      return pair_op<uint8_t>(op);
    case DType::kInt8:
      return integer_op<int8_t>(op);
    case DType::kUInt16:
      return pair_op<uint16_t>(op);
    case DType::kInt16:
      return integer_op<int16_t>(op);
    case DType::kUInt32:
      return pair_op<uint32_t>(op);
    case DType::kInt32:
      return integer_op<int32_t>(op);
    case DType::kUInt64:
      return pair_op<uint64_t>(op);
    case DType::kInt64:
      return integer_op<int64_t>(op);
    case DType::kBool:
      return pair_op<Truth>(op);
    default:
      throw Error(str_of("no ", name_of(op), " of ", name_of(dtype), " values"));
  }
}

template <typename T>
void divide_values(std::byte* x, size_t n, float divisor) {
  using Wide = std::conditional_t<std::is_floating_point_v<T>, T,
                                  std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;
  const auto by = static_cast<Wide>(divisor);
  for (size_t i = 0; i < n; ++i) {
    const auto quotient = static_cast<T>(static_cast<Wide>(value_at<T>(x, i)) / by);
    if constexpr (std::is_floating_point_v<T>) {
      put_value<T>(x, i, one_nan(quotient));
    } else {
      put_value<T>(x, i, quotient);
    }
  }
}

void divide_by(DType dtype, std::byte* x, size_t n, float divisor) {
  switch (dtype) {
    case DType::kFloat32:
      return divide_values<float>(x, n, divisor);
    case DType::kFloat64:
      return divide_values<double>(x, n, divisor);
    case DType::kUInt8:
      return divide_values<uint8_t>(x, n, divisor);
    case DType::kInt8:
      return divide_values<int8_t>(x, n, divisor);
    case DType::kUInt16:
      return divide_values<uint16_t>(x, n, divisor);
    case DType::kInt16:
      return divide_values<int16_t>(x, n, divisor);
    case DType::kUInt32:
      return divide_values<uint32_t>(x, n, divisor);
    case DType::kInt32:
      return divide_values<int32_t>(x, n, divisor);
    case DType::kUInt64:
      return divide_values<uint64_t>(x, n, divisor);
    case DType::kInt64:
      return divide_values<int64_t>(x, n, divisor);
    default:
      throw Error(str_of("no average of ", name_of(dtype), " values"));
  }
}

// float16 and bfloat16, by float32.
void combine_narrow(Combine op, DType dtype, std::span<const std::byte* const> in, size_t n,
                    float divisor, std::byte* out) {
  const PairOp pair = pair_op<float>(op);
  alignas(64) float all[kPieceFloats], one[kPieceFloats];
  auto* result = reinterpret_cast<std::byte*>(all);
  for (size_t done = 0; done < n; done += kPieceFloats) {
    const size_t now = std::min(kPieceFloats, n - done), at = done * size_of(dtype);
    to_float(in.front() + at, dtype, now, all);
    for (const std::byte* next : in.subspan(1)) {
      to_float(next + at, dtype, now, one);
      pair(result, reinterpret_cast<const std::byte*>(one), now, result);
    }
    if (divisor != 1) divide(all, now, divisor);
    from_float(all, dtype, now, out + at);
  }
}

}  // namespace

void combine(Combine op, DType dtype, std::span<const std::byte* const> in, size_t n, float divisor,
             std::byte* out) {
  if (kind_of(dtype) == DTypeKind::kComplex) {
    n *= 2;
    dtype = real_of(dtype);
  }
  if (dtype == DType::kFloat16 || dtype == DType::kBFloat16) {
    return combine_narrow(op, dtype, in, n, divisor, out);
  }
  const PairOp pair = pair_op_of(op, dtype);
  const size_t size = size_of(dtype),
               piece = in.size() > 2 || divisor != 1 ? kPieceBytes / size : n;
  alignas(64) std::byte between[kPieceBytes];
  for (size_t done = 0; done < n; done += piece) {
    const size_t now = std::min(piece, n - done), at = done * size;
    const std::byte* left = in.front() + at;
    if (in.size() == 1 && left != out + at) std::memcpy(out + at, left, now * size);
    for (size_t next = 1; next < in.size(); ++next) {
      std::byte* result = next + 1 == in.size() ? out + at : between;
      pair(left, in[next] + at, now, result);
      left = result;
    }
    if (divisor != 1) divide_by(dtype, out + at, now, divisor);
  }
}

bool values_finite(DType dtype, const std::byte* x, size_t n) {
  if (kind_of(dtype) == DTypeKind::kComplex) return values_finite(real_of(dtype), x, 2 * n);
  if (!is_floating(dtype)) return true;
  if (dtype != DType::kFloat64) return all_finite(x, dtype, n);
  for (size_t i = 0; i < n; ++i) {
    if (!std::isfinite(value_at<double>(x, i))) return false;
  }
  return true;
}

}  // namespace cgx
