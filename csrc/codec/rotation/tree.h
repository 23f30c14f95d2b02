// The thresholds between rising levels as a tree, which vector code walks down (search-inl.h). Made
// at compile time. Host only.
#pragma once

namespace cgx::rotation {

/// Entry 1 is the root, 2 j and 2 j + 1 are the children of j. The walk to the right where a value
/// is above the threshold ends at `count` + how many thresholds are below the value.
template <int count>
struct Tree {
  alignas(64) float thresholds[count < 2 ? 2 : count] = {};

  /// `levels`: the first of `count` levels that are `stride` apart. Thresholds are half-way between
  /// them, in float32.
  constexpr Tree(const float* levels, int stride) {
    for (int floor = 1; floor < count; floor *= 2) {
      const int leaves = count / floor;  // of the subtree of each node
      for (int j = 0; j < floor; ++j) {
        const int i = j * leaves + leaves / 2 - 1;
        thresholds[floor + j] = 0.5f * (levels[i * stride] + levels[(i + 1) * stride]);
      }
    }
  }
};

}  // namespace cgx::rotation
