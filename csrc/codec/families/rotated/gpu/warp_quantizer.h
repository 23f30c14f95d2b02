// The quantizer of `rotated` for the kernels of warps: see codec/rotation/gpu/warps.h. Up to six
// bits the lanes hold the thresholds and the levels, a register each, and look them up in each
// other; wider codes find them in shared memory.
#pragma once

#include "codec/families/rotated/formulas.h"
#include "codec/families/rotated/gpu/search.h"
#include "codec/families/rotated/rotated.h"
#include "codec/rotation/gpu/warps.h"

namespace cgx::gpu::rotated {

using rotation::kWhole;
using rotation::magnitude;
using rotation::Packed;
using rotation::Rows;

struct WarpQuantizer {
  static constexpr uint8_t kFamily = kRotatedFamily;
  static constexpr uint32_t kTogether = 1;

  struct Memory {
    rotation::Staging staging;
    float bounds[1u << (cgx::rotated::kMostBits - 1)];  // of more than six bits
    float levels[1u << (cgx::rotated::kMostBits - 1)];
  };
  static CGX_HD rotation::Staging& staging(Memory& memory, uint32_t) { return memory.staging; }

  static CGX_HD const float* levels_of(uint32_t bits) {
    return cgx::rotated::kLevels + cgx::rotated::first_level(static_cast<int>(bits));
  }

  /// Fills the memory of wide codes.
  template <typename Warp>
  static CGX_HD void fill(Warp& warp, Memory& memory, uint32_t bits) {
    if (bits <= kMostBitsOfLanes) return;
    warp.share();
    warp.each([&](uint32_t lane) {
      const float* levels = levels_of(bits);
      const uint32_t magnitudes = 1u << (bits - 1);
      CGX_LOOP for (uint32_t i = lane; i < magnitudes; i += kLanes) {
        memory.bounds[i] = bound_of(levels, i);
        memory.levels[i] = levels[i];
      }
    });
    warp.share();
  }

  template <typename Warp>
  struct Encoder {
    template <typename T>
    using Own = typename Warp::template Own<T>;

    Memory& memory;
    uint32_t bits;
    Guess guess;
    Own<float> bounds, levels;  // of lane l: number l and number l - 1, modulo how many there are

    CGX_HD Encoder(Warp& warp, Memory& shared, uint32_t width)
        : memory(shared), bits(width), guess(guess_of(levels_of(width), width)) {
      fill(warp, memory, bits);
      const uint32_t magnitudes = 1u << (bits - 1);
      warp.each([&](uint32_t lane) {
        bounds(lane) = bound_of(levels_of(bits), lane & (magnitudes - 1));
        levels(lane) = levels_of(bits)[(lane - 1) & (magnitudes - 1)];
      });
    }

    template <uint32_t kRows>
    CGX_HD void code(Warp& warp, uint32_t, Own<Rows<kRows>>& u, Own<Packed<kRows>>& packed,
                     Own<float>& product, Own<float>& square) {
      warp.each([&](uint32_t lane) {
        product(lane) = square(lane) = 0.0f;
        // What kWhole + 1 adds to each code below.
        CGX_UNROLL for (uint32_t g = 0; g < kRows / 4; ++g) {
          packed(lane)[g] = 0u - (kWhole + 1) * 0x01010101u;
        }
      });
      if (bits <= kMostBitsOfLanes) {
        CGX_UNROLL for (uint32_t k = 0; k < kRows; ++k) {
          Own<uint32_t> found;
          warp.each([&](uint32_t lane) {
            const float x = u(lane)[k];
            found(lane) = cell_of<2>(magnitude(x), guess, start_of(x));
          });
          const auto bound = warp.take(bounds, found);
          warp.each([&](uint32_t lane) {
            if (magnitude(u(lane)[k]) > bound(lane)) ++found(lane);
          });
          const auto level = warp.take(levels, found);
          warp.each([&](uint32_t lane) {
            add<kRows>(k, u(lane), found(lane), level(lane), packed(lane), product(lane),
                       square(lane));
          });
        }
      } else {
        warp.each([&](uint32_t lane) {
          CGX_UNROLL for (uint32_t k = 0; k < kRows; ++k) {
            const float x = u(lane)[k];
            const uint32_t last = (1u << (bits - 1)) - 1;
            uint32_t found = cell_of<kMostTerms>(magnitude(x), guess, start_of(x));
            if (magnitude(x) > memory.bounds[found & last]) ++found;
            add<kRows>(k, u(lane), found, memory.levels[(found - 1) & last], packed(lane),
                       product(lane), square(lane));
          }
        });
      }
    }

   private:
    /// kWhole + the code of the least magnitude with the sign of u.
    CGX_HD float start_of(float u) const {
      const uint32_t negative = 1u << (bits - 1);
      return from_bits((as_bits(u) >> (32 - bits) & negative) ^ (negative | kWhole));
    }

    /// The code, to its row's byte; the level, into the place of u; and the sums. found: kWhole
    /// + 1 + the code.
    template <uint32_t kRows>
    CGX_HD void add(uint32_t k, Rows<kRows>& u, uint32_t found, float level, Packed<kRows>& packed,
                    float& product, float& square) const {
      const float c = from_bits(as_bits(level) | (as_bits(u[k]) & 0x80000000u));
      packed[k % (kRows / 4)] += found << (8 * (k / (kRows / 4)));
      product = rn_add(product, rn_mul(u[k], c));
      square = rn_add(square, rn_mul(c, c));
      u[k] = c;
    }
  };

  template <typename Warp>
  struct Decoder {
    template <typename T>
    using Own = typename Warp::template Own<T>;

    Memory& memory;
    uint32_t bits;
    float factor;
    Own<float> levels;  // of the code l, at any bits above it; of six bits, magnitude l

    CGX_HD Decoder(Warp& warp, Memory& shared, uint32_t width, float by)
        : memory(shared), bits(width), factor(by) {
      fill(warp, memory, bits);
      warp.each([&](uint32_t lane) {
        const uint32_t magnitudes = 1u << (bits - 1);
        const uint32_t code = bits > 5 ? magnitudes + lane : lane & (2 * magnitudes - 1);
        levels(lane) =
            rn_mul(cgx::rotated::level_of(code, levels_of(bits), static_cast<int>(bits)), factor);
      });
    }

    /// The levels of the codes that start at `from`, times the factor.
    template <uint32_t kRows>
    CGX_HD void load(Warp& warp, const unsigned char* from, Own<Rows<kRows>>& c) {
      rotation::with_bits<cgx::rotated::kMostBits>(bits, [&](auto width) {
        constexpr uint32_t kBits = decltype(width)::kBits, kTop = 1u << (kBits - 1);
        Own<Array<uint32_t, kRows>> codes;
        warp.each([&](uint32_t lane) { rotation::load_codes<kBits>(from, lane, codes(lane)); });
        CGX_UNROLL for (uint32_t k = 0; k < kRows; ++k) {
          if constexpr (kBits <= kMostBitsOfLanes) {
            Own<uint32_t> code;
            warp.each([&](uint32_t lane) { code(lane) = codes(lane)[k]; });
            const auto level = warp.take(levels, code);
            warp.each([&](uint32_t lane) {
              const float x = level(lane);
              c(lane)[k] = kBits > 5 ? signed_by(x, code(lane) >> (kBits - 1)) : x;
            });
          } else {
            warp.each([&](uint32_t lane) {
              const uint32_t code = codes(lane)[k];
              const float x = rn_mul(memory.levels[code & (kTop - 1)], factor);
              c(lane)[k] = signed_by(x, code >> (kBits - 1));
            });
          }
        }
      });
    }

   private:
    /// Negated where the lowest bit is not set.
    static CGX_HD float signed_by(float x, uint32_t bit) {
      return from_bits(as_bits(x) | (~bit << 31));
    }
  };
};

using Warps = rotation::Warps<WarpQuantizer>;

}  // namespace cgx::gpu::rotated
