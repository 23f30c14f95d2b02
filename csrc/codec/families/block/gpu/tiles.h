// `block` for the kernels: the members that codec/gpu/families.h asks for. A tile holds whole blocks.
#pragma once

#include "codec/families/block/shape.h"
#include "codec/formats/gpu/coding.h"
#include "codec/formats/gpu/packed.h"
#include "codec/gpu/families.h"

namespace cgx::gpu::blocks {

/// Values of the smallest block.
constexpr uint32_t kLeastBlock = 32;

struct Memory {
  cgx::blocks::WireShape shape;
  uint32_t most[kThreads];  // the bits of the greatest magnitude of a thread's group
  float inverse[kTile / kLeastBlock], scale[kTile / kLeastBlock];
};

CGX_HD void prepare(Memory& memory, const CodecRun& run) {
  const coding::Packed of = coding::unpack(run);
  memory.shape = cgx::blocks::wire_shape_of(of.casting, of.scale, of.scale_rounding, run.bucket);
}

CGX_HD uint32_t block_of_group(const Tile& tile, uint32_t t) {
  return kGroup * t / static_cast<uint32_t>(tile.run.bucket);
}

CGX_HD void greatest_phase(const Shared& shared, Memory& memory, const Tile& tile, uint32_t t) {
  uint32_t most = 0;
  for (uint32_t i = kGroup * t; i < kGroup * (t + 1) && i < tile.n; ++i) {
    const uint32_t u = as_bits(shared.values[i]) & 0x7fffffffu;
    most = u > most ? u : most;
  }
  memory.most[t] = most;
}

/// The scale of block number t of the tile, in memory and in the message.
CGX_HD void scale_phase(Memory& memory, const Tile& tile, unsigned char* message, uint32_t t) {
  if (t >= tile.buckets) return;
  const uint32_t groups = static_cast<uint32_t>(tile.run.bucket) / kGroup;
  uint32_t most = 0;
  for (uint32_t g = groups * t; g < groups * (t + 1); ++g) {
    most = memory.most[g] > most ? memory.most[g] : most;
  }
  unsigned char* to = message + tile.run.meta;
  if (memory.shape.wide) {
    memory.scale[t] = cgx::blocks::wide_scale_of(memory.shape.scale_rule, most);
    store_word(to + 4 * (tile.bucket + t), 4, as_bits(memory.scale[t]));
    return;
  }
  const auto scale = cgx::blocks::power_scale_of(memory.shape.scale_rule, most);
  memory.inverse[t] = scale.inverse;
  memory.scale[t] = cgx::blocks::scale_of_byte(scale.byte);
  to[tile.bucket + t] = static_cast<unsigned char>(scale.byte);
}

/// A thread's group, by its block's scale.
CGX_HD void divide_group(Shared& shared, const Memory& memory, const Tile& tile, uint32_t t) {
  if (kGroup * t >= tile.n) return;
  const uint32_t b = block_of_group(tile, t);
  const bool wide = memory.shape.wide;
  const float by = wide ? memory.scale[b] : memory.inverse[b];
  CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) {
    float& x = shared.values[kGroup * t + k];
    x = wide ? rn_div(x, by) : rn_mul(x, by);
  }
}

/// What decoding needs.
CGX_HD void load_scales_phase(Memory& memory, const Tile& tile, const unsigned char* message,
                              uint32_t t) {
  const coding::Packed of = coding::unpack(tile.run);
  if (t == 0) memory.shape.coder.code = formats::code_rule_of(of.casting.format);
  if (t >= tile.buckets) return;
  const unsigned char* from = message + tile.run.meta;
  memory.scale[t] = of.scale == formats::Scale::kFloat32
                        ? from_bits(load_word(from + 4 * (tile.bucket + t), 4))
                        : cgx::blocks::scale_of_byte(from[tile.bucket + t]);
}

struct Tiles : NoLongBuckets {
  static constexpr CGX_HD bool serves(uint8_t family) { return family == kBlockFamily; }
  using Memory = blocks::Memory;

  template <typename Block>
  static CGX_HD void encode(Block& block, Shared& shared, Memory& memory, const Tile& tile,
                            RandomKey key, unsigned char* message) {
    block.phase([&](uint32_t t) {
      if (t == 0) prepare(memory, tile.run);
      greatest_phase(shared, memory, tile, t);
    });
    block.phase([&](uint32_t t) { scale_phase(memory, tile, message, t); });
    block.phase([&](uint32_t t) {
      divide_group(shared, memory, tile, t);
      coding::quantize_phase(shared, memory.shape.coder, tile, key, t);
    });
    block.phase([&](uint32_t t) { coding::store_codes_phase(shared, tile, message, t); });
  }

  template <typename Block>
  static CGX_HD void decode(Block& block, Shared& shared, Memory& memory, const Tile& tile,
                            const unsigned char* message, bool add) {
    block.phase([&](uint32_t t) {
      load_scales_phase(memory, tile, message, t);
      coding::load_codes_phase(shared, tile, message, t);
    });
    values(block, shared, memory, tile, add);
  }

  template <typename Block>
  static CGX_HD void decode_again(Block& block, Shared& shared, Memory& memory, const Tile& tile) {
    values(block, shared, memory, tile, false);
  }

 private:
  template <typename Block>
  static CGX_HD void values(Block& block, Shared& shared, const Memory& memory, const Tile& tile,
                            bool add) {
    block.phase([&](uint32_t t) {
      const uint32_t i = kGroup * t;
      if (i >= tile.n) return;
      const float scale = memory.scale[block_of_group(tile, t)];
      coding::take_group<true>(shared, memory.shape.coder.code, tile, scale, add, i);
    });
  }
};

}  // namespace cgx::gpu::blocks
