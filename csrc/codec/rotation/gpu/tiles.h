// Rotated blocks for the kernels: the members that codec/gpu/families.h asks for, for two families
// at once, since all but the quantizer is the same code. A family brings
//   kFamily                                   its number
//   quantize(threads, shared, memory, tile)   the codes of shared.values, packed in shared.codes
//   level(shared, tile, first, i)             the level of value number i of the tile's block that
//                                             starts at value `first`
#pragma once

#include "codec/rotation/gpu/memory.h"

namespace cgx::gpu::rotation {

template <typename First, typename Second>
struct Tiles : NoLongBuckets {
  static constexpr CGX_HD bool serves(uint8_t family) {
    return family == First::kFamily || family == Second::kFamily;
  }
  using Memory = BlockMemory;

  template <typename Threads>
  static CGX_HD void encode(Threads& threads, Shared& shared, Memory& memory, const Tile& tile,
                            RandomKey key, unsigned char* message) {
    prepare(threads, shared, memory, tile, key);
    rotate<false>(threads, shared.values, tile);
    if (tile.run.family == First::kFamily) {
      First::quantize(threads, shared, memory, tile);
    } else {
      Second::quantize(threads, shared, memory, tile);
    }
    threads.phase([&](uint32_t t) { product_phase(shared, memory, tile, t); });
    threads.phase([&](uint32_t t) { scale_phase(memory, tile, message, t); });
    threads.phase([&](uint32_t t) {
      copy_bytes(message + tile.codes_at(), shared.codes, tile.code_bytes(), t);
      if (tile.first != 0 || t != 0) return;
      auto* to = reinterpret_cast<uint32_t*>(message + tile.run.meta - kKeyBytes);
      to[0] = static_cast<uint32_t>(memory.signs);
      to[1] = static_cast<uint32_t>(memory.signs >> 32);
    });
  }

  template <typename Threads>
  static CGX_HD void decode(Threads& threads, Shared& shared, Memory& memory, const Tile& tile,
                            const unsigned char* message, bool add) {
    threads.phase([&](uint32_t t) {
      copy_bytes(shared.codes, message + tile.codes_at(), tile.code_bytes(), t);
      const auto* scales = reinterpret_cast<const float*>(message + tile.run.meta) + tile.bucket;
      for (uint32_t b = t; b < tile.buckets; b += kThreads) memory.scale[b] = scales[b];
      if (t != 0) return;
      const auto* key = reinterpret_cast<const uint32_t*>(message + tile.run.meta - kKeyBytes);
      memory.signs = sign_state(key[0] | static_cast<uint64_t>(key[1]) << 32, tile.first);
      shared.codes[tile.code_bytes()] = 0;
    });
    values(threads, shared, memory, tile, add);
  }

  template <typename Threads>
  static CGX_HD void decode_again(Threads& threads, Shared& shared, Memory& memory,
                                  const Tile& tile) {
    values(threads, shared, memory, tile, false);
  }

 private:
  static CGX_HD float level(const Shared& shared, const Tile& tile, uint32_t first, uint32_t i) {
    return tile.run.family == First::kFamily ? First::level(shared, tile, first, i)
                                             : Second::level(shared, tile, first, i);
  }

  /// v into shared.values; norm and prescale of the blocks.
  template <typename Threads>
  static CGX_HD void prepare(Threads& threads, Shared& shared, Memory& memory, const Tile& tile,
                             RandomKey key) {
    threads.phase([&](uint32_t t) {
      largest_phase(shared, memory, tile, t);
      if (t != 0) return;
      const uint64_t start = static_cast<uint64_t>(key.high) << 32 | key.low;
      memory.signs = sign_state(start, tile.run.index + tile.first);
      shared.codes[tile.code_bytes()] = 0;
    });
    threads.phase([&](uint32_t t) {
      if (t >= tile.buckets) return;
      float largest = 0.0f;
      for (uint32_t lane = 0; lane < kSumLanes; ++lane) {
        const float seen = memory.sums[t][0][lane];
        largest = as_bits(seen) > as_bits(largest) ? seen : largest;
      }
      memory.norm[t].root = largest;
      memory.by[t] = prescale(largest);
    });
    threads.phase([&](uint32_t t) {
      for (uint32_t i = t; i < tile.n; i += kThreads) {
        const float v = rn_mul(shared.values[i], memory.by[i / tile.run.bucket].down);
        shared.values[i] = with_sign(v, is_negated(memory.signs, i));
      }
    });
    threads.phase([&](uint32_t t) { energy_phase(shared, memory, tile, t); });
    threads.phase([&](uint32_t t) {
      if (t >= tile.buckets) return;
      const float largest = memory.norm[t].root;
      if (largest == 0.0f || as_bits(largest) >= 0x7f800000u) {
        memory.norm[t].inverse = 0.0f;
      } else {
        memory.norm[t] = norm_of(fold_sums(memory.sums[t][0]), block_of(tile, t).n);
      }
    });
  }

  /// Calls work(block, its number, lane) for the accumulators of a thread.
  template <typename Work>
  static CGX_HD void each_lane(const Tile& tile, uint32_t t, const Work& work) {
    for (uint32_t k = t; k < tile.buckets * kSumLanes; k += kThreads) {
      work(block_of(tile, k / kSumLanes), k / kSumLanes, k % kSumLanes);
    }
  }
  static CGX_HD void largest_phase(const Shared& shared, Memory& memory, const Tile& tile,
                                   uint32_t t) {
    each_lane(tile, t, [&](Block block, uint32_t b, uint32_t lane) {
      uint32_t largest = 0;
      for (uint32_t i = lane; i < block.n; i += kSumLanes) {
        const uint32_t magnitude = as_bits(shared.values[block.first + i]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
      }
      memory.sums[b][0][lane] = from_bits(largest);
    });
  }
  static CGX_HD void energy_phase(const Shared& shared, Memory& memory, const Tile& tile,
                                  uint32_t t) {
    each_lane(tile, t, [&](Block block, uint32_t b, uint32_t lane) {
      float sum = 0.0f;
      for (uint32_t i = lane; i < block.n; i += kSumLanes) {
        const float v = shared.values[block.first + i];
        sum = rn_add(sum, rn_mul(v, v));
      }
      memory.sums[b][0][lane] = sum;
    });
  }
  static CGX_HD void product_phase(const Shared& shared, Memory& memory, const Tile& tile,
                                   uint32_t t) {
    each_lane(tile, t, [&](Block block, uint32_t b, uint32_t lane) {
      const uint32_t k = stages_of(block.n);
      float product = 0.0f, square = 0.0f;
      for (uint32_t i = lane; i < block.n; i += kSumLanes) {
        const float z = shared.values[block.first + place(i, block.n, k)];
        const float u = rn_mul(z, memory.norm[b].inverse);
        const float c = level(shared, tile, block.first, i);
        product = rn_add(product, rn_mul(u, c));
        square = rn_add(square, rn_mul(c, c));
      }
      memory.sums[b][0][lane] = product;
      memory.sums[b][1][lane] = square;
    });
  }

  static CGX_HD void scale_phase(Memory& memory, const Tile& tile, unsigned char* message,
                                 uint32_t t) {
    if (t >= tile.buckets) return;
    const Norm norm = memory.norm[t];
    float scale = norm.root == 0.0f ? 0.0f : from_bits(kNan);
    if (norm.inverse != 0.0f) {
      scale =
          scale_of(static_cast<Scale>(tile.run.own[0]), fold_sums(memory.sums[t][0]),
                   fold_sums(memory.sums[t][1]), block_of(tile, t).n, norm.root, memory.by[t].up);
    }
    memory.scale[t] = scale;
    reinterpret_cast<float*>(message + tile.run.meta)[tile.bucket + t] = scale;
  }

  /// shared.codes to shared.values.
  template <typename Threads>
  static CGX_HD void values(Threads& threads, Shared& shared, Memory& memory, const Tile& tile,
                            bool add) {
    threads.phase([&](uint32_t t) {
      for (uint32_t b = 0; b < tile.buckets; ++b) {
        const Block block = block_of(tile, b);
        const uint32_t k = stages_of(block.n);
        const float factor = stage_factor(k);
        for (uint32_t i = t; i < block.n; i += kThreads) {
          const float c = level(shared, tile, block.first, i);
          memory.work[block.first + place(i, block.n, k)] = rn_mul(c, factor);
        }
      }
    });
    rotate<true>(threads, memory.work, tile);
    threads.phase([&](uint32_t t) {
      for (uint32_t i = t; i < tile.n; i += kThreads) {
        const float scale = memory.scale[i / tile.run.bucket];
        const float x = signed_value(memory.work[i], scale, memory.signs, i);
        shared.values[i] = add ? rn_add(shared.values[i], x) : x;
      }
    });
  }
};

}  // namespace cgx::gpu::rotation
