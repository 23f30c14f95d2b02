// Extremes of a run of values, over the vector operations of one level. Included by simd-inl.h.

static inline size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

struct Extremes {
  float min;
  float max;
  bool finite;
};

/// The extremes of n >= 1 values.
template <typename T>
static inline Extremes extremes(T type, const std::byte* x, size_t n) {
  F low, high;
  Nans found;
  size_t i = 0;
  if (n < kLanes) {
    const F v = load_first(type, x, n);
    low = high = blend_first(n, v, set(first_lane(v)));
    found = nans(low, low);
    return {reduce_min(low), reduce_max(low), !any(found)};
  }
  low = high = load(type, x);
  found = nans(low, low);
  F low2 = low, high2 = high;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    const F a = load(type, x + i * T::kBytes);
    const F b = load(type, x + (i + kLanes) * T::kBytes);
    const F c = load(type, x + (i + 2 * kLanes) * T::kBytes);
    const F d = load(type, x + (i + 3 * kLanes) * T::kBytes);
    low = min(low, min(a, b));
    high = max(high, max(a, b));
    low2 = min(low2, min(c, d));
    high2 = max(high2, max(c, d));
    found = either(found, either(nans(a, b), nans(c, d)));
  }
  for (; i < n; i += kLanes) {
    // The last vector may overlap the one before: extremes do not mind.
    const size_t at = smaller(i, n - kLanes);
    const F a = load(type, x + at * T::kBytes);
    low = min(low, a);
    high = max(high, a);
    found = either(found, nans(a, a));
  }
  return {reduce_min(min(low, low2)), reduce_max(max(high, high2)), !any(found)};
}
