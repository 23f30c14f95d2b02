#include "reduce/schedule/residual.h"

#include <cstring>

#include "base/half.h"
#include "codec/ops/convert.h"

namespace cgx {
namespace {

// All bits set where the exponent is that of no Inf and no NaN. Masks instead of branches: the
// loops below become vector code.
inline uint32_t mask_of_finite(uint32_t bits, uint32_t exponent) {
  return (bits & exponent) != exponent ? ~uint32_t{0} : 0;
}

struct Float32 {
  using Word = uint32_t;
  static constexpr uint32_t kExponent = 0x7f800000;
  static float widen(uint32_t word) { return bits_float(word); }
  static uint32_t narrow(uint32_t bits) { return bits; }
};

struct BFloat16 {
  using Word = uint16_t;
  static constexpr uint32_t kExponent = 0x7f80;
  static float widen(uint32_t word) { return bits_float(word << 16); }
  // Of a finite value; to nearest even.
  static uint32_t narrow(uint32_t bits) { return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16; }
};

template <typename T, bool add>
void keep(const float* wanted, const float* sent, float divisor, size_t n, std::byte* residual) {
  using Word = typename T::Word;
  for (size_t i = 0; i < n; ++i) {
    Word old;
    std::memcpy(&old, residual + i * sizeof(Word), sizeof(Word));
    float error = (wanted[i] - sent[i]) * divisor;
    if constexpr (add) error += T::widen(old);
    const uint32_t bits = float_bits(error);
    const uint32_t rounded = T::narrow(bits);
    const uint32_t mask =
        mask_of_finite(bits, Float32::kExponent) & mask_of_finite(rounded, T::kExponent);
    const Word kept = static_cast<Word>((rounded & mask) | (old & ~mask));
    std::memcpy(residual + i * sizeof(Word), &kept, sizeof(Word));
  }
}

template <typename T>
void keep(const float* wanted, const float* sent, float divisor, bool add, size_t n,
          std::byte* residual) {
  if (add) return keep<T, true>(wanted, sent, divisor, n, residual);
  return keep<T, false>(wanted, sent, divisor, n, residual);
}

bool is_aligned(const void* x) { return reinterpret_cast<uintptr_t>(x) % alignof(float) == 0; }

}  // namespace

void load_values(const Call& call, const View& input, const Run& run, size_t first, size_t n,
                 float* y) {
  const std::byte* x = input.at(run, first);
  if (!input.plus_residual || call.residual.base == nullptr) {
    return to_float(x, input.dtype, n, y);
  }
  const std::byte* residual = call.residual.at(run, first);
  if (input.dtype == DType::kFloat32 && call.residual.dtype == DType::kFloat32 && is_aligned(x) &&
      is_aligned(residual)) {
    return add_pair(reinterpret_cast<const float*>(x), reinterpret_cast<const float*>(residual), n,
                    y);
  }
  to_float(x, input.dtype, n, y);
  add_to_float(residual, call.residual.dtype, n, y);
}

void keep_error(const Call& call, const Run& run, size_t first, size_t n, const float* wanted,
                const float* sent, float divisor, bool add) {
  std::byte* residual = call.residual.at(run, first);
  if (call.residual.dtype == DType::kFloat32) {
    return keep<Float32>(wanted, sent, divisor, add, n, residual);
  }
  keep<BFloat16>(wanted, sent, divisor, add, n, residual);
}

}  // namespace cgx
