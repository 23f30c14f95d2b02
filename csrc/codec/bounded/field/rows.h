// The loops over a row of a field's plane, compiled once per SIMD level, with equal results on each.
//
// Rows are worked on in groups of kGroup numbers: all pointers have room for that many beyond the last,
// which are computed, too, and mean nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace cgx::bounded::field {

inline constexpr size_t kGroup = 8;

template <typename T>
using ResidualOf = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;

/// The residual of a place that has none. Its number does not matter.
template <typename T>
inline constexpr ResidualOf<T> kNoResidual =
    static_cast<ResidualOf<T>>(std::make_unsigned_t<ResidualOf<T>>{1} << (8 * sizeof(T) - 1));

/// Magnitude of residuals of grids and of words, at most.
template <typename T>
inline constexpr T kMostResidual = sizeof(T) == 4 ? T{0x1p22} : T{0x1p51};

/// Neighbourhoods are told apart by so many numbers, 0 for one without any error.
inline constexpr int kBins = 64;

/// What the errors of neighbours add to a prediction, in 64ths: of the row before, of the plane before,
/// of the row before in the plane before, and of the plane before that one. The last two are of places
/// between four known values alone: half of what is across less what is down, and the mean of the four
/// corners less the mean of both.
struct Weights {
  static constexpr int kCount = 6;
  int8_t of[kCount] = {};
};

/// A neighbourhood's size is that of six residuals.
inline constexpr float kOneOf = 1.0f / 6;

/// How a field's numbers relate to the block's values.
enum class Kind : uint8_t {
  kGrid = 0,  // number = prediction + residual * step; float32 and float64 within a bound
  kExact =
      1,  // residual = place of the number - place of the prediction, in the order of all numbers
  kWords = 2,  // whole numbers; residual = number - nearest whole number to the prediction
};
inline constexpr int kLastKind = 2;

/// What a row of places is predicted by. T: float or double.
template <typename T>
struct Around {
  // Known values, equally distant, of which the places are in the middle: a, b, [place], c, d. Of a
  // place between four these are across, and `down` of the same kind; its corners are upper[i],
  // upper[i + 1], lower[i] and lower[i + 1]. down[0] is null for all others.
  const T* across[4];
  const T* down[4] = {};
  const T* upper = nullptr;
  const T* lower = nullptr;
  // Errors: of the row before, of the plane before, of both, and of the plane before that one.
  const T *up, *before, *before_up, *before_that;
  // Sizes of residuals: on both sides; above and below (null where `down` is); of the row and of the plane
  // before, null where there is none.
  const float *left, *right;
  const float* above = nullptr;
  const float* below = nullptr;
  const float *size_up, *size_before;
};

/// What is known of a row before its values are.
template <typename T>
struct Expected {
  T* base;       // the cubic through known values, or the mean of two
  T* predicted;  // and the errors of neighbours by their weights; 0 where that is not finite
  float*
      sizes;  // of the neighbourhoods: of both sides, and twice those of the row and plane before
  uint8_t* bins;  // their numbers, below kBins
};

/// A row of residuals, and of what they give.
template <typename T>
struct Found {
  ResidualOf<T>* residuals;
  T* values;
  float* size;  // of the residuals
};

template <typename T>
struct RowLoops {
  /// exact: sizes are relative to the last places of the predictions.
  void (*expect)(const Around<T>& around, const Weights& weights, bool exact, size_t n,
                 const Expected<T>& out);
  void (*bins)(const float* sizes, const T* predicted, bool exact, size_t n, uint8_t* out);

  /// Residuals of x. A residual that would miss the bound is kNoResidual, its value the prediction; a
  /// word's that is larger than kMostResidual is kNoResidual, too.
  void (*to_grid)(const T* x, const T* predicted, size_t n, double step, double bound,
                  const Found<T>& out);
  void (*to_exact)(const T* x, const T* predicted, size_t n, const Found<T>& out);
  void (*to_words)(const T* x, const T* predicted, size_t n, const Found<T>& out);
  /// The inverses. A residual of kNoResidual gives the prediction.
  void (*from_grid)(const T* predicted, size_t n, double step, const Found<T>& out);
  void (*from_exact)(const T* predicted, size_t n, const Found<T>& out);
  void (*from_words)(const T* predicted, size_t n, const Found<T>& out);

  /// Fills in the holes of a row, which are as predicted, in neighbourhoods of these sizes; what is found beside them stays.
  /// hole: by value, 0 or 1.
  void (*put_holes)(const uint8_t* hole, const T* predicted, const float* sizes, size_t n,
                    const Found<T>& out);

  /// Tokens of residuals, and how many bits follow each (tokens.h). False: some must be looked at one by
  /// one, since they are very long or have no token.
  bool (*tokens)(const ResidualOf<T>* residuals, size_t n, uint8_t* tokens, uint8_t* counts);
  /// Tokens of residuals, if all are short (tokens.h); else false. And the inverse.
  bool (*short_tokens)(const ResidualOf<T>* residuals, size_t n, uint8_t* tokens);
  bool (*short_residuals)(const uint8_t* tokens, size_t n, ResidualOf<T>* residuals);

  /// The sum of n numbers, in an order that is the same everywhere.
  double (*sum)(const float* x, size_t n);
  void (*difference)(const T* x, const T* y, size_t n, T* out);
};

template <typename T>
const RowLoops<T>& row_loops();

}  // namespace cgx::bounded::field
