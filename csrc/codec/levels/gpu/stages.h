// Codes of values, products with levels, and dropout: eight values of each thread, in registers.
#pragma once

#include "base/half.h"
#include "codec/gpu/tile.h"
#include "codec/levels/gpu/call.h"

namespace cgx::levels::on_gpu {

// Kernels are told apart by their memory, of which these need none.
struct EncodeMemory {};
struct MultiplyMemory {};
struct DropoutMemory {};

/// The eight values of a thread, as they are computed with.
template <typename Real>
struct Eight {
  Real values[kGroup];
};

CGX_HD void load_eight(const unsigned char* x, uint64_t first, uint32_t n, uint8_t type,
                       Eight<float>& eight) {
  const gpu::Type narrow = static_cast<gpu::Type>(type);
  const uint32_t each = gpu::size_of(narrow);
  const unsigned char* from = x + first * each;
  if (n == kGroup && gpu::aligned(from)) {
    const gpu::Vector* const vectors = reinterpret_cast<const gpu::Vector*>(from);
    const gpu::Vector low = vectors[0];
    const gpu::Vector high = each == 4 ? vectors[1] : low;
    CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) {
      const uint32_t word = each == 4 ? (k < 4 ? low.words[k % 4] : high.words[k % 4])
                                      : low.words[k / 2] >> (16 * (k % 2)) & 0xffffu;
      eight.values[k] = gpu::widen(word, narrow);
    }
    return;
  }
  CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) {
    eight.values[k] = k < n ? gpu::widen(gpu::load_word(from + k * each, each), narrow) : 0.0f;
  }
}
CGX_HD void load_eight(const unsigned char* x, uint64_t first, uint32_t n, uint8_t,
                       Eight<double>& eight) {
  const double* const from = reinterpret_cast<const double*>(x) + first;
  CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) eight.values[k] = k < n ? from[k] : 0.0;
}

CGX_HD void store_eight(unsigned char* y, uint64_t first, uint32_t n, uint8_t type,
                        const Eight<float>& eight) {
  const gpu::Type narrow = static_cast<gpu::Type>(type);
  const uint32_t each = gpu::size_of(narrow);
  unsigned char* const to = y + first * each;
  uint32_t words[kGroup];
  CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) {
    words[k] = gpu::written(eight.values[k], narrow);
  }
  if (n == kGroup && gpu::aligned(to)) {
    gpu::Vector* const vectors = reinterpret_cast<gpu::Vector*>(to);
    if (each == 4) {
      vectors[0] = {{words[0], words[1], words[2], words[3]}};
      vectors[1] = {{words[4], words[5], words[6], words[7]}};
    } else {
      vectors[0] = {{words[0] | words[1] << 16, words[2] | words[3] << 16,
                     words[4] | words[5] << 16, words[6] | words[7] << 16}};
    }
    return;
  }
  CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) {
    if (k < n) gpu::store_word(to + k * each, each, words[k]);
  }
}
CGX_HD void store_eight(unsigned char* y, uint64_t first, uint32_t n, uint8_t,
                        const Eight<double>& eight) {
  double* const to = reinterpret_cast<double*>(y) + first;
  CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) {
    // As codec/levels: one NaN.
    const double value = eight.values[k];
    if (k < n) to[k] = value == value ? value : __builtin_nan("");
  }
}

CGX_HD float border_of(const Table& table, uint32_t i, float) { return table.border[i]; }
CGX_HD double border_of(const Table& table, uint32_t i, double) { return table.wide_border[i]; }
CGX_HD float level_of(const Table& table, uint32_t i, float) { return table.level[i]; }
CGX_HD double level_of(const Table& table, uint32_t i, double) { return table.wide_level[i]; }

CGX_HD float magnitude_of(float x) { return from_bits(as_bits(x) & 0x7fffffffu); }
CGX_HD double magnitude_of(double x) { return x < 0 ? -x : x; }

/// How many borders are below x, modulo the number of codes; a NaN passes them all.
template <typename Real>
CGX_HD uint32_t code_of(const Table& table, Real x) {
  const Real compared = table.magnitude != 0 ? magnitude_of(x) : x;
  uint32_t code = 0;
  for (uint32_t step = 1u << (table.depth - 1); step > 0; step /= 2) {
    code += compared <= border_of(table, code + step - 1, Real{}) ? 0 : step;
  }
  return (code < table.borders ? code : table.borders) & ((1u << table.bits) - 1);
}

CGX_HD uint32_t values_of(uint64_t values, uint64_t first) {
  if (first >= values) return 0;
  return values - first < kGroup ? static_cast<uint32_t>(values - first) : kGroup;
}

template <typename Real>
CGX_HD void encode_eight(const EncodeCall& call, uint64_t first, uint32_t n) {
  Eight<Real> eight;
  load_eight(call.x, first, n, call.type, eight);
  uint64_t codes = 0;
  CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) {
    const uint64_t code = k < n ? code_of(call.table, eight.values[k]) : 0;
    codes |= code << (k * call.table.bits);
  }
  unsigned char* const to = call.codes + first / kGroup * call.table.bits;
  const uint32_t bytes = (n * call.table.bits + 7) / 8;
  CGX_LOOP for (uint32_t k = 0; k < bytes; ++k) to[k] =
      static_cast<unsigned char>(codes >> (8 * k));
}

template <typename Real>
CGX_HD void multiply_eight(const MultiplyCall& call, uint64_t first, uint32_t n) {
  Eight<Real> eight;
  load_eight(call.x, first, n, call.type, eight);
  const unsigned char* const from = call.codes + first / kGroup * call.table.bits;
  const uint32_t bytes = (n * call.table.bits + 7) / 8, mask = (1u << call.table.bits) - 1;
  uint64_t codes = 0;
  CGX_LOOP for (uint32_t k = 0; k < bytes; ++k) codes |= static_cast<uint64_t>(from[k]) << (8 * k);
  CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) {
    const uint32_t code = static_cast<uint32_t>(codes >> (k * call.table.bits)) & mask;
    eight.values[k] = eight.values[k] * level_of(call.table, code, Real{});
  }
  store_eight(call.y, first, n, call.type, eight);
}

template <typename Real>
CGX_HD void drop_eight(const DropoutCall& call, uint64_t first, uint32_t n) {
  Eight<Real> eight;
  load_eight(call.x, first, n, call.type, eight);
  CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) {
    const bool stays = random_of(call.key, first + k) < call.keep;
    eight.values[k] = eight.values[k] * (stays ? static_cast<Real>(call.scale) : Real{});
  }
  store_eight(call.y, first, n, call.type, eight);
}

/// Part number i of the call.
template <typename Block>
CGX_HD void encode_stage(Block& block, EncodeMemory&, const EncodeCall& call, uint64_t i) {
  block.phase([&](uint32_t t) {
    const uint64_t first = i * kPartValues + t * kGroup;
    const uint32_t n = values_of(call.values, first);
    if (n == 0) return;
    call.type == kWideType ? encode_eight<double>(call, first, n)
                           : encode_eight<float>(call, first, n);
  });
}

template <typename Block>
CGX_HD void multiply_stage(Block& block, MultiplyMemory&, const MultiplyCall& call, uint64_t i) {
  block.phase([&](uint32_t t) {
    const uint64_t first = i * kPartValues + t * kGroup;
    const uint32_t n = values_of(call.values, first);
    if (n == 0) return;
    call.type == kWideType ? multiply_eight<double>(call, first, n)
                           : multiply_eight<float>(call, first, n);
  });
}

template <typename Block>
CGX_HD void dropout_stage(Block& block, DropoutMemory&, const DropoutCall& call, uint64_t i) {
  block.phase([&](uint32_t t) {
    const uint64_t first = i * kPartValues + t * kGroup;
    const uint32_t n = values_of(call.values, first);
    if (n == 0) return;
    call.type == kWideType ? drop_eight<double>(call, first, n) : drop_eight<float>(call, first, n);
  });
}

}  // namespace cgx::levels::on_gpu
