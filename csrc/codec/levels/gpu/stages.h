// Codes of values, and products with levels: eight values of each thread, in registers.
#pragma once

#include "codec/gpu/eight.h"
#include "codec/levels/gpu/call.h"

namespace cgx::levels::on_gpu {

using gpu::Eight;
using gpu::kGroup;

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

/// Part number i of the call.
template <typename Block>
CGX_HD void encode_stage(Block& block, gpu::NoMemory&, const EncodeCall& call, uint64_t i) {
  gpu::each_eight(block, call.values, call.type, i, [&](auto real, uint64_t first, uint32_t n) {
    encode_eight<decltype(real)>(call, first, n);
  });
}

template <typename Block>
CGX_HD void multiply_stage(Block& block, gpu::NoMemory&, const MultiplyCall& call, uint64_t i) {
  gpu::each_eight(block, call.values, call.type, i, [&](auto real, uint64_t first, uint32_t n) {
    multiply_eight<decltype(real)>(call, first, n);
  });
}

}  // namespace cgx::levels::on_gpu
