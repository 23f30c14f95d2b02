// The oracle of a codec over rotated blocks: one value at a time, through the formulas. Runs on
// every CPU; the SIMD levels leave incomplete blocks to it.
//
// A Quantizer is the family's part:
//   Quantizer(bits)
//   quantize(z, n, inverse, codes, levels)   codes of u[i] = z[i] * inverse, and their levels c[i]
//   levels(codes, n, levels)                 the levels again
#pragma once

#include <cstring>

#include "codec/ops/scalar-inl.h"
#include "codec/rotation/formulas.h"
#include "codec/rotation/loops.h"

namespace cgx::rotation::scalar {

/// All k stages, forth or back; `a` and `b` have room for n values. Returns where the result is.
inline float* rotate(float* a, float* b, uint32_t n) {
  const uint32_t k = stages_of(n);
  for (uint32_t i = 0; i < k; ++i) {
    stage(a, b, n);
    float* other = a;
    a = b, b = other;
  }
  return a;
}
inline float* rotate_back(float* a, float* b, uint32_t n) {
  const uint32_t k = stages_of(n);
  for (uint32_t i = 0; i < k; ++i) {
    transposed_stage(a, b, n);
    float* other = a;
    a = b, b = other;
  }
  return a;
}

/// The sum of a[i] * b[i] over a block.
inline float sum_of(const float* a, const float* b, uint32_t n) {
  float lanes[kSumLanes] = {};
  for (uint32_t i = 0; i < n; ++i) {
    float& lane = lanes[i % kSumLanes];
    lane = rn_add(lane, rn_mul(a[i], b[i]));
  }
  return fold_sums(lanes);
}

struct Memory {
  float a[kLargestBlock], b[kLargestBlock], levels[kLargestBlock];
  uint8_t codes[kLargestBlock];
};

/// Codes into memory.codes; returns S. `signs`: state of the block's first value.
template <DType dtype, typename Quantizer>
float encode_block(const std::byte* x, uint32_t n, Scale scale, uint64_t signs,
                   Quantizer& quantizer, Memory& memory) {
  uint32_t largest = 0;  // magnitudes compare as their bits do; NaN is above infinity
  for (uint32_t i = 0; i < n; ++i) {
    memory.a[i] = cpu::scalar::load<dtype>(x, i);
    const uint32_t magnitude = as_bits(memory.a[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  if (largest == 0 || largest >= 0x7f800000u) {
    std::memset(memory.codes, 0, n);
    return largest == 0 ? 0.0f : from_bits(kNan);
  }
  const Prescale by = prescale(from_bits(largest));
  for (uint32_t i = 0; i < n; ++i) {
    memory.a[i] = with_sign(rn_mul(memory.a[i], by.down), is_negated(signs, i));
  }
  const Norm norm = norm_of(sum_of(memory.a, memory.a, n), n);
  float* z = rotate(memory.a, memory.b, n);
  quantizer.quantize(z, n, norm.inverse, memory.codes, memory.levels);
  for (uint32_t i = 0; i < n; ++i) z[i] = rn_mul(z[i], norm.inverse);
  const float product = sum_of(z, memory.levels, n);
  const float square = sum_of(memory.levels, memory.levels, n);
  return scale_of(scale, product, square, n, norm.root, by.up);
}

/// memory.codes to values.
template <typename Quantizer>
void decode_block(float scale, uint32_t n, uint64_t signs, Quantizer& quantizer, Memory& memory,
                  float* y, bool add) {
  quantizer.levels(memory.codes, n, memory.levels);
  const float factor = stage_factor(stages_of(n));
  for (uint32_t i = 0; i < n; ++i) memory.a[i] = rn_mul(memory.levels[i], factor);
  const float* w = rotate_back(memory.a, memory.b, n);
  for (uint32_t i = 0; i < n; ++i) {
    const float value = signed_value(w[i], scale, signs, i);
    y[i] = one_nan(add ? rn_add(y[i], value) : value);
  }
}

template <DType dtype, typename Quantizer>
void encode_as(const Part& part, const std::byte* x, std::byte* scales, std::byte* codes) {
  static thread_local Memory memory;
  Quantizer quantizer(part.bits);
  cpu::scalar::BitWriter writer(codes, part.bits);
  for (size_t start = 0; start < part.n; start += part.block) {
    const auto n = static_cast<uint32_t>(part.block < part.n - start ? part.block : part.n - start);
    const float scale = encode_block<dtype>(x + start * size_of(dtype), n, part.scale,
                                            sign_state(part.signs, start), quantizer, memory);
    std::memcpy(scales, &scale, sizeof scale);
    scales += sizeof scale;
    for (uint32_t i = 0; i < n; ++i) writer.put(memory.codes[i]);
  }
}

template <typename Quantizer>
void encode(const Part& part, const std::byte* x, DType dtype, std::byte* scales,
            std::byte* codes) {
  cpu::scalar::with_dtype(
      dtype, [&]<DType type>() { encode_as<type, Quantizer>(part, x, scales, codes); });
}

template <typename Quantizer>
void decode(const Part& part, const std::byte* scales, const std::byte* codes, float* y, bool add) {
  static thread_local Memory memory;
  Quantizer quantizer(part.bits);
  cpu::scalar::BitReader reader(codes, part.bits);
  for (size_t start = 0; start < part.n; start += part.block) {
    const auto n = static_cast<uint32_t>(part.block < part.n - start ? part.block : part.n - start);
    float scale;
    std::memcpy(&scale, scales, sizeof scale);
    scales += sizeof scale;
    for (uint32_t i = 0; i < n; ++i) memory.codes[i] = static_cast<uint8_t>(reader.get());
    decode_block(scale, n, sign_state(part.signs, start), quantizer, memory, y + start, add);
  }
}

}  // namespace cgx::rotation::scalar
