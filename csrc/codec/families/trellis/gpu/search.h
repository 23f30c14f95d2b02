// The nearest level of each subset of `trellis`, by one search. Levels rise, and level 4 m + j is
// number m of subset j; so the threshold between it and the next one of its subset, t[4 m + j],
// rises, too. With q thresholds below u, the nearest levels are the four from number q on, one of
// each subset. As in rotated/gpu/search.h a polynomial says where u lies among the thresholds.
#pragma once

#include "codec/families/trellis/formulas.h"
#include "codec/rotation/gpu/warp_block.h"

namespace cgx::gpu::trellis {

using namespace cgx::trellis;

/// By bits: the factors of 1, u and u^3, and a magnitude that is at least all thresholds'. The
/// polynomial is i + 1 at threshold i, give or take less than a half.
/// tests/native/test_gpu_warps_rotation.cc compares what is found with nearest(), all over the
/// axis.
CGX_TABLE float kGuess[4][4] = {
    {0.0f, 0.0f, 0.0f, 0.0f},
    {2.5f, 2.35105f, -0.8066f, 0.8486f},
    {6.5f, 4.46132f, -0.418694f, 1.638f},
    {14.5f, 7.99679f, -0.418622f, 2.3824f},
};

struct Guess {
  float constant, linear, cubic, most;
};
CGX_HD Guess guess_of(uint32_t bits) {
  const float* guess = kGuess[bits - 1];
  return {guess[0], guess[1], guess[2], guess[3]};
}

/// Thresholds of all subsets.
CGX_HD uint32_t thresholds_of(uint32_t bits) {
  return 4 * (subset_size(static_cast<int>(bits)) - 1);
}

/// kWhole + c: q is c if bound c is below u, else c - 1.
CGX_HD uint32_t cell_of(float u, const Guess& guess) {
  const float x = rotation::greater(lesser(u, guess.most), -guess.most);
  const float factor = rn_fma(rn_mul(x, x), guess.cubic, guess.linear);
  return as_bits(rn_add(rn_fma(factor, x, guess.constant), 0x1p23f));
}

/// Bound 0 is below all values, bound i + 1 is t[i].
CGX_HD float bound_of(const float* levels, uint32_t thresholds, uint32_t i) {
  if (i == 0) return from_bits(0xff800000u);
  if (i > thresholds) return from_bits(0x7f800000u);
  return rn_mul(0.5f, rn_add(levels[i - 1], levels[i + 3]));
}

}  // namespace cgx::gpu::trellis
