// The codes of a block between a message and the registers of a warp, whose lane has number
// 32 k + lane in row k (warp_block.h). A row is as many words of the message as a code has bits.
#pragma once

#include "codec/rotation/gpu/warp_block.h"

namespace cgx::gpu::rotation {

template <uint32_t bits>
struct Bits {
  static constexpr uint32_t kBits = bits;
};

/// Calls work(Bits<bits>{}) for bits up to `most`.
template <uint32_t most, typename Work>
CGX_HD void with_bits(uint32_t bits, const Work& work) {
  if constexpr (most > 1) {
    if (bits < most) return with_bits<most - 1>(bits, work);
  }
  work(Bits<most>{});
}

/// The lane's codes of a block that starts at `from`. Above their bits lies anything.
template <uint32_t kBits, uint32_t kRows>
CGX_HD void load_codes(const unsigned char* from, uint32_t lane, Array<uint32_t, kRows>& codes) {
  const uint32_t at = lane * kBits, shift = at % 32;
  const auto* words = reinterpret_cast<const uint32_t*>(from) + at / 32;
  if constexpr (32 % kBits == 0) {
    CGX_UNROLL for (uint32_t k = 0; k < kRows; ++k) codes[k] = words[k * kBits] >> shift;
  } else {
    // A code lies in one word or two; a word behind the row is not read.
    const uint32_t* seconds = words + (shift + kBits > 32 ? 1 : 0);
    CGX_UNROLL for (uint32_t k = 0; k < kRows; ++k) {
      const uint64_t both = words[k * kBits] | static_cast<uint64_t>(seconds[k * kBits]) << 32;
      codes[k] = static_cast<uint32_t>(both >> shift);
    }
  }
}

/// A lane's codes, a byte each: byte c of word g is that of row g + c * kRows / 4.
template <uint32_t kRows>
using Packed = Array<uint32_t, kRows / 4>;

/// Memory of a warp for store_codes(). A row of words has four more than lanes, so that lanes which
/// read eight words each read from different banks.
struct alignas(16) Staging {
  static constexpr uint32_t kRow = kLanes + 4;
  uint32_t words[kMostRows / 4 * kRow];
};

/// Eight codes to memory, at a multiple of as many bytes as the largest power of two that divides
/// `bits`, and of four at most.
CGX_HD void store_eight(unsigned char* to, uint64_t codes, uint32_t bits) {
  if (bits == 4) {
    *reinterpret_cast<uint32_t*>(to) = static_cast<uint32_t>(codes);
  } else if (bits == 8) {
    reinterpret_cast<uint32_t*>(to)[0] = static_cast<uint32_t>(codes);
    reinterpret_cast<uint32_t*>(to)[1] = static_cast<uint32_t>(codes >> 32);
  } else if (bits % 2 == 0) {
    CGX_UNROLL for (uint32_t k = 0; k < 3; ++k) {
      if (2 * k < bits) {
        reinterpret_cast<uint16_t*>(to)[k] = static_cast<uint16_t>(codes >> (16 * k));
      }
    }
  } else {
    CGX_UNROLL for (uint32_t k = 0; k < 7; ++k) {
      if (k < bits) to[k] = static_cast<unsigned char>(codes >> (8 * k));
    }
  }
}

/// The codes of a block to the message, from `to` on. Before it and after it lanes may use the
/// memory for something else without waiting for each other.
template <uint32_t kRows, typename Warp>
CGX_HD void store_codes(Warp& warp, Staging& staging,
                        const typename Warp::template Own<Packed<kRows>>& packed, uint32_t bits,
                        unsigned char* to) {
  warp.share();
  warp.each([&](uint32_t lane) {
    CGX_UNROLL for (uint32_t g = 0; g < kRows / 4; ++g) {
      staging.words[g * Staging::kRow + lane] = packed(lane)[g];
    }
  });
  warp.share();
  // A lane joins the codes of eight lanes in four rows: two codes, then four, in the halves of a
  // word, so that one multiplication joins several.
  typename Warp::template Own<Array<uint64_t, 4>> eights;
  warp.each([&](uint32_t lane) {
    if (lane >= kRows) return;
    const auto* from =
        reinterpret_cast<const Vector*>(&staging.words[lane / 4 * Staging::kRow + lane % 4 * 8]);
    const Vector low = from[0], high = from[1];
    const uint32_t two = 1u << bits, four = two << bits;
    CGX_UNROLL for (uint32_t odd = 0; odd < 2; ++odd) {
      const auto pair = [&](const Vector& vector, uint32_t k) {
        return (vector.words[k] >> (8 * odd) & 0x00ff00ffu) +
               (vector.words[k + 1] >> (8 * odd) & 0x00ff00ffu) * two;
      };
      const uint32_t pairs[4] = {pair(low, 0), pair(low, 2), pair(high, 0), pair(high, 2)};
      CGX_UNROLL for (uint32_t half = 0; half < 2; ++half) {
        const auto quad = [&](uint32_t k) {
          return (pairs[k] >> (16 * half) & 0xffffu) +
                 (pairs[k + 1] >> (16 * half) & 0xffffu) * four;
        };
        eights(lane)[odd + 2 * half] = quad(0) | static_cast<uint64_t>(quad(2)) << (4 * bits);
      }
    }
  });
  const bool whole = (bits & (bits - 1)) == 0;  // eight codes are a byte, a half or a word, or two
  if (!whole) warp.share();
  warp.each([&](uint32_t lane) {
    if (lane >= kRows) return;
    auto* bytes = reinterpret_cast<unsigned char*>(staging.words);
    CGX_UNROLL for (uint32_t c = 0; c < 4; ++c) {
      const uint32_t at = (c * kRows + lane) * bits;
      if (whole) {
        store_eight(to + at, eights(lane)[c], bits);
      } else {
        store_eight(bytes + at, eights(lane)[c], bits);
      }
    }
  });
  warp.share();
  if (whole) return;
  warp.each([&](uint32_t lane) {
    auto* words = reinterpret_cast<uint32_t*>(to);
    for (uint32_t i = lane; i < kRows * bits; i += kLanes) words[i] = staging.words[i];
  });
  warp.share();
}

}  // namespace cgx::gpu::rotation
