// The search for a value's interval among rising borders, over the vector operations of one level:
// by tables in registers, by loads where there are too many. Included after ops/simd-inl.h, like it.

/// Borders of a floor of the tree.
template <int nodes, bool in_registers = (nodes < kSlowTable)>
struct Borders {
  Table<nodes> table;
  Borders(const float* tree, int first) : table(tree + first) {}
  F operator()(I at) const { return table(at); }
};
template <int nodes>
struct Borders<nodes, false> {
  const float* tree;
  Borders(const float* all, int) : tree(all) {}
  F operator()(I at) const { return gather(tree, at); }
};

/// A walk down the tree of borders (tree.h) from node `at` on, which is one of `count` on its floor.
/// The topmost floors share a table.
template <int count, int leaves>
struct Walk {
  static constexpr bool kTop = 2 * count <= static_cast<int>(kLanes);
  static constexpr int kNodes = kTop ? 2 * count : count;
  Borders<kNodes> borders;
  Walk<2 * count, leaves> rest;
  explicit Walk(const float* tree) : borders(tree, kTop ? 0 : count), rest(tree) {}
  inline CGX_INLINE I operator()(F value, I at) const {
    return rest(value, increment_where_greater(add(at, at), value, borders(at)));
  }
};
template <int leaves>
struct Walk<leaves, leaves> {
  explicit Walk(const float*) {}
  inline CGX_INLINE I operator()(F, I at) const { return at; }
};
