// Shuffle and shift tables of bit packing, made at compile time. Shared by all SIMD levels.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cgx::cpu {

/// Unpacks 16 codes: dword i gets the two bytes that hold code i, is shifted right and masked. The
/// codes start `phase` bits (0 to 7) into a 16-byte window, which holds all of them: 16 * 7 + 7
/// bits, or 16 * 8 with phase 0.
struct UnpackTable {
  alignas(64) uint8_t shuffle[64];
  alignas(64) uint32_t shift[16];
};

struct UnpackTables {
  UnpackTable of[9][8];  // [bits][phase]
};

constexpr UnpackTables make_unpack_tables() {
  UnpackTables tables{};
  for (int bits = 1; bits <= 8; ++bits) {
    for (int phase = 0; phase < 8; ++phase) {
      UnpackTable& table = tables.of[bits][phase];
      for (int i = 0; i < 16; ++i) {
        const int bit = phase + i * bits;
        for (int byte = 0; byte < 4; ++byte) {
          const bool holds = byte * 8 < bit % 8 + bits && bit / 8 + byte < 16;
          table.shuffle[4 * i + byte] = static_cast<uint8_t>(holds ? bit / 8 + byte : 0x80);
        }
        table.shift[i] = static_cast<uint32_t>(bit % 8);
      }
    }
  }
  return tables;
}

inline constexpr UnpackTables kUnpack = make_unpack_tables();

/// Packs 16 codes, one per byte of a 128-bit lane, to the 2 * bits low bytes of the lane in three
/// steps: pairs of codes to words, pairs of words to dwords (both by a multiply-add), pairs of
/// dwords by a shift; then drops the gaps.
struct PackTable {
  alignas(16) uint8_t pair[16];     // 1, 2^bits, ...
  alignas(16) uint16_t quad[8];     // 1, 2^(2 bits), ...
  alignas(16) uint8_t squeeze[16];  // of each 64-bit half, the low `bits` bytes
};

struct PackTables {
  PackTable of[8];  // [bits]; codes of 8 bits are bytes already
};

constexpr PackTables make_pack_tables() {
  PackTables tables{};
  for (int bits = 1; bits <= 7; ++bits) {
    PackTable& table = tables.of[bits];
    for (int i = 0; i < 16; ++i) {
      table.pair[i] = static_cast<uint8_t>(i % 2 == 0 ? 1 : 1 << bits);
      table.squeeze[i] = static_cast<uint8_t>(i < 2 * bits ? 8 * (i / bits) + i % bits : 0x80);
    }
    for (int i = 0; i < 8; ++i)
      table.quad[i] = static_cast<uint16_t>(i % 2 == 0 ? 1 : 1 << (2 * bits));
  }
  return tables;
}

inline constexpr PackTables kPack = make_pack_tables();

/// Of each byte, the bits that negate float number i where bit i is set.
struct SignMasks {
  alignas(64) float of[256][8];
};

constexpr SignMasks make_sign_masks() {
  SignMasks masks{};
  for (int byte = 0; byte < 256; ++byte) {
    for (int i = 0; i < 8; ++i) masks.of[byte][i] = byte >> i & 1 ? -0.0f : 0.0f;
  }
  return masks;
}

inline constexpr SignMasks kSignMasks = make_sign_masks();

}  // namespace cgx::cpu
