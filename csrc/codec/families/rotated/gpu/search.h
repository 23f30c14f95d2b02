// How many thresholds of `rotated` are below a magnitude, without a search. There is a polynomial
// that is i + 1 at threshold i, give or take less than a half. So, rounded, it says how many are
// below or one more; a comparison with one threshold decides.
#pragma once

#include "codec/families/rotated/formulas.h"
#include "codec/rotation/gpu/warp_block.h"

namespace cgx::gpu::rotated {

constexpr uint32_t kMostTerms = 4;

/// Codes of more bits take all terms and more thresholds than a warp has lanes.
[[maybe_unused]] constexpr uint32_t kMostBitsOfLanes = 6;

/// By bits: factors of the powers from 1 on, such that the largest error is least; one threshold
/// needs only a line near it. tests/native/test_gpu_warps_rotation.cc compares what is found with
/// code_of(), all over the axis.
CGX_TABLE float kGuess[8][kMostTerms] = {
    {0.0f, 0.0f, 0.0f, 0.0f},
    {1.0f, 0.0f, 0.0f, 0.0f},
    {2.14508f, -0.240927f, 0.0f, 0.0f},
    {4.20025f, -0.526276f, 0.0f, 0.0f},
    {8.26196f, -1.06821f, 0.0f, 0.0f},
    {16.3049f, -2.10634f, 0.0f, 0.0f},
    {30.1085f, -0.63513f, -1.56453f, 0.207177f},
    {60.5896f, -2.28278f, -2.63478f, 0.344994f},
};

/// The polynomial of a width, and its last threshold: above it the polynomial may fall.
struct Guess {
  float factors[kMostTerms];
  float last;
};
CGX_HD Guess guess_of(const float* levels, uint32_t bits) {
  Guess guess;
  CGX_UNROLL for (uint32_t i = 0; i < kMostTerms; ++i) guess.factors[i] = kGuess[bits - 1][i];
  guess.last = bits == 1 ? 0.0f : cgx::rotated::threshold(levels, (1u << (bits - 1)) - 2);
  return guess;
}

/// start + c: the number of thresholds below is c if bound c is below the magnitude, else c - 1.
/// start: a whole number from 2^23 on, as are the floats whose last bit is one.
template <uint32_t terms>
CGX_HD uint32_t cell_of(float magnitude, const Guess& guess, float start) {
  const float x = lesser(magnitude, guess.last);
  float sum = guess.factors[terms - 1];
  CGX_UNROLL for (uint32_t i = terms - 1; i > 0; --i) sum = rn_fma(sum, x, guess.factors[i - 1]);
  return as_bits(rn_fma(sum, x, start));
}

/// Bound 0 is below all magnitudes, bound i + 1 is threshold i.
CGX_HD float bound_of(const float* levels, uint32_t i) {
  return i == 0 ? -1.0f : cgx::rotated::threshold(levels, i - 1);
}

}  // namespace cgx::gpu::rotated
