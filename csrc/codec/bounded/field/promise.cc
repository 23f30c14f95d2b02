#include "codec/bounded/field/promise.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "codec/bounded/logarithm.h"

namespace cgx::bounded::field {
namespace {

constexpr size_t kPlaces = 320;
// What a field must save, in bits a value. A row alone has little that other blocks do not see, least of all without a
// bound, where they need no predictions.
constexpr double kRows = 0.02, kRow = 0.25, kExactRow = 3;

}  // namespace

std::vector<uint32_t> promise_places(const Geometry& geometry, size_t n) {
  std::vector<uint32_t> places;
  // Values that differ from their neighbours are all looked at.
  promise_of(geometry, n, 0, [&](size_t i) {
    places.push_back(static_cast<uint32_t>(i));
    return static_cast<double>(i);
  });
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  return places;
}

Promise promise_of(const Geometry& geometry, size_t n, double noise,
                   const std::function<double(size_t)>& value) {
  constexpr Promise kNone{0, 1}, kPerhaps{0, -1};
  const auto width = static_cast<std::ptrdiff_t>(geometry.width);
  // Rows and planes that may be looked at around a place.
  const bool rows = geometry.height > 1, planes = geometry.planes(n) > 1;
  const auto plane = static_cast<std::ptrdiff_t>(geometry.plane());
  const auto number = [&](std::ptrdiff_t i) {
    const bool there = i >= 0 && i < static_cast<std::ptrdiff_t>(n);
    return there ? value(static_cast<size_t>(i)) : std::numeric_limits<double>::quiet_NaN();
  };
  const auto place = [&](size_t k) {
    return static_cast<std::ptrdiff_t>((k * n + k * 7919 % n) / kPlaces % n);
  };
  double mean = 0;
  size_t counted = 0;
  for (size_t k = 0; k < kPlaces; ++k) {
    const double x = number(place(k));
    if (!std::isfinite(x)) continue;
    mean += x;
    ++counted;
  }
  if (counted == 0) return kNone;
  mean /= static_cast<double>(counted);
  const auto middle = [&](std::ptrdiff_t i, std::ptrdiff_t way) {
    return (9 * (number(i - way) + number(i + way)) - (number(i - 3 * way) + number(i + 3 * way))) /
           16;
  };
  enum Way { kMean, kPrevious, kLine, kAcross, kDown, kBoth, kPlane, kWays };
  // Rounding to the grid adds to what words are predicted by, and hardly to a field's numbers.
  constexpr double kFloors[kWays] = {0.4, 0.8, 1.4, 0.4, 0.4, 0.4, 0.4};
  double sums[kWays] = {};
  size_t found = 0, flat = 0;
  for (size_t k = 0; k < kPlaces; ++k) {
    const std::ptrdiff_t i = place(k);
    const double x = number(i), left = number(i - 1);
    // Where all is the same, every way is as good.
    if (x == left && x == number(i + 1)) {
      ++flat;
      continue;
    }
    double errors[kWays] = {x - mean, x - left, x - 2 * left + number(i - 2), x - middle(i, 1)};
    const double across = errors[kAcross];
    errors[kDown] = errors[kBoth] = rows ? x - middle(i, width) : across;
    if (rows) errors[kBoth] = (across + errors[kDown]) / 2;
    errors[kPlane] = errors[kBoth];
    if (planes) {
      const std::ptrdiff_t j = i - plane;
      const double before =
          number(j) - (rows ? (middle(j, 1) + middle(j, width)) / 2 : middle(j, 1));
      if (std::isfinite(before)) errors[kPlane] -= before;
    }
    if (!std::all_of(errors, errors + kWays, [](double e) { return std::isfinite(e); })) continue;
    for (size_t way = 0; way < kWays; ++way) {
      sums[way] += about_log2(std::fabs(errors[way]) + noise * kFloors[way] + 1e-300);
    }
    ++found;
  }
  constexpr size_t kFew = kPlaces / 16;
  // Where holes are most of it, a field knows them as a mask.
  const bool holes = 2 * counted < kPlaces;
  if (found < kFew) return flat + kFew > counted && !holes ? kNone : kPerhaps;
  const auto least = [&](Way from, Way to) {
    return *std::min_element(sums + from, sums + to) / static_cast<double>(found);
  };
  return {least(kMean, kAcross), least(kAcross, kWays),
          rows        ? kRows
          : noise > 0 ? kRow
                      : kExactRow};
}

}  // namespace cgx::bounded::field
