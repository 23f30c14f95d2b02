// The quantizer of `trellis` for the kernels: see codec/rotation/gpu/tiles.h. A thread walks one sequence of a block.
#pragma once

#include "codec/families/trellis/formulas.h"
#include "codec/families/trellis/trellis.h"
#include "codec/rotation/gpu/memory.h"

namespace cgx::gpu::trellis {

using rotation::BlockMemory;
using namespace cgx::trellis;

struct Quantizer {
  static constexpr uint8_t kFamily = kTrellisFamily;

  static CGX_HD const float* levels_of(const Tile& tile) {
    return kLevels + first_level(tile.run.bits);
  }

  template <typename Threads>
  static CGX_HD void quantize(Threads& threads, Shared& shared, BlockMemory& memory,
                              const Tile& tile) {
    threads.phase([&](uint32_t t) {
      for (uint32_t k = t; k < tile.buckets * kSequences; k += kThreads) {
        walk(shared, memory, tile, k / kSequences, k % kSequences);
      }
    });
    threads.phase([&](uint32_t t) {
      for (uint32_t i = kGroup * t; i < tile.n; i += kGroup * kThreads) {
        rotation::put_codes(shared, tile, i, [&](uint32_t at) { return as_bits(memory.work[at]); });
      }
    });
  }

  static CGX_HD float level(const Shared& shared, const Tile& tile, uint32_t first, uint32_t i) {
    const auto code = [&](uint32_t back) -> uint32_t {
      return i < back ? 0 : rotation::code_at(shared, tile, first + i - back);
    };
    return level_of(code(0), code(kSequences), code(2 * kSequences), levels_of(tile));
  }

 private:
  /// The codes of a sequence into memory.work, as bits.
  static CGX_HD void walk(const Shared& shared, BlockMemory& memory, const Tile& tile, uint32_t b,
                          uint32_t sequence) {
    const rotation::Block block = rotation::block_of(tile, b);
    if (sequence >= block.n) return;
    const uint32_t k = rotation::stages_of(block.n), bits = tile.run.bits;
    const float inverse = memory.norm[b].inverse;
    const float* levels = levels_of(tile);
    Costs costs = Costs::start();
    uint32_t i = sequence;
    for (;; i += kSequences) {
      const float z = shared.values[block.first + rotation::place(i, block.n, k)];
      const uint32_t step = advance(costs, rn_mul(z, inverse), levels, static_cast<int>(bits));
      memory.work[block.first + i] = from_bits(step);
      if (i + kSequences >= block.n) break;
    }
    uint32_t state = best_state(costs);
    for (;; i -= kSequences) {
      float& at = memory.work[block.first + i];
      const uint32_t code = step_back(as_bits(at), state);
      at = from_bits(inverse == 0.0f ? 0 : code);
      if (i < kSequences) break;
    }
  }
};

}  // namespace cgx::gpu::trellis
