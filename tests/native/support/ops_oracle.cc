#include "ops_oracle.h"

#include <cmath>

namespace cgx::native {
namespace {

constexpr Combine kAll[] = {Combine::kSum,    Combine::kMin,   Combine::kMax,   Combine::kProduct,
                            Combine::kBitAnd, Combine::kBitOr, Combine::kBitXor};

using Whole = __int128;

bool is_signed(DType dtype) {
  return dtype == DType::kInt8 || dtype == DType::kInt16 || dtype == DType::kInt32 ||
         dtype == DType::kInt64;
}

Whole load_whole(const std::byte* at, DType dtype) {
  uint64_t bits = 0;
  std::memcpy(&bits, at, size_of(dtype));
  const int unused = 64 - 8 * static_cast<int>(size_of(dtype));
  if (!is_signed(dtype)) return static_cast<Whole>(bits);
  return static_cast<Whole>(static_cast<int64_t>(bits << unused) >> unused);
}

Whole wrapped(Whole x, DType dtype) {
  std::byte bytes[8];
  const auto low = static_cast<uint64_t>(static_cast<unsigned __int128>(x));
  std::memcpy(bytes, &low, 8);
  return load_whole(bytes, dtype);
}

Whole apply(Combine op, Whole a, Whole b) {
  switch (op) {
    case Combine::kSum:
      return a + b;
    case Combine::kMin:
      return a < b ? a : b;
    case Combine::kMax:
      return a > b ? a : b;
    case Combine::kProduct:
      return static_cast<Whole>(static_cast<unsigned __int128>(a) *
                                static_cast<unsigned __int128>(b));
    case Combine::kBitAnd:
      return a & b;
    case Combine::kBitOr:
      return a | b;
    default:
      return a ^ b;
  }
}

double apply(Combine op, double a, double b) {
  if (op == Combine::kSum) return a + b;
  if (op == Combine::kProduct) return a * b;
  return (op == Combine::kMin) == (a < b) ? a : b;
}

double load_real(const std::byte* at, DType dtype) {
  if (dtype != DType::kFloat64) return load_value(at, dtype);
  double x;
  std::memcpy(&x, at, 8);
  return x;
}

void store_real(std::byte* at, DType dtype, double x) {
  if (dtype == DType::kFloat64) {
    std::memcpy(at, &x, 8);
  } else {
    const auto bytes = tensor_of({static_cast<float>(x)}, dtype);
    std::memcpy(at, bytes.data(), bytes.size());
  }
}

double draw_real(Combine op, Random& random) {
  static constexpr double kFactors[] = {1, -1, 2, -2, 0.5, -0.5, 1, 1};
  if (op == Combine::kProduct) return kFactors[random(8)];
  return (static_cast<double>(random(65)) - 32) / 4;  // sums of nine are exact in bfloat16
}

bool has_op(DType dtype, Combine op) {
  switch (kind_of(dtype)) {
    case DTypeKind::kFloat:
      return op < Combine::kBitAnd;
    case DTypeKind::kComplex:
      return op == Combine::kSum;
    default:
      return true;
  }
}

}  // namespace

const std::vector<OpCase>& op_cases() {
  static const std::vector<OpCase> all = [] {
    std::vector<OpCase> cases;
    for (int number = 0; number < kDTypeCount; ++number) {
      const auto dtype = static_cast<DType>(number);
      if (!kReduced.has(dtype)) continue;
      for (Combine op : kAll) {
        if (has_op(dtype, op)) cases.push_back({dtype, op});
      }
      if (dtype != DType::kBool) cases.push_back({dtype, Combine::kSum, true});
    }
    return cases;
  }();
  return all;
}

std::vector<std::byte> op_input(const OpCase& test, size_t n, uint64_t seed, size_t rank) {
  const DType real = real_of(test.dtype);
  const size_t each = size_of(real);
  std::vector<std::byte> bytes(n * size_of(test.dtype));
  Random random(seed * 131 + rank * 7 + 1);
  for (size_t at = 0; at < bytes.size(); at += each) {
    if (is_floating(real)) {
      store_real(bytes.data() + at, real, draw_real(test.combine, random));
      continue;
    }
    const uint64_t bits = real == DType::kBool ? random(2) : random();
    std::memcpy(bytes.data() + at, &bits, each);
  }
  return bytes;
}

std::vector<std::byte> op_result(const OpCase& test, size_t n, uint64_t seed, size_t ranks) {
  Tensors inputs;
  for (size_t rank = 0; rank < ranks; ++rank) inputs.push_back(op_input(test, n, seed, rank));
  const DType real = real_of(test.dtype);
  const size_t each = size_of(real);
  std::vector<std::byte> bytes = inputs.front();
  for (size_t at = 0; at < bytes.size(); at += each) {
    if (is_floating(real)) {
      double x = load_real(&inputs[0][at], real);
      for (size_t rank = 1; rank < ranks; ++rank) {
        x = apply(test.combine, x, load_real(&inputs[rank][at], real));
      }
      // One division and one rounding of the type that is computed in.
      if (test.average && real == DType::kFloat64) x /= static_cast<double>(ranks);
      if (test.average && real != DType::kFloat64) {
        x = static_cast<float>(x) / static_cast<float>(ranks);
      }
      store_real(&bytes[at], real, x);
      continue;
    }
    Whole x = load_whole(&inputs[0][at], real);
    for (size_t rank = 1; rank < ranks; ++rank) {
      const Whole y = load_whole(&inputs[rank][at], real);
      x = wrapped(apply(test.combine, x, y), real);
      // 1 + 1 is true, too.
      if (real == DType::kBool) x = x != 0;
    }
    if (test.average) x /= static_cast<Whole>(ranks);
    const auto low = static_cast<uint64_t>(static_cast<unsigned __int128>(x));
    std::memcpy(&bytes[at], &low, each);
  }
  return bytes;
}

}  // namespace cgx::native
