// The buckets of a tile: their extremes, and what travels with them.
#pragma once

#include "codec/families/maxmin/gpu/memory.h"

namespace cgx::gpu::maxmin {

/// Threads that share a bucket: a power of two, at most a warp, and at most a quarter of its values.
CGX_HD uint32_t lanes_of(uint64_t bucket) {
  const uint32_t values = bucket < 4 ? 4 : bucket > 128 ? 128 : static_cast<uint32_t>(bucket);
  // The exponent of a float is the logarithm of its integer part.
  return 1u << ((as_bits(static_cast<float>(values / 4)) >> 23) - 127);
}

CGX_HD void set_meta(BucketMemory& memory, const Tile& tile, uint32_t b, MaxMinMeta meta) {
  memory.meta[b] = meta;
  const CodecRun& run = tile.run;
  if (run.bucket < kGroup) return;
  const bool safe =
      is_stochastic(run) ? maxmin_stochastic_by_reciprocal(meta) : maxmin_by_reciprocal(meta);
  memory.scales[b] = {meta.min, safe ? maxmin_float_reciprocal(meta.unit) : MaxMinReciprocal{0, 0},
                      safe};
}

/// Meta of the tile's buckets into memory.meta. A team takes a bucket at a time.
template <typename Team>
CGX_HD void extremes_phase(const Shared& shared, BucketMemory& memory, const Tile& tile, uint32_t t,
                           const Team& team) {
  const uint32_t bucket = static_cast<uint32_t>(tile.run.bucket);
  const uint32_t lanes = team.lanes, teams = kThreads / lanes;
  // All lanes of a warp go the same way, as their exchange asks for.
  for (uint32_t from = 0; from < tile.buckets; from += teams) {
    const uint32_t b = from + t / lanes;
    Extremes e = Extremes::none();
    if (b < tile.buckets) {
      const uint32_t end = (b + 1) * bucket < tile.n ? (b + 1) * bucket : tile.n;
      for (uint32_t i = b * bucket + t % lanes; i < end; i += lanes) e.see(shared.values[i]);
    }
    for (uint32_t step = lanes / 2; step > 0; step /= 2) {
      Extremes other = {team.exchange(e.min, step), team.exchange(e.max, step), false};
      if (keeps_zeros(tile.run)) other.zero = team.exchange(static_cast<int>(e.zero), step) != 0;
      e.join(other);
    }
    if (b < tile.buckets && t % lanes == 0) {
      set_meta(memory, tile, b, e.meta(tile.run));
    }
  }
}

/// Meta between shared memory and the message.
CGX_HD void store_meta_phase(const BucketMemory& memory, const Tile& tile, unsigned char* message,
                             uint32_t t) {
  auto* to = reinterpret_cast<MaxMinMeta*>(message + tile.run.meta) + tile.bucket;
  for (uint32_t b = t; b < tile.buckets; b += kThreads) to[b] = memory.meta[b];
}
/// For decoding, which needs the meta alone; `for_codes`: for values to become codes.
template <bool for_codes>
CGX_HD void load_meta_phase(BucketMemory& memory, const Tile& tile, const unsigned char* message,
                            uint32_t t) {
  const auto* from = reinterpret_cast<const MaxMinMeta*>(message + tile.run.meta) + tile.bucket;
  for (uint32_t b = t; b < tile.buckets; b += kThreads) {
    if constexpr (for_codes) {
      set_meta(memory, tile, b, from[b]);
    } else {
      memory.meta[b] = from[b];
    }
  }
}

}  // namespace cgx::gpu::maxmin
