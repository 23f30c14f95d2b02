// The thresholds of `rotated` in the forms that vector code searches, made at compile time. Host
// only.
#pragma once

#include "codec/families/rotated/formulas.h"
#include "codec/rotation/tree.h"

namespace cgx::rotated {

/// Thresholds of wider codes: the magnitude's cell, of 1/64, says how many are below the cell; one
/// more may be inside of it.
template <int bits>
struct Cells {
  static constexpr int kMagnitudes = 1 << (bits - 1);
  static constexpr int kCount = 320;  // the last one has no end
  static constexpr float kPerUnit = 64;
  alignas(64) uint32_t below[kCount] = {};
  alignas(64) float next[kMagnitudes] = {};  // the threshold behind so many
  bool works = true;                         // no cell has two

  constexpr Cells() {
    const float* levels = kLevels + first_level(bits);
    for (int i = 0; i + 1 < kMagnitudes; ++i) next[i] = 0.5f * (levels[i] + levels[i + 1]);
    next[kMagnitudes - 1] = 0x1.fffffep127f;
    for (int cell = 0; cell < kCount; ++cell) {
      uint32_t count = 0, inside = 0;
      for (int i = 0; i + 1 < kMagnitudes; ++i) {
        const float at = next[i] * kPerUnit;
        if (at < static_cast<float>(cell)) ++count;
        if (at >= static_cast<float>(cell) &&
            (at < static_cast<float>(cell + 1) || cell + 1 == kCount))
          ++inside;
      }
      below[cell] = count;
      works = works && inside <= 1;
    }
  }
};

template <int bits>
inline constexpr rotation::Tree<1 << (bits - 1)> kTree{kLevels + first_level(bits), 1};
template <int bits>
inline constexpr Cells<bits> kCells{};

}  // namespace cgx::rotated
