// The formulas of `trellis`: the coefficients of a rotated block (codec/rotation/formulas.h), by
// trellis-coded quantization with four states.
//
// With `bits` bits there are 4 M = 2^(bits+1) levels, rising; number 4 m + j belongs to subset j. A
// block is eight sequences, of the coefficients i mod 8 = 0 .. 7, each in rising order. A code is
// 2 m + b: the path bit b[t] and the two before it say which subset the level is from,
//   j = 2 (b[t] ^ b[t-2]) + b[t-1],   b[-1] = b[-2] = 0
// so a decoder looks at three codes only. This is Ungerboeck's four-state code (parity checks 5 and
// 2, octal) with a feed-forward encoder; the state is 2 b[t-1-1] + b[t-1].
//
// An encoder takes the path of least cost (Viterbi): the sum over t of (u - c)^2, c the nearest
// level of the subset, each operation in float32, in rising t. Where two paths meet at equal cost the
// one with the older bit 0 stays; at the end the lowest state of the least cost counts. The nearest
// level is found as in rotated/formulas.h: by how many of the subset's thresholds are below u.
//
// Source: Marcellin and Fischer, Trellis coded quantization of memoryless and Gauss-Markov sources,
// IEEE Transactions on Communications 38, 1990; Ungerboeck 1982 for the code.
//
// This is the only definition of its numerics: see maxmin/formulas.h.
#pragma once

#include "codec/families/trellis/levels.h"

namespace cgx::trellis {

[[maybe_unused]] constexpr int kMostBits = 4;
constexpr uint32_t kSequences = 8;
constexpr uint32_t kStates = 4, kSubsets = 4;
constexpr float kNoPath = 1e30f;

/// Where the levels of a number of bits start in kLevels.
constexpr CGX_HD uint32_t first_level(int bits) { return (2u << bits) - 4; }

/// Levels of a subset.
constexpr CGX_HD uint32_t subset_size(int bits) { return 1u << (bits - 1); }

/// The subset of the step that leaves a state whose bits are b1 and b2 by the bit b.
CGX_HD uint32_t subset_of(uint32_t b, uint32_t b1, uint32_t b2) { return 2 * (b ^ b2) + b1; }

/// Number m of the nearest level of a subset; `levels` starts at the subset's first one.
CGX_HD uint32_t nearest(float u, const float* levels, int bits) {
  uint32_t m = 0;
  for (uint32_t step = subset_size(bits) / 2; step > 0; step /= 2) {
    const uint32_t i = m + step - 1;
    const float threshold = rn_mul(0.5f, rn_add(levels[4 * i], levels[4 * (i + 1)]));
    if (u > threshold) m += step;
  }
  return m;
}

/// The best path so far to each state, and how it got there.
struct Costs {
  float of[kStates];
  CGX_HD static Costs start() { return {{0.0f, kNoPath, kNoPath, kNoPath}}; }
};

/// One step: returns for each state the bit b[t-2] of the path that stays, in bits 0 to 3, and m of
/// each subset from bit 4 on, three bits each.
CGX_HD uint32_t advance(Costs& costs, float u, const float* levels, int bits) {
  uint32_t step = 0;
  float distance[kSubsets];
  for (uint32_t j = 0; j < kSubsets; ++j) {
    const uint32_t m = nearest(u, levels + j, bits);
    const float off = rn_sub(u, levels[4 * m + j]);
    distance[j] = rn_mul(off, off);
    step |= m << (4 + 3 * j);
  }
  const Costs old = costs;
  for (uint32_t state = 0; state < kStates; ++state) {
    const uint32_t b = state & 1, b1 = state >> 1;
    const float zero = rn_add(old.of[b1], distance[subset_of(b, b1, 0)]);
    const float one = rn_add(old.of[b1 + 2], distance[subset_of(b, b1, 1)]);
    costs.of[state] = one < zero ? one : zero;
    step |= (one < zero ? 1u : 0u) << state;
  }
  return step;
}

/// The state in which the best path ends.
CGX_HD uint32_t best_state(const Costs& costs) {
  uint32_t best = 0;
  float least = costs.of[0];
  for (uint32_t state = 1; state < kStates; ++state) {
    if (costs.of[state] < least) best = state, least = costs.of[state];
  }
  return best;
}

/// The code of a step on the path that ends in `state`, which becomes the state before.
CGX_HD uint32_t step_back(uint32_t step, uint32_t& state) {
  const uint32_t b = state & 1, b1 = state >> 1, b2 = step >> state & 1;
  const uint32_t m = step >> (4 + 3 * subset_of(b, b1, b2)) & 7;
  state = b1 + 2 * b2;
  return 2 * m + b;
}

/// The level of a code, and of the two codes before it in the sequence (0 where there is none).
CGX_HD float level_of(uint32_t code, uint32_t before, uint32_t two_before, const float* levels) {
  return levels[4 * (code >> 1) + subset_of(code & 1, before & 1, two_before & 1)];
}

}  // namespace cgx::trellis
