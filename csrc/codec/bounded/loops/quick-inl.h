// Faster loops for float32. Included after a level's header, which has a Placer and a Splitter.

constexpr bool kQuick = true;
constexpr size_t kPlaced = 32;  // values of a call of Placer::place()

inline bool can_be_quick(const Grid& grid) {
  return grid.bound >= kQuickLeast && grid.bound <= kQuickMost;
}

// Does to_grid() without a curve. True: one of the values needs place().
inline bool quick_place(const float* x, size_t n, const Grid& grid, int32_t* words) {
  if (!can_be_quick(grid) || n % kPlaced != 0) return true;
  constexpr size_t kEach = kGroup / kRegisters, kCount = kPlaced / kEach;
  Placer placer(grid);
  for (size_t i = 0; i < n; i += kPlaced) {
    Register placed[kCount];
    placer.place(x + i, placed);
    for (size_t k = 0; k < kCount; ++k) store(words + i + kEach * k, placed[k]);
  }
  return !placer.well();
}

// Does split() of n words, n a multiple of 64.
inline bool quick_split(const int32_t* residuals, size_t n, int32_t base, const Low<uint8_t>& low,
                        uint8_t* symbols) {
  Splitter splitter(base, low, symbols);
  for (size_t i = 0; i < n; i += kGroup) {
    Register some[kRegisters];
    for (size_t k = 0; k < kRegisters; ++k) some[k] = load(residuals + i + kGroup / kRegisters * k);
    splitter.split(some, i);
  }
  return splitter.outlier();
}

// Does both in one pass: words stay in registers.
inline bool quick_symbols(const float* x, size_t n, const Grid& grid, int32_t base,
                          const Low<uint8_t>& low, uint8_t* symbols) {
  if (!can_be_quick(grid) || n % 64 != 0) return true;
  Placer placer(grid);
  Splitter splitter(base, low, symbols);
  for (size_t i = 0; i < n; i += kGroup) {
    Register some[kRegisters];
    for (size_t k = 0; k < kGroup; k += kPlaced) {
      placer.place(x + i + k, some + k * kRegisters / kGroup);
    }
    splitter.split(some, i);
  }
  return !placer.well() || splitter.outlier();
}
