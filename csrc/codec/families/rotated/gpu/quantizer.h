// The quantizer of `rotated` for the kernels: see codec/rotation/gpu/tiles.h.
#pragma once

#include "codec/families/rotated/formulas.h"
#include "codec/families/rotated/rotated.h"
#include "codec/rotation/gpu/memory.h"

namespace cgx::gpu::rotated {

using rotation::BlockMemory;

struct Quantizer {
  static constexpr uint8_t kFamily = kRotatedFamily;

  static CGX_HD const float* levels_of(const Tile& tile) {
    return cgx::rotated::kLevels + cgx::rotated::first_level(tile.run.bits);
  }

  template <typename Threads>
  static CGX_HD void quantize(Threads& threads, Shared& shared, BlockMemory& memory,
                              const Tile& tile) {
    threads.phase([&](uint32_t t) {
      const float* levels = levels_of(tile);
      for (uint32_t i = kGroup * t; i < tile.n; i += kGroup * kThreads) {
        const auto b = static_cast<uint32_t>(i / tile.run.bucket);
        const rotation::Block block = rotation::block_of(tile, b);
        const uint32_t k = rotation::stages_of(block.n);
        const float inverse = memory.norm[b].inverse;
        rotation::put_codes(shared, tile, i, [&](uint32_t at) -> uint32_t {
          if (inverse == 0.0f) return 0;
          const uint32_t place = rotation::place(at - block.first, block.n, k);
          const float u = rn_mul(shared.values[block.first + place], inverse);
          return cgx::rotated::code_of(u, levels, tile.run.bits);
        });
      }
    });
  }

  static CGX_HD float level(const Shared& shared, const Tile& tile, uint32_t first, uint32_t i) {
    return cgx::rotated::level_of(rotation::code_at(shared, tile, first + i), levels_of(tile),
                                  tile.run.bits);
  }
};

}  // namespace cgx::gpu::rotated
