// The thresholds of `rotated` in the forms that vector code searches, made at compile time. Host
// only.
#pragma once

#include "codec/families/rotated/formulas.h"
#include "codec/levels/tree.h"

namespace cgx::rotated {

/// How many thresholds of wider codes are below a magnitude: a line for each of 16 segments of the
/// axis, whose integer part is that number or one less.
template <int bits>
struct Lines {
  static constexpr int kMagnitudes = 1 << (bits - 1);
  static constexpr int kSegments = 16;  // the last one has no end
  static constexpr float kPerUnit = 3.2f;
  static constexpr double kMargin = 1.0 / 64;  // far more than float32's rounding

  float offset[kSegments] = {};
  float slope[kSegments] = {};
  bool works = true;

  constexpr Lines() {
    for (int i = 0; i < kSegments; ++i) {
      const double low = i / double{kPerUnit}, high = (i + 1) / double{kPerUnit};
      const double rise = (count(high) - count(low)) * double{kPerUnit};
      offset[i] = static_cast<float>(count(low) - rise * low);
      slope[i] = static_cast<float>(rise);
      see(i, low), see(i, high);
    }
    for (int j = 0; j + 1 < kMagnitudes; ++j) {
      const double at = threshold(j);
      const int i = static_cast<int>(at * double{kPerUnit});
      works = works && i < kSegments && line(i, at) > j + kMargin && line(i, at) < j + 1 - kMargin;
    }
  }

 private:
  static constexpr double threshold(int j) {
    const float* levels = kLevels + first_level(bits);
    return double{0.5f * (levels[j] + levels[j + 1])};
  }
  constexpr double line(int i, double at) const { return offset[i] + slope[i] * at; }
  /// The number of thresholds below, without its steps: it goes through j + 1/2 at threshold j.
  static constexpr double count(double at) {
    double before = 0, known = 0;
    for (int j = 0; j + 1 < kMagnitudes; ++j) {
      const double here = threshold(j);
      if (at <= here) return known + (j + 0.5 - known) * (at - before) / (here - before);
      before = here, known = j + 0.5;
    }
    return known;
  }
  /// Checks a segment's end.
  constexpr void see(int i, double at) {
    int below = 0;
    while (below + 1 < kMagnitudes && threshold(below) < at) ++below;
    const double most = below + 1 < kMagnitudes ? below + 1 - kMargin : kMagnitudes;
    works = works && line(i, at) >= 0 && line(i, at) > below - 1 + kMargin && line(i, at) < most;
  }
};

template <int bits>
inline constexpr levels::Tree<1 << (bits - 1)> kTree{kLevels + first_level(bits), 1};
template <int bits>
inline constexpr Lines<bits> kLines{};

}  // namespace cgx::rotated
