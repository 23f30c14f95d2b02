// `maxmin` for the kernels: the members that codec/gpu/families.h asks for.
#pragma once

#include "codec/families/maxmin/gpu/buckets.h"
#include "codec/families/maxmin/gpu/codes.h"
#include "codec/families/maxmin/maxmin.h"

namespace cgx::gpu::maxmin {

struct Tiles {
  static constexpr CGX_HD bool serves(uint8_t family) { return family == kMaxMinFamily; }
  using Memory = BucketMemory;
  static constexpr bool kLongBuckets = true;

  template <typename Block>
  static CGX_HD void encode(Block& block, Shared& shared, Memory& memory, const Tile& tile,
                            RandomKey key, unsigned char* message) {
    if (tile.run.long_buckets) {
      block.phase([&](uint32_t t) { load_meta_phase<true>(memory, tile, message, t); });
    } else {
      block.team_phase(lanes_of(tile.run.bucket), [&](uint32_t t, const auto& team) {
        extremes_phase(shared, memory, tile, t, team);
      });
      block.phase([&](uint32_t t) { store_meta_phase(memory, tile, message, t); });
    }
    block.phase([&](uint32_t t) { quantize_phase(shared, memory, tile, key, t); });
    block.phase([&](uint32_t t) { store_codes_phase(shared, tile, message, t); });
  }

  template <typename Block>
  static CGX_HD void decode(Block& block, Shared& shared, Memory& memory, const Tile& tile,
                            const unsigned char* message, bool add) {
    block.phase([&](uint32_t t) {
      load_meta_phase<false>(memory, tile, message, t);
      load_codes_phase(shared, tile, message, t);
    });
    block.phase([&](uint32_t t) { decode_phase(shared, memory, tile, add, t); });
  }

  template <typename Block>
  static CGX_HD void decode_again(Block& block, Shared& shared, Memory& memory, const Tile& tile) {
    block.phase([&](uint32_t t) { decode_phase(shared, memory, tile, false, t); });
  }

  static CGX_HD void begin_bucket(Memory& memory, uint32_t t) { memory.seen[t] = Extremes::none(); }
  static CGX_HD void see(const Shared& shared, Memory& memory, uint32_t from, uint32_t n,
                         uint32_t t) {
    for (uint32_t i = t; i < n; i += kThreads) {
      if (i >= from) memory.seen[t].see(shared.values[i]);
    }
  }
  template <typename Block>
  static CGX_HD void end_bucket(Block& block, Memory& memory, const CodecRun& run, uint64_t bucket,
                                unsigned char* message) {
    for (uint32_t half = kThreads / 2; half > 0; half /= 2) {
      block.phase([&](uint32_t t) {
        if (t < half) memory.seen[t].join(memory.seen[t + half]);
      });
    }
    block.phase([&](uint32_t t) {
      if (t != 0) return;
      const Extremes all = memory.seen[0];
      reinterpret_cast<MaxMinMeta*>(message + run.meta)[bucket] =
          maxmin_meta(all.min, all.max, true, maxmin_levels(run.bits));
    });
  }
};

}  // namespace cgx::gpu::maxmin
