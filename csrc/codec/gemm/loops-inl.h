// The loops, which the compiler makes vectors of. A file of ops/foreach_level-inl.h, for the level `scalar`,
// too.
//
// Sums stay in registers. Each step stands once for every row before the next step begins: the rows do not
// wait for each other, where each step of one row waits for the step before.

// Before a loop over rows, whose number is known.
#if defined(__clang__)
#define CGX_EACH_ROW _Pragma("clang loop unroll(full)") for (size_t r = 0; r < rows; ++r)
#else
#define CGX_EACH_ROW _Pragma("GCC unroll 4") for (size_t r = 0; r < rows; ++r)
#endif

namespace cgx::gemm {
namespace CGX_LEVEL {
namespace {

template <size_t rows>
static inline CGX_INLINE void load(const float* from, float (&to)[rows][kLanes]) {
  for (size_t r = 0; r < rows; ++r) {
    __builtin_memcpy(to[r], from + r * kTile, sizeof to[r]);
  }
}
template <size_t rows>
static inline CGX_INLINE void store(const float (&from)[rows][kLanes], float* to) {
  for (size_t r = 0; r < rows; ++r) {
    __builtin_memcpy(to + r * kTile, from[r], sizeof from[r]);
  }
}

template <Way way, size_t rows>
static void run_plain(const Constants& constants, const float* a, const float* b, size_t depth,
                      float* sums, float*) {
  const Rounding<way> rounding(constants);
  alignas(64) float s[rows][kLanes];
  load(sums, s);
  for (size_t k = 0; k < depth; ++k, a += rows, b += kLanes) {
    CGX_INDEPENDENT for (size_t j = 0; j < kLanes; ++j) {
      float p[rows];
      CGX_EACH_ROW p[r] = rounding.product(a[r] * b[j]);
      CGX_EACH_ROW s[r][j] = rounding.sum(s[r][j] + p[r]);
    }
  }
  store(s, sums);
}

template <Way way, size_t rows>
static void run_kahan(const Constants& constants, const float* a, const float* b, size_t depth,
                      float* sums, float* lost) {
  const Rounding<way> rounding(constants);
  alignas(64) float s[rows][kLanes], c[rows][kLanes];
  load(sums, s);
  load(lost, c);
  for (size_t k = 0; k < depth; ++k, a += rows, b += kLanes) {
    CGX_INDEPENDENT for (size_t j = 0; j < kLanes; ++j) {
      float p[rows], y[rows], t[rows], d[rows];
      CGX_EACH_ROW p[r] = rounding.product(a[r] * b[j]);
      CGX_EACH_ROW y[r] = rounding.sum(p[r] - c[r][j]);
      CGX_EACH_ROW t[r] = rounding.sum(s[r][j] + y[r]);
      CGX_EACH_ROW d[r] = rounding.sum(t[r] - s[r][j]);
      CGX_EACH_ROW c[r][j] = rounding.sum(d[r] - y[r]);
      CGX_EACH_ROW s[r][j] = t[r];
    }
  }
  store(s, sums);
  store(c, lost);
}

template <Way way, bool kahan>
static void add(const Constants& constants, const float* numbers, size_t rows, float* sums,
                float* lost) {
  const Rounding<way> rounding(constants);
  for (size_t r = 0; r < rows; ++r, numbers += kTile, sums += kTile, lost += kTile) {
    CGX_INDEPENDENT for (size_t j = 0; j < kLanes; ++j) {
      if constexpr (kahan) {
        const float y = rounding.sum(numbers[j] - lost[j]), t = rounding.sum(sums[j] + y);
        lost[j] = rounding.sum(rounding.sum(t - sums[j]) - y);
        sums[j] = t;
      } else {
        sums[j] = rounding.sum(sums[j] + numbers[j]);
      }
    }
  }
}

// The greatest magnitude of a step's products and of each accumulator, as bits; and the greatest of all.
template <size_t rows>
static inline CGX_INLINE uint32_t hopper_most(const float* a, const float* b, size_t n,
                                              const float (&s)[rows][kLanes],
                                              uint32_t (&most)[rows][kLanes]) {
  for (size_t r = 0; r < rows; ++r) {
    for (size_t j = 0; j < kLanes; ++j) most[r][j] = as_bits(s[r][j]) & 0x7fffffffu;
  }
  for (size_t k = 0; k < n; ++k, a += rows, b += kLanes) {
    CGX_INDEPENDENT for (size_t j = 0; j < kLanes; ++j) {
      CGX_EACH_ROW most[r][j] = greatest_of(as_bits(a[r] * b[j]) & 0x7fffffffu, most[r][j]);
    }
  }
  uint32_t greatest = 0;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t j = 0; j < kLanes; ++j) greatest = greatest_of(most[r][j], greatest);
  }
  return greatest;
}

// A step of n values of K, with finite products and accumulators.
template <size_t rows>
static inline CGX_INLINE void hopper_step(const float* a, const float* b, size_t n,
                                          const uint32_t (&most)[rows][kLanes],
                                          float (&s)[rows][kLanes]) {
  alignas(64) float scale[rows][kLanes];
  alignas(64) int32_t steps[rows][kLanes];
  for (size_t r = 0; r < rows; ++r) {
    for (size_t j = 0; j < kLanes; ++j) {
      const Alignment alignment = alignment_of(most[r][j]);
      scale[r][j] = alignment.scale;
      steps[r][j] = in_steps(alignment.scale, s[r][j]);
    }
  }
  for (size_t k = 0; k < n; ++k, a += rows, b += kLanes) {
    CGX_INDEPENDENT for (size_t j = 0; j < kLanes; ++j) {
      CGX_EACH_ROW steps[r][j] += in_steps(scale[r][j], a[r] * b[j]);
    }
  }
  for (size_t r = 0; r < rows; ++r) {
    for (size_t j = 0; j < kLanes; ++j) {
      s[r][j] = from_steps(alignment_of(most[r][j]).step, steps[r][j]);
    }
  }
}

template <size_t rows>
static void run_hopper(const Constants&, const float* a, const float* b, size_t depth, float* sums,
                       float*) {
  alignas(64) float s[rows][kLanes];
  alignas(64) uint32_t most[rows][kLanes];
  load(sums, s);
  for (size_t k = 0; k < depth; k += kHopperStep) {
    const size_t n = depth - k < kHopperStep ? depth - k : kHopperStep;
    if (hopper_most(a, b, n, s, most) < kExponent) {
      hopper_step(a, b, n, most, s);
    } else {
      for (size_t r = 0; r < rows; ++r) {
        for (size_t j = 0; j < kLanes; ++j) {
          s[r][j] = hopper_sum(a + r, rows, b + j, kLanes, n, s[r][j]);
        }
      }
    }
    a += n * rows;
    b += n * kLanes;
  }
  store(s, sums);
}

template <Way way>
constexpr Kernels kPlain{run_plain<way, kRows>, run_plain<way, 1>, add<way, false>};
template <Way way>
constexpr Kernels kKahan{run_kahan<way, kRows>, run_kahan<way, 1>, add<way, true>};

constexpr Loops kLoops{{{kPlain<Way::kScaled>, kKahan<Way::kScaled>},
                        {kPlain<Way::kClamped>, kKahan<Way::kClamped>},
                        {kPlain<Way::kSelected>, kKahan<Way::kSelected>},
                        {kPlain<Way::kBits>, kKahan<Way::kBits>},
                        {kPlain<Way::kFixed>, kKahan<Way::kFixed>},
                        {kPlain<Way::kCpd>, kKahan<Way::kCpd>},
                        {kPlain<Way::kCpdBits>, kKahan<Way::kCpdBits>},
                        {kPlain<Way::kZero>, kKahan<Way::kZero>},
                        {kPlain<Way::kZeroBits>, kKahan<Way::kZeroBits>},
                        {kPlain<Way::kAnyNearest>, kKahan<Way::kAnyNearest>},
                        {kPlain<Way::kAnyZero>, kKahan<Way::kAnyZero>},
                        {kPlain<Way::kAnyCpd>, kKahan<Way::kAnyCpd>},
                        {{run_hopper<kRows>, nullptr, add<Way::kHopper, false>}, {}}}};

}  // namespace
}  // namespace CGX_LEVEL
}  // namespace cgx::gemm

#undef CGX_EACH_ROW
