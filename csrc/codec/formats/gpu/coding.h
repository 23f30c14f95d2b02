// Values of a tile to codes of a format, and back, eight of a thread at a time: what the families whose codes
// are numbers of a format share. Codes have 2 to 8 bits, or 16.
#pragma once

#include "base/unroll.h"
#include "codec/formats/coder.h"
#include "codec/gpu/tile.h"

namespace cgx::gpu::coding {

/// Four codes each: of up to 8 bits they fill half a word, of 16 bits a word.
struct Halves {
  uint64_t low, high;
};

/// The codes of the group at i, in shared.codes; words where they lie on a border.
CGX_HD void put_group(Shared& shared, uint32_t i, uint32_t bits, const Halves& codes) {
  unsigned char* to = shared.codes + i / kGroup * bits;
  const uint64_t all = codes.low | codes.high << (4 * bits % 64);
  if (bits == 16) {
    reinterpret_cast<uint64_t*>(to)[0] = codes.low;
    reinterpret_cast<uint64_t*>(to)[1] = codes.high;
  } else if (bits == 8) {
    *reinterpret_cast<uint64_t*>(to) = all;
  } else {
    CGX_LOOP for (uint32_t k = 0; k < bits; ++k) to[k] = static_cast<unsigned char>(all >> (8 * k));
  }
}
CGX_HD Halves get_group(const Shared& shared, uint32_t i, uint32_t bits) {
  const unsigned char* from = shared.codes + i / kGroup * bits;
  if (bits == 16) {
    const auto* words = reinterpret_cast<const uint64_t*>(from);
    return {words[0], words[1]};
  }
  if (bits == 8) {
    const uint64_t all = *reinterpret_cast<const uint64_t*>(from);
    return {all, all >> 32};
  }
  uint64_t all = 0;
  CGX_LOOP for (uint32_t k = 0; k < bits; ++k) all |= static_cast<uint64_t>(from[k]) << (8 * k);
  return {all, all >> (4 * bits)};
}

template <formats::Kind kind>
CGX_HD uint32_t code_of(const formats::Coder& coder, RandomKey key, uint64_t number, float x) {
  uint32_t random = 0;
  if constexpr (kind == formats::Kind::kStochastic) {
    const RandomKey own = key_of_high(key, static_cast<uint32_t>(number >> 32));
    random = random_bits(static_cast<uint32_t>(number), own.low, own.high);
    random >>= coder.rule.random_shift;
  }
  const float y = formats::rounded<kind>(coder.rule, x, random);
  return formats::code_of(coder.code, formats::unsaturated(coder.code, x, y));
}

template <formats::Kind kind>
CGX_HD void quantize_group(Shared& shared, const formats::Coder& coder, const Tile& tile,
                           RandomKey key, uint32_t i) {
  const uint32_t bits = tile.run.bits;
  const uint64_t first = tile.run.index + tile.first + i;
  const auto code = [&](uint32_t k) {  // 0 behind the last value
    const uint32_t c = code_of<kind>(coder, key, first + k, shared.values[i + k]);
    return static_cast<uint64_t>(i + k < tile.n ? c : 0);
  };
  Halves codes{0, 0};
  CGX_UNROLL for (uint32_t k = 0; k < kGroup / 2; ++k) {
    codes.low |= code(k) << (k * bits);
    codes.high |= code(k + kGroup / 2) << (k * bits);
  }
  put_group(shared, i, bits, codes);
}

/// shared.values to codes, packed in shared.codes.
CGX_HD void quantize_phase(Shared& shared, const formats::Coder& coder, const Tile& tile,
                           RandomKey key, uint32_t t) {
  using formats::Kind;
  const uint32_t i = kGroup * t;
  if (i >= tile.n) return;
  switch (coder.kind) {
    case Kind::kNearest:
      return quantize_group<Kind::kNearest>(shared, coder, tile, key, i);
    case Kind::kZero:
      return quantize_group<Kind::kZero>(shared, coder, tile, key, i);
    default:
      return quantize_group<Kind::kStochastic>(shared, coder, tile, key, i);
  }
}

CGX_HD void store_codes_phase(const Shared& shared, const Tile& tile, unsigned char* message,
                              uint32_t t) {
  copy_bytes(message + tile.codes_at(), shared.codes, tile.code_bytes(), t);
}
CGX_HD void load_codes_phase(Shared& shared, const Tile& tile, const unsigned char* message,
                             uint32_t t) {
  copy_bytes(shared.codes, message + tile.codes_at(), tile.code_bytes(), t);
  if (t < 2 * kGroup) shared.codes[tile.code_bytes() + t] = 0;  // the last group is read whole
}

/// The values of the group at i, each that of its code times `scale`, to shared.values, or added to them.
template <bool scaled>
CGX_HD void take_group(Shared& shared, const formats::CodeRule& rule, const Tile& tile, float scale,
                       bool add, uint32_t i) {
  const uint32_t bits = tile.run.bits, mask = (1u << bits) - 1;
  const Halves codes = get_group(shared, i, bits);
  CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) {
    const uint64_t half = k < kGroup / 2 ? codes.low : codes.high;
    const uint32_t code = static_cast<uint32_t>(half >> (k % (kGroup / 2) * bits)) & mask;
    float x = formats::value_of_code(rule, code);
    if constexpr (scaled) x = rn_mul(x, scale);
    float& y = shared.values[i + k];
    y = add ? rn_add(y, x) : x;  // behind the last value: never stored
  }
}

}  // namespace cgx::gpu::coding
