// The quantizer of `trellis` for the kernels of warps: see codec/rotation/gpu/warps.h. Four blocks
// have 32 sequences, and each lane walks one of them: forth, which leaves four bits of each step,
// and back, which leaves one. From these each lane then tells the codes of the values that it has
// of a block.
#pragma once

#include "codec/families/trellis/gpu/search.h"
#include "codec/families/trellis/trellis.h"
#include "codec/rotation/gpu/warps.h"

namespace cgx::gpu::trellis {

using rotation::kMostRows;
using rotation::kWhole;
using rotation::Measures;
using rotation::Packed;
using rotation::Rows;

/// Steps whose decisions are a word.
constexpr uint32_t kStepsOfWord = 8;
/// Steps of a sequence whose values are in a row.
constexpr uint32_t kStepsOfRow = kLanes / kSequences;

struct alignas(16) OfSubsets {
  float of[kSubsets];
};

/// The best paths one step further, as advance() does. `decisions` gets a bit of each state: whether
/// the path stays whose bit b[t-2] is 1. Costs are finite where the path matters, so the sign of
/// their difference says which is less; where they are equal the difference is +0.
CGX_HD void extend(Costs& costs, const float (&distance)[kSubsets], uint32_t& decisions) {
  const Costs old = costs;
  CGX_UNROLL for (uint32_t state = 0; state < kStates; ++state) {
    const uint32_t b = state & 1, b1 = state >> 1;
    const float zero = rn_add(old.of[b1], distance[subset_of(b, b1, 0)]);
    const float one = rn_add(old.of[b1 + 2], distance[subset_of(b, b1, 1)]);
    decisions = moved_up(decisions, as_bits(rn_sub(one, zero)), 1);
    costs.of[state] = lesser(one, zero);
  }
}

struct WarpQuantizer {
  static constexpr uint8_t kFamily = kTrellisFamily;
  static constexpr uint32_t kTogether = kLanes / kSequences;

  /// u of a block; eight values are left out behind it, so that the lanes of different blocks read
  /// from different banks. Once its codes are known, their staging.
  union alignas(16) Slot {
    float u[kMostRows * kLanes + kSequences];
    rotation::Staging staging;
  };
  struct Memory {
    Slot slots[kTogether];
    OfSubsets nearest[kLanes];  // levels, by q + 1
    // Of each lane's sequence, from the first step on: decisions, then in each fourth row the path.
    uint32_t steps[kMostRows * kLanes / kSequences / kStepsOfWord][kLanes];
    Measures measures[kTogether];
  };
  static CGX_HD rotation::Staging& staging(Memory& memory, uint32_t slot) {
    return memory.slots[slot].staging;
  }

  static CGX_HD const float* levels_of(uint32_t bits) {
    return kLevels + first_level(static_cast<int>(bits));
  }

  template <typename Warp>
  struct Encoder {
    template <typename T>
    using Own = typename Warp::template Own<T>;

    Memory& memory;
    uint32_t bits;
    Guess guess;
    Own<float> bounds, levels;  // lane l: bound l, and level l - 1 (lane 0: level 31)

    CGX_HD Encoder(Warp& warp, Memory& shared, uint32_t width)
        : memory(shared), bits(width), guess(guess_of(width)) {
      const float* all = levels_of(bits);
      const uint32_t thresholds = thresholds_of(bits);
      warp.each([&](uint32_t lane) {
        const uint32_t last = thresholds + kSubsets - 1, i = (lane - 1) % kLanes;
        bounds(lane) = bound_of(all, thresholds, lane);
        levels(lane) = all[i < last ? i : last];
        const uint32_t most = lane == 0 ? 0 : lane - 1, q = most < thresholds ? most : thresholds;
        CGX_UNROLL for (uint32_t j = 0; j < kSubsets; ++j) {
          memory.nearest[lane].of[j] = all[q + (j - q) % kSubsets];
        }
      });
    }

    template <uint32_t kRows>
    CGX_HD void put(Warp& warp, uint32_t slot, const Own<Rows<kRows>>& u,
                    const Measures& measures) {
      warp.each([&](uint32_t lane) {
        CGX_UNROLL for (uint32_t k = 0; k < kRows; ++k) {
          memory.slots[slot].u[k * kLanes + lane] = u(lane)[k];
        }
        if (lane == 0) memory.measures[slot] = measures;
      });
    }
    CGX_HD Measures measures(uint32_t slot) const { return memory.measures[slot]; }

    CGX_HD void walk(Warp& warp, uint32_t blocks, uint32_t n) {
      Own<Costs> costs;
      warp.share();
      warp.each([&](uint32_t lane) { costs(lane) = Costs::start(); });
      const uint32_t words = n / (kSequences * kStepsOfWord);
      CGX_LOOP for (uint32_t word = 0; word < words; ++word) {
        Own<uint32_t> decisions;
        CGX_UNROLL for (uint32_t step = 0; step < kStepsOfWord; ++step) {
          Own<float> u;
          Own<uint32_t> found;
          warp.each([&](uint32_t lane) {
            // A lane without a sequence walks another one's.
            const uint32_t slot = lane / kSequences < blocks ? lane / kSequences : 0;
            const float* from = memory.slots[slot].u + lane % kSequences;
            u(lane) = from[(word * kStepsOfWord + step) * kSequences];
            found(lane) = cell_of(u(lane), guess);
          });
          const auto bound = warp.take(bounds, found);
          warp.each([&](uint32_t lane) {
            if (u(lane) > bound(lane)) ++found(lane);
            const OfSubsets near = memory.nearest[found(lane) - kWhole];
            float distance[kSubsets];
            CGX_UNROLL for (uint32_t j = 0; j < kSubsets; ++j) {
              const float off = rn_sub(u(lane), near.of[j]);
              distance[j] = rn_mul(off, off);
            }
            if (step == 0) decisions(lane) = 0;
            extend(costs(lane), distance, decisions(lane));
          });
        }
        warp.each([&](uint32_t lane) { memory.steps[word][lane] = decisions(lane); });
      }
      warp.each([&](uint32_t lane) { walk_back(lane, words, best_state(costs(lane))); });
      warp.share();
    }

    template <uint32_t kRows>
    CGX_HD void code(Warp& warp, uint32_t slot, Own<Rows<kRows>>& u, Own<Packed<kRows>>& packed,
                     Own<float>& product, Own<float>& square) {
      Own<Array<uint32_t, kRows / kStepsOfWord>> paths;
      warp.each([&](uint32_t lane) {
        product(lane) = square(lane) = 0.0f;
        packed(lane) = {};
        CGX_UNROLL for (uint32_t k = 0; k < kRows; ++k) {
          u(lane)[k] = memory.slots[slot].u[k * kLanes + lane];
        }
        uint32_t before = 0;
        CGX_UNROLL for (uint32_t i = 0; i < kRows / kStepsOfWord; ++i) {
          const uint32_t path = memory.steps[4 * i][slot * kSequences + lane % kSequences];
          // A row's step is at lane / 8, and the two before it come first.
          const uint64_t both = static_cast<uint64_t>(path) << 32 | before;
          paths(lane)[i] = subsets(static_cast<uint32_t>(both >> (30 + lane / kSequences)));
          before = path;
        }
      });
      CGX_UNROLL for (uint32_t k = 0; k < kRows; ++k) {
        Own<uint32_t> found;
        warp.each([&](uint32_t lane) { found(lane) = cell_of(u(lane)[k], guess); });
        const auto bound = warp.take(bounds, found);
        warp.each([&](uint32_t lane) {
          if (u(lane)[k] > bound(lane)) ++found(lane);
          // kWhole + 1 + q, to kWhole + 1 + the level's number.
          found(lane) += (step_of(paths(lane), k) - found(lane) + 1) % kSubsets;
        });
        const auto level = warp.take(levels, found);
        warp.each([&](uint32_t lane) {
          const float c = level(lane);
          const uint32_t bit = step_of(paths(lane), k) >> 2 & 1;
          const uint32_t code = ((found(lane) - kWhole - 1) >> 1 & ~1u) | bit;
          packed(lane)[k % (kRows / 4)] |= code << (8 * (k / (kRows / 4)));
          product(lane) = rn_add(product(lane), rn_mul(u(lane)[k], c));
          square(lane) = rn_add(square(lane), rn_mul(c, c));
          u(lane)[k] = c;
        });
      }
    }

   private:
    /// From the state in which the best path ends: its bits, 32 steps in a word, the first one
    /// lowest.
    CGX_HD void walk_back(uint32_t lane, uint32_t words, uint32_t state) {
      uint32_t path = 0;
      CGX_LOOP for (uint32_t word = words; word-- > 0;) {
        const uint32_t decisions = memory.steps[word][lane];
        CGX_UNROLL for (uint32_t step = kStepsOfWord; step-- > 0;) {
          const uint32_t place = kStates * (kStepsOfWord - step) - 1;  // of state 0
          const uint32_t two_before = decisions >> (place - state) & 1;
          path = path << 1 | (state & 1);
          state = state >> 1 | two_before << 1;
        }
        if (word % 4 == 0) memory.steps[word][lane] = path;
      }
    }

    /// Of three bits b[t-2], b[t-1], b[t] at each fourth place: the subset's number in the lower
    /// two, and b[t].
    static CGX_HD uint32_t subsets(uint32_t path) {
      const uint32_t high = path ^ path >> 2;
      return (path >> 1 & 0x11111111u) | (high & 0x11111111u) << 1 | (path & 0x44444444u);
    }
    template <uint32_t n>
    static CGX_HD uint32_t step_of(const Array<uint32_t, n>& paths, uint32_t k) {
      return paths[k / kStepsOfWord] >> (kStepsOfRow * (k % kStepsOfWord));
    }
  };

  template <typename Warp>
  struct Decoder {
    template <typename T>
    using Own = typename Warp::template Own<T>;

    uint32_t bits;
    Own<float> levels;  // level l times the factor, at any bits above its number

    CGX_HD Decoder(Warp& warp, Memory&, uint32_t width, float factor) : bits(width) {
      warp.each([&](uint32_t lane) {
        levels(lane) = rn_mul(levels_of(bits)[lane & ((2u << bits) - 1)], factor);
      });
    }

    /// The levels of the codes that start at `from`, times the factor.
    template <uint32_t kRows>
    CGX_HD void load(Warp& warp, const unsigned char* from, Own<Rows<kRows>>& c) {
      rotation::with_bits<kMostBits>(bits, [&](auto width) {
        constexpr uint32_t kBits = decltype(width)::kBits;
        Own<Array<uint32_t, kRows>> codes;
        Own<uint32_t> path, back, two_back;  // bit k of row k
        warp.each([&](uint32_t lane) {
          rotation::load_codes<kBits>(from, lane, codes(lane));
          path(lane) = 0;
          CGX_UNROLL for (uint32_t k = 0; k < kRows; ++k) path(lane) |= (codes(lane)[k] & 1) << k;
          back(lane) = (lane - kSequences) % kLanes;
          two_back(lane) = (lane - 2 * kSequences) % kLanes;
        });
        const auto before = warp.take(path, back), two_before = warp.take(path, two_back);
        Own<uint32_t> low, high;
        // The first lanes find the steps before theirs in the row before.
        warp.each([&](uint32_t lane) {
          low(lane) = before(lane) << (lane < kSequences ? 1 : 0);
          high(lane) = path(lane) ^ two_before(lane) << (lane < 2 * kSequences ? 1 : 0);
        });
        CGX_UNROLL for (uint32_t k = 0; k < kRows; ++k) {
          Own<uint32_t> number;
          warp.each([&](uint32_t lane) {
            number(lane) =
                (codes(lane)[k] << 1 & ~3u) | (high(lane) >> k & 1) << 1 | (low(lane) >> k & 1);
          });
          const auto level = warp.take(levels, number);
          warp.each([&](uint32_t lane) { c(lane)[k] = level(lane); });
        }
      });
    }
  };
};

using Warps = rotation::Warps<WarpQuantizer>;

}  // namespace cgx::gpu::trellis
