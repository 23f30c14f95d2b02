// Rising borders as a tree, which vector code walks down (search-inl.h). Host only.
#pragma once

namespace cgx::levels {

/// Fills entries 1 to leaves - 1; `leaves`, a power of two, is the number of borders and one more.
/// Entry 1 is the root, 2 j and 2 j + 1 are the children of j. The walk to the right where a value is
/// above a border ends at `leaves` + how many borders are below the value. border(i): number i.
template <typename T, typename Border>
constexpr void fill_tree(T* tree, int leaves, const Border& border) {
  for (int floor = 1; floor < leaves; floor *= 2) {
    const int below = leaves / floor;  // leaves of the subtree of each node
    for (int j = 0; j < floor; ++j) tree[floor + j] = border(j * below + below / 2 - 1);
  }
}

/// The thresholds between levels, made at compile time.
template <int count>
struct Tree {
  alignas(64) float thresholds[count < 2 ? 2 : count] = {};

  /// `levels`: the first of `count` levels that are `stride` apart. Thresholds are half-way between
  /// them, in float32.
  constexpr Tree(const float* levels, int stride) {
    fill_tree(thresholds, count,
              [=](int i) { return 0.5f * (levels[i * stride] + levels[(i + 1) * stride]); });
  }
};

}  // namespace cgx::levels
