// The formulas of a randomized Hadamard transform of a block of values, and of the block's scale.
// The families `rotated` and `trellis` quantize what comes out.
//
// This is the only definition of their numerics. The scalar driver calls these functions; SIMD
// drivers and kernels give the same results, and are compared with it bit for bit. All arithmetic
// is float32, every operation rounded on its own.
//
// A block has n values x[0 .. n), block_size of them or, at the end of a run, fewer. With m the
// largest |x|, 2^e <= m < 2^(e+1) (e clipped to -126 .. 126), k = ceil(log2 n):
//   prepare    v[i] = s[i] x[i] 2^-e         s: random signs, a bit each of sign_word()
//   rotate     z = v, then k stages; a stage turns n values into
//                y[i] = z[2i] + z[2i+1],  y[h+i] = z[2i] - z[2i+1],  h = ceil(n / 2)
//              and, for odd n, y[h-1] = sqrt(2) z[n-1]. For a power of two this is the
//              Walsh-Hadamard transform with butterflies of the strides 1, 2, 4, ..., in place.
//   normalize  r = sqrt(sum v^2 / n), u = z 2^(-k/2) / r: of mean square 1, close to Gaussian
//   quantize   c[i], the level of u[i]: the families' part
//   scale      S = r 2^e sum(u c) / sum(c c)             `mse`: least squares
//              S = r 2^e min(n / sum(u c), 4 sqrt(n / sum(c c)))   `unbiased`
// and back: w = the transposed stages, the last one first, of 2^(-k/2) c; x^[i] = s[i] S w[i], kept
// within the range of float32.
//
//   zero   all x are 0: S = 0, codes 0, every x^ is +0
//   other  a NaN or Inf in the block: S = quiet NaN 0x7fc00000, codes 0, every x^ is NaN
//
// Sums over a block have 32 accumulators: value i goes to number i mod 32, in rising order; then
// they are folded in halves (fold_sums()).
//
// Sources: random rotations before quantization, and both scales: Vargaftik et al., DRIVE (NeurIPS
// 2021) and EDEN (ICML 2022). There, too: E[x^] = x for `unbiased` as the signs vary. The limit
// 4 sqrt(n / sum(c c)) is ours: it bounds the error and is met by blocks of a few values only.
//
// Bounds, with |.| the Euclidean norm of a block: |x^ - x| <= (1 + 2^-12) |x| for `mse`, since the
// least squares error never exceeds the vector; <= 4 |x| for `unbiased`. Typical errors are in
// docs/numerics.md.
#pragma once

#include "base/nan.h"
#include "codec/ops/random.h"

namespace cgx::rotation {

/// In the order of the parameter's choices.
enum class Scale : uint8_t { kMse = 0, kUnbiased = 1 };

constexpr uint32_t kLeastBlock = 256, kLargestBlock = 4096;

/// Bytes of a payload before the scales: where the signs of its first value start.
constexpr uint32_t kKeyBytes = 8;

/// Distance of the states of two neighbouring values: the multiplier of a 64-bit congruential
/// generator (Steele, Vigna: Computationally easy, spectrally good multipliers, 2021).
constexpr uint64_t kSignStep = 0xd1342543de82ef95u;

/// State at value number `index` of a call.
CGX_HD uint64_t sign_state(uint64_t start, uint64_t index) { return start + index * kSignStep; }

/// Signs of 64 values, of which the first one has this state: bit i set means that value i is
/// negated.
CGX_HD uint64_t sign_word(uint64_t state) { return splitmix64(state); }

/// 2^-e and 2^e for the largest magnitude of a block.
struct Prescale {
  float down, up;
};
CGX_HD Prescale prescale(float largest) {
  uint32_t exponent = as_bits(largest) >> 23 & 0xffu;
  exponent = exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
  return {from_bits((254 - exponent) << 23), from_bits(exponent << 23)};
}

/// ceil(log2 n): stages of n >= 1 values.
CGX_HD uint32_t stages_of(uint32_t n) {
  uint32_t k = 0;
  while (1u << k < n) ++k;
  return k;
}

/// 2^(-k/2), the factor that makes k stages orthonormal.
CGX_HD float stage_factor(uint32_t k) {
  const float power = from_bits((127 - (k + 1) / 2) << 23);
  return k % 2 == 0 ? power : rn_mul(power, 0x1.6a09e6p0f);
}

constexpr float kRootOfTwo = 0x1.6a09e6p0f;

/// One stage of n values, and the transposed one. Stages read and write different memory, which may
/// be any random access to floats. `first`, `step`: the pairs that a thread takes.
template <typename From, typename To>
CGX_HD void stage(const From& z, To& y, uint32_t n, uint32_t first = 0, uint32_t step = 1) {
  const uint32_t half = (n + 1) / 2;
  for (uint32_t i = first; i < n / 2; i += step) {
    const float a = z[2 * i], b = z[2 * i + 1];
    y[i] = rn_add(a, b);
    y[half + i] = rn_sub(a, b);
  }
  if (n % 2 == 1 && first == 0) y[half - 1] = rn_mul(kRootOfTwo, z[n - 1]);
}
template <typename From, typename To>
CGX_HD void transposed_stage(const From& y, To& z, uint32_t n, uint32_t first = 0,
                             uint32_t step = 1) {
  const uint32_t half = (n + 1) / 2;
  for (uint32_t i = first; i < n / 2; i += step) {
    const float a = y[i], b = y[half + i];
    z[2 * i] = rn_add(a, b);
    z[2 * i + 1] = rn_sub(a, b);
  }
  if (n % 2 == 1 && first == 0) z[n - 1] = rn_mul(kRootOfTwo, y[half - 1]);
}

/// Accumulators of a sum over a block.
constexpr uint32_t kSumLanes = 32;

CGX_HD float fold_sums(const float* lanes) {
  float sums[kSumLanes / 2];
  for (uint32_t i = 0; i < kSumLanes / 2; ++i) sums[i] = rn_add(lanes[i], lanes[i + 16]);
  for (uint32_t half = kSumLanes / 4; half > 0; half /= 2) {
    for (uint32_t i = 0; i < half; ++i) sums[i] = rn_add(sums[i], sums[i + half]);
  }
  return sums[0];
}

/// Root mean square of v, and the factor that turns z into u.
struct Norm {
  float root;
  float inverse;
};
CGX_HD Norm norm_of(float energy, uint32_t n) {
  const float root = rn_sqrt(rn_div(energy, static_cast<float>(n)));
  return {root, rn_div(stage_factor(stages_of(n)), root)};
}

constexpr float kLargestFloat = 0x1.fffffep127f;

/// S of a block; product = sum u c, square = sum c c > 0.
CGX_HD float scale_of(Scale scale, float product, float square, uint32_t n, float root, float up) {
  float factor;
  if (scale == Scale::kMse) {
    factor = rn_div(product, square);
  } else {
    const float count = static_cast<float>(n);
    const float most = rn_mul(4.0f, rn_sqrt(rn_div(count, square)));
    const float exact = rn_div(count, product);
    factor = product > 0.0f && exact < most ? exact : most;
  }
  const float value = rn_mul(rn_mul(factor, root), up);
  return value < kLargestFloat ? value : kLargestFloat;
}

/// Blocks of a larger scale may overflow: every |w| is below 2^9.
constexpr float kLargestSafeScale = 0x1p118f;
CGX_HD bool may_overflow(float scale) { return scale > kLargestSafeScale; }

/// `value`, negated where the bit is set.
CGX_HD float with_sign(float value, bool negative) {
  return from_bits(as_bits(value) ^ (negative ? 0x80000000u : 0u));
}

/// True if value number i is negated; `signs`: state of value number 0.
CGX_HD bool is_negated(uint64_t signs, uint32_t i) {
  return sign_word(sign_state(signs, i / 64 * 64)) >> (i % 64) & 1;
}

/// x^[i] of the coefficient w[i] that the transposed stages have left.
CGX_HD float signed_value(float w, float scale, uint64_t signs, uint32_t i) {
  if (scale == 0.0f) return 0.0f;
  float value = rn_mul(w, scale);
  value = value > kLargestFloat ? kLargestFloat : value < -kLargestFloat ? -kLargestFloat : value;
  return with_sign(value, is_negated(signs, i));
}

}  // namespace cgx::rotation
