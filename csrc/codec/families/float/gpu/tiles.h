// `float` for the kernels: the members that codec/gpu/families.h asks for.
#pragma once

#include "codec/families/float/float.h"
#include "codec/formats/gpu/coding.h"
#include "codec/formats/gpu/packed.h"
#include "codec/gpu/families.h"

namespace cgx::gpu::floats {

struct Tiles : NoLongBuckets {
  static constexpr CGX_HD bool serves(uint8_t family) { return family == kFloatFamily; }
  using Memory = formats::Coder;

  template <typename Block>
  static CGX_HD void encode(Block& block, Shared& shared, Memory& memory, const Tile& tile,
                            RandomKey key, unsigned char* message) {
    block.phase([&](uint32_t t) {
      if (t == 0) memory = formats::coder_of(coding::unpack(tile.run).casting);
    });
    block.phase([&](uint32_t t) { coding::quantize_phase(shared, memory, tile, key, t); });
    block.phase([&](uint32_t t) { coding::store_codes_phase(shared, tile, message, t); });
  }

  template <typename Block>
  static CGX_HD void decode(Block& block, Shared& shared, Memory& memory, const Tile& tile,
                            const unsigned char* message, bool add) {
    block.phase([&](uint32_t t) {
      if (t == 0) memory.code = formats::code_rule_of(coding::unpack(tile.run).casting.format);
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
      if (i < tile.n) coding::take_group<false>(shared, memory.code, tile, 1.0f, add, i);
    });
  }
};

}  // namespace cgx::gpu::floats
