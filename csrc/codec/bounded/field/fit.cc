#include "codec/bounded/field/fit.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace cgx::bounded::field {
namespace {

// Places of a class that are looked at, at most: by scale.
constexpr size_t kLooked[kScales] = {160, 96, 64};
constexpr int kMost = 127;
constexpr double kUnit = 64;
// Variances, in those of the noise of a number: of a cubic through four, of the mean of two cubics, of
// the bend, and of the sink (corners less that mean).
constexpr double kCubic = 164.0 / 256, kMean = kCubic / 2, kSink = 0.25 + kMean;

using System = double[Weights::kCount][Weights::kCount + 1];

// Solves the normal equations; a small part of their trace is added to the diagonal.
void solve(System& a, int count, double* x) {
  double trace = 0;
  for (int i = 0; i < count; ++i) trace += a[i][i];
  for (int i = 0; i < count; ++i) a[i][i] += 1e-4 * trace / count + 1e-300;
  for (int i = 0; i < count; ++i) {
    for (int row = i + 1; row < count; ++row) {
      const double factor = a[row][i] / a[i][i];
      for (int k = i; k <= count; ++k)
        a[row][k == count ? Weights::kCount : k] -= factor * a[i][k == count ? Weights::kCount : k];
    }
  }
  for (int i = count - 1; i >= 0; --i) {
    double sum = a[i][Weights::kCount];
    for (int k = i + 1; k < count; ++k) sum -= a[i][k] * x[k];
    x[i] = sum / a[i][i];
  }
}

// Looks at values of one class at one distance.
template <typename T>
class Looker {
 public:
  Looker(const Source<T>& source, size_t half, int class_)
      : source_(source),
        half_(static_cast<std::ptrdiff_t>(half)),
        line_(static_cast<std::ptrdiff_t>(source.geometry.width)),
        plane_(static_cast<std::ptrdiff_t>(source.geometry.plane())),
        class_(class_) {}

  // The features of the value at a place, and what they should add up to. False: a neighbour is missing.
  bool look(std::ptrdiff_t z, std::ptrdiff_t y, std::ptrdiff_t x, double* features,
            double* wanted) {
    known_ = true;
    *wanted = error(z, y, x);
    const std::ptrdiff_t up = y - 2 * half_;
    features[0] = up >= 0 ? error(z, up, x) : 0;
    features[1] = z > 0 ? error(z - 1, y, x) : 0;
    features[2] = z > 0 && up >= 0 ? error(z - 1, up, x) : 0;
    features[3] = z > 1 ? error(z - 2, y, x) : 0;
    features[4] = features[5] = 0;
    if (class_ == 2) {
      const double across = middle(z, y, x, 1), down = middle(z, y, x, line_);
      const double corners = (number(z, y - half_, x - half_) + number(z, y - half_, x + half_) +
                              number(z, y + half_, x - half_) + number(z, y + half_, x + half_)) *
                             0.25;
      features[4] = (across - down) / 2;
      features[5] = corners - (across + down) / 2;
    }
    return known_;
  }

 private:
  double number(std::ptrdiff_t z, std::ptrdiff_t y, std::ptrdiff_t x) {
    if (y < 0 || x < 0 || x >= line_ || y >= plane_ / line_) {
      known_ = false;
      return 0;
    }
    const std::ptrdiff_t at = z * plane_ + y * line_ + x;
    if (source_.missing != nullptr && source_.missing[at] != 0) known_ = false;
    return static_cast<double>(source_.numbers[at]);
  }
  double middle(std::ptrdiff_t z, std::ptrdiff_t y, std::ptrdiff_t x, std::ptrdiff_t way) {
    const std::ptrdiff_t dy = way == 1 ? 0 : half_, dx = way == 1 ? half_ : 0;
    return (9 * (number(z, y - dy, x - dx) + number(z, y + dy, x + dx)) -
            (number(z, y - 3 * dy, x - 3 * dx) + number(z, y + 3 * dy, x + 3 * dx))) /
           16;
  }
  double error(std::ptrdiff_t z, std::ptrdiff_t y, std::ptrdiff_t x) {
    double base = 0;
    if (class_ == 0) base = middle(z, y, x, 1);
    if (class_ == 1) base = middle(z, y, x, line_);
    if (class_ == 2) base = (middle(z, y, x, 1) + middle(z, y, x, line_)) / 2;
    return number(z, y, x) - base;
  }

  const Source<T>& source_;
  const std::ptrdiff_t half_, line_, plane_;
  const int class_;
  bool known_ = true;
};

template <typename T>
void fit_class(const Source<T>& source, int scale, int class_, double step, Weights& weights) {
  weights = Weights{};
  const size_t half = size_t{1} << scale;
  const size_t first_row = class_ == 0 ? 0 : half, first_column = class_ == 1 ? 0 : half;
  const size_t height = source.geometry.height, width = source.geometry.width;
  if (first_row >= height || first_column >= width) return;
  const size_t rows = (height - first_row + 2 * half - 1) / (2 * half);
  const size_t columns = (width - first_column + 2 * half - 1) / (2 * half);
  const size_t places = source.planes * rows * columns;
  // Not at even distances, which rows may be at.
  const size_t looked = std::min(kLooked[scale], places);
  Looker<T> looker(source, half, class_);
  System system{};
  const int count = class_ == 2 ? Weights::kCount : 4;
  const double noise = step * step / 12;
  for (size_t k = 0; k < looked; ++k) {
    const size_t place = places == looked ? k : (k * places + k * 7919 % places) / looked % places;
    const size_t z = place / (rows * columns), r = place / columns % rows, c = place % columns;
    double features[Weights::kCount], wanted;
    if (!looker.look(static_cast<std::ptrdiff_t>(z),
                     static_cast<std::ptrdiff_t>(first_row + r * 2 * half),
                     static_cast<std::ptrdiff_t>(first_column + c * 2 * half), features, &wanted)) {
      continue;
    }
    // Large errors count less: the size in bits matters, not the square.
    const double share = 1 / (std::fabs(wanted) + step + 1e-300);
    if (!(share < 1e300)) continue;
    for (int i = 0; i < count; ++i) {
      for (int j = 0; j < count; ++j) system[i][j] += share * features[i] * features[j];
      system[i][Weights::kCount] += share * features[i] * wanted;
      const double variance = i < 4 ? 1 + (class_ == 2 ? kMean : kCubic) : i == 4 ? kMean : kSink;
      system[i][i] += share * noise * variance;
    }
    // The mean of both cubics is in the sink and in what is wanted.
    if (class_ == 2) system[5][Weights::kCount] += share * noise * kMean;
  }
  double found[Weights::kCount] = {};
  solve(system, count, found);
  for (int i = 0; i < count; ++i) {
    const double whole = std::nearbyint(found[i] * kUnit);
    weights.of[i] =
        static_cast<int8_t>(std::isfinite(whole) ? std::clamp<double>(whole, -kMost, kMost) : 0);
  }
}

}  // namespace

template <typename T>
void fit_weights(const Source<T>& source, double step, Weights (&weights)[kGroups]) {
  weights[kAnchors] = Weights{};
  for (int scale = 0; scale < kScales; ++scale) {
    for (int class_ = 0; class_ < kClasses; ++class_) {
      fit_class(source, scale, class_, step, weights[group_of(scale, class_)]);
    }
  }
}

template void fit_weights(const Source<float>&, double, Weights (&)[kGroups]);
template void fit_weights(const Source<double>&, double, Weights (&)[kGroups]);

}  // namespace cgx::bounded::field
