// float16 and bfloat16 to and from float32, one value at a time: the reference of the SIMD
// conversions.
//
// Narrowing rounds to nearest, ties to even; values beyond the range become infinity, and a NaN the
// one of its type (base/nan.h). Widening keeps the bits of a NaN. Pure functions, for the host and
// for kernels.
#pragma once

#include "base/nan.h"

namespace cgx {

CGX_HD uint32_t float_bits(float x) { return as_bits(x); }
CGX_HD float bits_float(uint32_t bits) { return from_bits(bits); }

CGX_HD float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 0x1f;
  const uint32_t mantissa = half & 0x3ff;
  if (exponent == 0x1f) {
    const uint32_t quiet = mantissa != 0 ? 0x400000 : 0;
    return bits_float(sign | 0x7f800000 | quiet | (mantissa << 13));
  }
  if (exponent == 0) {
    // Subnormal: mantissa * 2^-24, exact in float32.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return bits_float(sign | float_bits(magnitude));
  }
  return bits_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

CGX_HD uint16_t float_to_half(float x) {
  const uint32_t bits = float_bits(x);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return kHalfNan;
  // 65520 and more round to infinity.
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000) {
    // Below 2^-14: adding 0.5 leaves the wanted multiple of 2^-24 in the low bits, rounded by the
    // hardware.
    const float shifted = bits_float(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (float_bits(shifted) - 0x3f000000));
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

CGX_HD float bfloat16_to_float(uint16_t value) {
  return bits_float(static_cast<uint32_t>(value) << 16);
}

CGX_HD uint16_t float_to_bfloat16(float x) {
  const uint32_t bits = float_bits(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return kBFloat16Nan;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace cgx
