// The stages of cuda_float_compress.h for one value, and for the words of groups: for the host and
// for kernels.
#pragma once

#include "base/host_device.h"
#include "base/unroll.h"

namespace cgx::cuda_float_compress {

inline constexpr uint32_t kBlockValues = 32768;
inline constexpr uint32_t kRun = 128;                              // between restarts of deltas
inline constexpr uint32_t kGroup = 32;                             // values and words
inline constexpr uint32_t kGroupsOfBlock = kBlockValues / kGroup;  // distance of a group's words
inline constexpr uint32_t kGroupsOfRun = kRun / kGroup;

inline constexpr uint32_t kMagnitude = 0x7fffffff;  // the bits of a float32 without its sign
inline constexpr float kRange = 0x1p31f;
/// From here on float32 holds integers only.
inline constexpr float kIntegers = 0x1p23f;

struct Grid {
  float step;
  float inverse;  // 1 / step
  double max_error;
  // float32, at most max_error. A difference of two float32 values that rounds to less is less.
  float surely;
};

CGX_HD float value_of(int32_t q, float step) { return rn_mul(static_cast<float>(q), step); }

// Not by a comparison with 0: no CPU predicts the branch on a sign.
CGX_HD double error_of(float x, int32_t q, float step) {
  const double error = static_cast<double>(x) - static_cast<double>(value_of(q, step));
#if defined(__CUDA_ARCH__)
  return fabs(error);
#else
  return __builtin_fabs(error);
#endif
}

/// Negative, unless the magnitude of x is below `limit`, which NaN is not. On bits, as compilers
/// make branches of comparisons, and then do not vectorise.
CGX_HD int32_t room(float x, float limit) {
  return static_cast<int32_t>(as_bits(limit)) - 1 - static_cast<int32_t>(as_bits(x) & kMagnitude);
}

/// p to the nearest integer, ties to even. |p| < 2^31.
CGX_HD int32_t rounded(float p) {
  const float magnitude = from_bits(as_bits(p) & kMagnitude);
  const float integer = rn_sub(rn_add(magnitude, kIntegers), kIntegers);
  const auto whole = static_cast<uint32_t>(room(p, kIntegers) >> 31);  // ~0: p is an integer
  const uint32_t chosen = (as_bits(magnitude) & whole) | (as_bits(integer) & ~whole);
  return static_cast<int32_t>(from_bits(chosen | (as_bits(p) & ~kMagnitude)));
}

/// room: negative if the value may be a misfit, which settle() decides.
struct Quotient {
  int32_t q, room;
};

/// The original's.
CGX_HD Quotient quotient_of(float x, const Grid& grid) {
  const float p = rn_mul(x, grid.inverse);
  const int32_t range = room(p, kRange);
  const int32_t q = rounded(from_bits(as_bits(p) & ~static_cast<uint32_t>(range >> 31)));
  return {q, range | room(rn_sub(x, value_of(q, grid.step)), grid.surely)};
}

/// The neighbour that decodes nearest to x, if the original's quotient q is out of the bound.
CGX_HD int32_t settled(float x, int32_t q, const Grid& grid) {
  double least = error_of(x, q, grid.step);
  if (least <= grid.max_error) return q;
  int32_t nearest = q;
  for (int32_t by = -1; by <= 1; by += 2) {  // |q| <= 2^31 - 128: float32 has none between
    const double error = error_of(x, q + by, grid.step);
    if (error < least) {
      least = error;
      nearest = q + by;
    }
  }
  return nearest;
}

enum class Fit : uint8_t { kFits, kOutOfRange, kOutOfBound };

/// What quotient_of() doubts. q: its quotient, which becomes the one that is written.
CGX_HD Fit settle(float x, const Grid& grid, int32_t& q) {
  if (room(rn_mul(x, grid.inverse), kRange) < 0) return Fit::kOutOfRange;
  q = settled(x, q, grid);
  return error_of(x, q, grid.step) > grid.max_error ? Fit::kOutOfBound : Fit::kFits;
}

CGX_HD uint32_t zigzag(uint32_t d) {
  return (d << 1) ^ static_cast<uint32_t>(static_cast<int32_t>(d) >> 31);
}
CGX_HD uint32_t unzigzag(uint32_t u) { return (u >> 1) ^ (0 - (u & 1)); }

// Groups side by side: words[i][lane] is the value number i, or the row number i, of a group.

/// Swaps row and column of a 16 x 16 matrix of 2-bit fields, of which a word is a row, in all
/// lanes: the halves of halves of halves, as a butterfly. Its own inverse.
template <uint32_t kDistance, uint32_t kLanes>
CGX_HD void swap_fields(uint32_t (*rows)[kLanes], uint32_t mask) {
  constexpr uint32_t kShift = 2 * kDistance;
  CGX_UNROLL for (uint32_t half = 0; half < 16; half += 2 * kDistance) {
    CGX_UNROLL for (uint32_t i = half; i < half + kDistance; ++i) {
      uint32_t* __restrict upper = rows[i];
      uint32_t* __restrict lower = rows[i + kDistance];
#if !defined(CGX_DEVICE_COMPILER)
#pragma GCC unroll 1
#endif
      for (uint32_t lane = 0; lane < kLanes; ++lane) {
        const uint32_t changed = ((upper[lane] >> kShift) ^ lower[lane]) & mask;
        lower[lane] ^= changed;
        upper[lane] ^= changed << kShift;
      }
    }
  }
}

template <uint32_t kLanes>
CGX_HD void transpose_fields(uint32_t (&words)[kGroup][kLanes]) {
  CGX_UNROLL for (uint32_t first = 0; first < kGroup; first += 16) {
    uint32_t (*const rows)[kLanes] = words + first;
    swap_fields<8>(rows, 0x0000ffff);
    swap_fields<4>(rows, 0x00ff00ff);
    swap_fields<2>(rows, 0x0f0f0f0f);
    swap_fields<1>(rows, 0x33333333);
  }
}

/// Where row `row` of a transposed group stands in a block, from its word 0.
CGX_HD uint32_t place(uint32_t row) { return (2 * (row % 16) + row / 16) * kGroupsOfBlock; }

}  // namespace cgx::cuda_float_compress
