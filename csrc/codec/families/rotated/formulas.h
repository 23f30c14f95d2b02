// The formulas of `rotated`: the coefficients of a rotated block (codec/rotation/formulas.h), each
// quantized on its own by the Lloyd-Max quantizer of N(0, 1).
//
// With `bits` bits there are M = 2^(bits-1) magnitudes c[0 .. M), and thresholds half-way between
// them, t[i] = (c[i] + c[i+1]) / 2 in float32:
//   m = how many thresholds are below |u|
//   code = m + (u's sign bit ? 0 : M);   the level is c[m] with u's sign
//
// This is the only definition of its numerics: see maxmin/formulas.h.
#pragma once

#include "codec/families/rotated/levels.h"

namespace cgx::rotated {

[[maybe_unused]] constexpr int kMostBits = 8;

/// Where the magnitudes of a number of bits start in kLevels.
constexpr CGX_HD uint32_t first_level(int bits) { return (1u << (bits - 1)) - 1; }

/// t[i] of magnitudes that start at `levels`.
CGX_HD float threshold(const float* levels, uint32_t i) {
  return rn_mul(0.5f, rn_add(levels[i], levels[i + 1]));
}

CGX_HD uint32_t code_of(float u, const float* levels, int bits) {
  const uint32_t magnitudes = 1u << (bits - 1);
  const float magnitude = from_bits(as_bits(u) & 0x7fffffffu);
  uint32_t m = 0;
  for (uint32_t step = magnitudes / 2; step > 0; step /= 2) {
    if (magnitude > threshold(levels, m + step - 1)) m += step;
  }
  return m + (as_bits(u) >> 31 != 0 ? 0 : magnitudes);
}

CGX_HD float level_of(uint32_t code, const float* levels, int bits) {
  const uint32_t magnitudes = 1u << (bits - 1);
  const float level = levels[code & (magnitudes - 1)];
  return code < magnitudes ? -level : level;
}

}  // namespace cgx::rotated
