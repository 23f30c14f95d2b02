// The buckets of a tile: their extremes, and what travels with them.
#pragma once

#include "codec/gpu/tile.h"

namespace cgx::gpu {

/// Threads that share a bucket: a power of two, at most a warp.
CGX_HD uint32_t lanes_of(uint64_t bucket) {
  uint32_t lanes = 1;
  while (lanes < 32 && 8 * lanes <= bucket) lanes *= 2;
  return lanes;
}

CGX_HD void set_meta(Shared& shared, const Tile& tile, uint32_t b, MaxMinMeta meta) {
  shared.meta[b] = meta;
  const CodecRun& run = *tile.run;
  if (run.inverse == 0 || run.stochastic) return;
  const bool safe = maxmin_by_reciprocal(meta);
  shared.scales[b] = {meta.min, safe ? maxmin_reciprocal(meta.unit) : MaxMinReciprocal{0, 0}, safe};
}

/// Meta of the tile's buckets into shared.meta. `Fold(extremes, lanes)` joins the
/// extremes of `lanes` neighbouring threads.
template <typename Fold>
CGX_HD void extremes_phase(Shared& shared, const Tile& tile, uint32_t t, const Fold& fold,
                           uint32_t lanes, uint32_t threads) {
  const uint32_t bucket = static_cast<uint32_t>(tile.run->bucket);
  const uint32_t teams = threads / lanes;
  const float levels = maxmin_levels(tile.run->bits);
  // All lanes of a warp go the same way, as folding asks for.
  for (uint32_t from = 0; from < tile.buckets; from += teams) {
    const uint32_t b = from + t / lanes;
    Extremes e = Extremes::none();
    if (b < tile.buckets) {
      const uint32_t end = (b + 1) * bucket < tile.n ? (b + 1) * bucket : tile.n;
      for (uint32_t i = b * bucket + t % lanes; i < end; i += lanes) e.see(shared.values[i]);
    }
    fold(e, lanes);
    if (b < tile.buckets && t % lanes == 0) {
      set_meta(shared, tile, b, maxmin_meta(e.min, e.max, e.finite, levels));
    }
  }
}

/// Meta between shared memory and the message.
CGX_HD void store_meta_phase(const Shared& shared, const Tile& tile, unsigned char* message,
                             uint32_t t) {
  auto* to = reinterpret_cast<MaxMinMeta*>(message + tile.run->meta) + tile.bucket;
  for (uint32_t b = t; b < tile.buckets; b += kThreads) to[b] = shared.meta[b];
}
CGX_HD void load_meta_phase(Shared& shared, const Tile& tile, const unsigned char* message,
                            uint32_t t) {
  const auto* from = reinterpret_cast<const MaxMinMeta*>(message + tile.run->meta) + tile.bucket;
  for (uint32_t b = t; b < tile.buckets; b += kThreads) set_meta(shared, tile, b, from[b]);
}

}  // namespace cgx::gpu
