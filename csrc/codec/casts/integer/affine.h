// Integers with a zero point: the single source of these numerics, for loops and for kernels.
//
// The range of a group, widened to hold 0, is divided into 2^bits - 1 steps: scale s. Its lowest value
// becomes the integer 0, and the value 0 the zero point z, an integer, so that 0 stays 0. A value becomes
// (clamp(round(x / s) + z, 0, 2^bits - 1) - z) s.
#pragma once

#include "codec/formats/scale.h"

namespace cgx::integers {

struct Affine {
  float scale;
  float lowest, highest;  // of round(x / s): -z and 2^bits - 1 - z
};

/// least, greatest: finite, of the group. steps: 2^bits - 1.
CGX_HD_LOOP Affine affine_of(double least, double greatest, double steps) {
  const float largest = from_bits(formats::WordOf<float>::kInfinity - 1);
  const double low = least < 0.0 ? least : 0.0, high = greatest > 0.0 ? greatest : 0.0;
  float scale = static_cast<float>((high - low) / steps);
  scale = low == high ? 1.0f : scale < 0x1p-149f ? 0x1p-149f : scale > largest ? largest : scale;
  // To nearest, ties to even: below 2^23 by the last bit of a float64 near 2^52. Ranges that no scale holds
  // have their end as zero point.
  const double place = -low / static_cast<double>(scale);
  const double zero = ((place < steps ? place : steps) + 0x1p52) - 0x1p52;
  // Not -zero: there is no -0.
  float lowest = static_cast<float>(0.0 - zero), highest = static_cast<float>(steps - zero);
  // No number is infinite.
  lowest = lowest * scale < -largest ? lowest + 1.0f : lowest;
  highest = highest * scale > largest ? highest - 1.0f : highest;
  return {scale, lowest, highest};
}

/// The bits of a value as an integer in the order of the values, -0 before 0. Magnitudes of negative ones are
/// turned, and back by the same.
template <typename Real>
CGX_HD_LOOP typename formats::WordOf<Real>::Signed turned(
    typename formats::WordOf<Real>::Signed bits) {
  using Signed = typename formats::WordOf<Real>::Signed;
  constexpr Signed kMagnitude = static_cast<Signed>(formats::WordOf<Real>::kSign - 1);
  return bits ^ ((bits >> (8 * sizeof(Real) - 1)) & kMagnitude);
}
template <typename Real>
CGX_HD_LOOP typename formats::WordOf<Real>::Signed place_of(Real x) {
  return turned<Real>(static_cast<typename formats::WordOf<Real>::Signed>(as_bits(x)));
}
template <typename Real>
CGX_HD_LOOP Real value_at(typename formats::WordOf<Real>::Signed place) {
  using Word = typename formats::WordOf<Real>::Word;
  return formats::real_of_word(static_cast<Word>(turned<Real>(place)));
}

/// An integer's multiple of the scale. lowest, highest: place_of() the affine's.
template <typename Real>
CGX_HD_LOOP Real multiple_of(Real integer, Real scale,
                             typename formats::WordOf<Real>::Signed lowest,
                             typename formats::WordOf<Real>::Signed highest) {
  typename formats::WordOf<Real>::Signed k = place_of(integer);
  k = k < lowest ? lowest : k;
  k = k > highest ? highest : k;
  return value_at<Real>(k) * scale;
}

}  // namespace cgx::integers
