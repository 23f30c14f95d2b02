// The values of a tile to codes, and back.
#pragma once

#include "codec/families/maxmin/gpu/groups.h"

namespace cgx::gpu::maxmin {

/// Walks the values of a group of eight with the bucket that each belongs to. Of buckets that are shorter.
struct BucketOf {
  uint32_t bucket;  // of the tile
  uint32_t left;    // values of it from here on
  CGX_HD BucketOf(const Tile& tile, uint32_t i) {
    const auto size = static_cast<uint32_t>(tile.run.bucket);
    bucket = i / size;
    left = (bucket + 1) * size - i;
  }
  CGX_HD void next(const Tile& tile) {
    if (--left == 0) ++bucket, left = static_cast<uint32_t>(tile.run.bucket);
  }
};

/// shared.values to codes, packed in shared.codes.
CGX_HD void quantize_phase(Shared& shared, const BucketMemory& memory, const Tile& tile,
                           RandomKey key, uint32_t t) {
  const CodecRun& run = tile.run;
  if (run.bucket >= kGroup) {
    return with_bits(run.bits, QuantizeGroups{shared, memory, tile, key, t});
  }
  const float levels = maxmin_levels(run.bits);
  for (uint32_t i = kGroup * t; i < tile.n; i += kGroup * kThreads) {
    uint64_t packed = 0;
    BucketOf at(tile, i);
    MaxMinScale scale = maxmin_scale(memory.meta[at.bucket], levels);
    uint32_t bucket = at.bucket;
    for (uint32_t k = 0; k < kGroup && i + k < tile.n; ++k, at.next(tile)) {
      if (at.bucket != bucket) scale = maxmin_scale(memory.meta[bucket = at.bucket], levels);
      packed |= static_cast<uint64_t>(code_of(shared, tile, key, i + k, scale)) << (k * run.bits);
    }
    unsigned char* to = shared.codes + i / kGroup * run.bits;
    for (uint32_t k = 0; k < run.bits; ++k) to[k] = static_cast<unsigned char>(packed >> (8 * k));
  }
}

CGX_HD void store_codes_phase(const Shared& shared, const Tile& tile, unsigned char* message,
                              uint32_t t) {
  copy_bytes(message + tile.codes_at(), shared.codes, tile.code_bytes(), t);
}
CGX_HD void load_codes_phase(Shared& shared, const Tile& tile, const unsigned char* message,
                             uint32_t t) {
  copy_bytes(shared.codes, message + tile.codes_at(), tile.code_bytes(), t);
  if (t < kGroup) shared.codes[tile.code_bytes() + t] = 0;  // the last group is read whole
}

/// shared.codes to shared.values, or added to them.
CGX_HD void decode_phase(Shared& shared, const BucketMemory& memory, const Tile& tile, bool add,
                         uint32_t t) {
  const uint32_t bits = tile.run.bits;
  if (tile.run.bucket >= kGroup) {
    return with_bits(bits, DecodeGroups{shared, memory, tile, add, t});
  }
  const uint32_t mask = (1u << bits) - 1;
  for (uint32_t i = 8 * t; i < tile.n; i += 8 * kThreads) {
    const unsigned char* from = shared.codes + i / 8 * bits;
    uint64_t packed = 0;
    for (uint32_t k = 0; k < bits; ++k) packed |= static_cast<uint64_t>(from[k]) << (8 * k);
    BucketOf at(tile, i);
    for (uint32_t k = 0; k < 8 && i + k < tile.n; ++k, at.next(tile)) {
      const uint32_t code = static_cast<uint32_t>(packed >> (k * bits)) & mask;
      const float x = maxmin_value(memory.meta[at.bucket], code);
      shared.values[i + k] = add ? rn_add(shared.values[i + k], x) : x;
    }
  }
}

}  // namespace cgx::gpu::maxmin
