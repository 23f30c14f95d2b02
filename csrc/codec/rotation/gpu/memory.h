// What a thread block keeps of the rotated blocks of a tile, and where their values lie.
#pragma once

#include "codec/gpu/families.h"
#include "codec/rotation/formulas.h"

namespace cgx::gpu::rotation {

using namespace cgx::rotation;

/// Rotated blocks of a tile, at most.
constexpr uint32_t kBlocksOfTile = kTile / kLeastBlock;
static_assert(kLargestBlock <= kLongestTile);

struct BlockMemory {
  Values work;  // decoding: w; encoding: what the quantizer needs
  uint64_t signs;
  float sums[kBlocksOfTile][2][kSumLanes];
  Prescale by[kBlocksOfTile];
  Norm norm[kBlocksOfTile];  // inverse 0: zeros, or not finite
  float scale[kBlocksOfTile];
};

/// The part of a tile that is one block.
struct Block {
  uint32_t first;  // value of the tile
  uint32_t n;      // values
};
CGX_HD Block block_of(const Tile& tile, uint32_t b) {
  const uint32_t size = static_cast<uint32_t>(tile.run.bucket), first = b * size;
  return {first, tile.n - first < size ? tile.n - first : size};
}

/// Stages work in place, so a stage's value number j is not at place j. `source` is the place in
/// the stage's input of what becomes value j of its output: f(j) = 2 j, or 2 (j - h) + 1 from h =
/// ceil(n / 2) on. After s stages value j is at place f applied s times to j; for a power of two
/// and all stages that is j.
CGX_HD uint32_t source(uint32_t j, uint32_t n) {
  const uint32_t half = (n + 1) / 2;
  return j < half ? 2 * j : 2 * (j - half) + 1;
}
CGX_HD uint32_t place(uint32_t j, uint32_t n, uint32_t stages) {
  if ((n & (n - 1)) == 0) {  // f rotates the k bits of j
    const uint32_t k = stages_of(n);
    if (stages == k) return j;
    return (j << stages | j >> (k - stages)) & (n - 1);
  }
  for (uint32_t s = 0; s < stages; ++s) j = source(j, n);
  return j;
}

/// One stage of the tile's blocks, in place; a block of fewer values may have fewer stages.
template <bool back>
CGX_HD void stage_phase(Values& z, const Tile& tile, uint32_t number, uint32_t t) {
  for (uint32_t b = 0; b < tile.buckets; ++b) {
    const Block block = block_of(tile, b);
    if (number >= stages_of(block.n)) continue;
    for (uint32_t i = t; i < block.n / 2; i += kThreads) {
      float& p = z[block.first + place(2 * i, block.n, number)];
      float& q = z[block.first + place(2 * i + 1, block.n, number)];
      const float a = p, other = q;
      p = rn_add(a, other);
      q = rn_sub(a, other);
    }
    if (block.n % 2 == 1 && t == 0) {
      float& last = z[block.first + place(block.n - 1, block.n, number)];
      last = rn_mul(kRootOfTwo, last);
    }
  }
}

/// All stages, forth or back.
template <bool back, typename Threads>
CGX_HD void rotate(Threads& threads, Values& z, const Tile& tile) {
  const uint32_t size = static_cast<uint32_t>(tile.run.bucket);
  const uint32_t stages = stages_of(tile.n < size ? tile.n : size);
  for (uint32_t s = 0; s < stages; ++s) {
    threads.phase([&](uint32_t t) { stage_phase<back>(z, tile, back ? stages - 1 - s : s, t); });
  }
}

/// Code number i of the tile, from shared.codes, of which one byte behind the codes is read.
CGX_HD uint32_t code_at(const Shared& shared, const Tile& tile, uint32_t i) {
  const uint32_t bits = tile.run.bits, at = i * bits;
  const uint32_t word = shared.codes[at / 8] | static_cast<uint32_t>(shared.codes[at / 8 + 1]) << 8;
  return word >> (at % 8) & ((1u << bits) - 1);
}

/// Packs eight codes from number i on; those behind the tile's last value are 0.
template <typename Code>
CGX_HD void put_codes(Shared& shared, const Tile& tile, uint32_t i, const Code& code) {
  const uint32_t bits = tile.run.bits;
  uint64_t packed = 0;
  for (uint32_t k = 0; k < kGroup && i + k < tile.n; ++k) {
    packed |= static_cast<uint64_t>(code(i + k)) << (k * bits);
  }
  unsigned char* to = shared.codes + i / kGroup * bits;
  for (uint32_t k = 0; k < bits; ++k) to[k] = static_cast<unsigned char>(packed >> (8 * k));
}

}  // namespace cgx::gpu::rotation
