// The search for a value's interval among rising thresholds, over the vector operations of one level.
// Included after ops/simd-inl.h, like it.

/// A walk down the tree of thresholds from node `at` on, which is one of `count` on its floor. The
/// topmost floors share a table.
template <int count, int leaves>
struct Walk {
  static constexpr bool kTop = 2 * count <= static_cast<int>(kLanes);
  static constexpr int kNodes = kTop ? 2 * count : count;
  Table<kNodes> nodes;
  Walk<2 * count, leaves> rest;
  explicit Walk(const float* tree) : nodes(tree + (kTop ? 0 : count)), rest(tree) {}
  I operator()(F magnitude, I at) const {
    return rest(magnitude, increment_where_greater(add(at, at), magnitude, nodes(at)));
  }
};
template <int leaves>
struct Walk<leaves, leaves> {
  explicit Walk(const float*) {}
  I operator()(F, I at) const { return at; }
};
