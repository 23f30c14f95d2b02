// The one NaN that is written (base/nan.h), over the vector operations of one level. Included by
// simd-inl.h.

/// The NaNs among n values, a multiple of kLanes, become one. Not inlined, or what callers have in
/// registers would be kept for it.
template <typename T>
static __attribute__((noinline)) void make_one_nan(T type, std::byte* y, size_t n) {
  for (size_t i = 0; i < n; i += kLanes) {
    std::byte* at = y + i * T::kBytes;
    store(type, at, one_nan(load(type, at)));
  }
}
