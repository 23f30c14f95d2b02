// The loops of one SIMD level. A file of ops/foreach_level-inl.h. The compiler vectorises them; every
// operation is exact or rounded once, in the order that is written, so vectors give the same bits.

namespace cgx::bounded::field {
namespace CGX_LEVEL {
namespace {

// Pointers of a loop do not overlap.
#if defined(__clang__)
#define CGX_APART _Pragma("clang loop vectorize(assume_safety)")
#else
#define CGX_APART _Pragma("GCC ivdep")
#endif

template <typename T>
struct Of;
template <>
struct Of<float> {
  using Bits = int32_t;
  using Unsigned = uint32_t;
  static constexpr float kGreatest = 0x1.fffffep127f;
  static constexpr float kRounder = 0x1.8p23f;          // below 2^22
  static constexpr float kMost = kMostResidual<float>;  // of a residual
  static constexpr Bits kMagnitude = 0x7fffffff;
};
template <>
struct Of<double> {
  using Bits = int64_t;
  using Unsigned = uint64_t;
  static constexpr double kGreatest = 0x1.fffffffffffffp1023;
  static constexpr double kRounder = 0x1.8p52;
  static constexpr double kMost = kMostResidual<double>;
  static constexpr Bits kMagnitude = 0x7fffffffffffffff;
};

template <typename T>
inline CGX_INLINE T magnitude_of(T x) {
  using Bits = typename Of<T>::Bits;
  return __builtin_bit_cast(T, __builtin_bit_cast(Bits, x) & Of<T>::kMagnitude);
}

// All bits are set where it holds.
template <typename T>
inline CGX_INLINE typename Of<T>::Bits mask_of(bool holds) {
  return 0 - static_cast<typename Of<T>::Bits>(holds);
}

// By masks: compilers make branches of choices, and then no vectors.
template <typename T>
inline CGX_INLINE T where(typename Of<T>::Bits mask, T x) {
  return __builtin_bit_cast(T, __builtin_bit_cast(typename Of<T>::Bits, x) & mask);
}

// a - b, wrapping.
template <typename T>
inline CGX_INLINE ResidualOf<T> less(ResidualOf<T> a, ResidualOf<T> b) {
  using U = typename Of<T>::Unsigned;
  return static_cast<ResidualOf<T>>(static_cast<U>(a) - static_cast<U>(b));
}

// The whole number that is in the low bits of `sum`, of it and kRounder.
template <typename T>
inline CGX_INLINE ResidualOf<T> low_bits_of(T sum) {
  return less<T>(__builtin_bit_cast(ResidualOf<T>, sum),
                 __builtin_bit_cast(ResidualOf<T>, Of<T>::kRounder));
}

// Whole numbers to the nearest, ties to even; magnitudes below kMost.
template <typename T>
inline CGX_INLINE T rounded(T x) {
  return (x + Of<T>::kRounder) - Of<T>::kRounder;
}

// The same; 0 for larger numbers, among which are halves.
template <typename T>
inline CGX_INLINE T whole(T x) {
  return where(mask_of<T>(magnitude_of(x) < Of<T>::kMost), rounded(x));
}

// The place of a number among all of its type: its bits, those of negative numbers mirrored.
template <typename T>
inline CGX_INLINE typename Of<T>::Bits place_of(T x) {
  using Bits = typename Of<T>::Bits;
  const Bits bits = __builtin_bit_cast(Bits, x);
  return bits ^ ((bits >> (8 * sizeof(T) - 1)) & Of<T>::kMagnitude);
}
template <typename T>
inline CGX_INLINE T number_at(typename Of<T>::Bits place) {
  return __builtin_bit_cast(T, place ^ ((place >> (8 * sizeof(T) - 1)) & Of<T>::kMagnitude));
}

// Numbers of whole groups.
inline CGX_INLINE size_t whole_groups(size_t n) { return (n + kGroup - 1) / kGroup * kGroup; }

// The cubic through four equally distant values, in the middle.
template <typename T>
inline CGX_INLINE T middle(T a, T b, T c, T d) {
  return (T{9} * (b + c) - (a + d)) * T{0.0625};
}

template <typename T>
inline CGX_INLINE uint8_t bin_of(float size, T predicted, bool exact) {
  // The exponent of a float, in halves where the range allows.
  constexpr int32_t kHalves = 22, kWholes = 23, kBias = 127;
  const int32_t bits = __builtin_bit_cast(int32_t, size);
  int32_t bin;
  if (!exact) {
    bin = (bits >> kHalves) - (2 * kBias - 2);
  } else {
    const float number = static_cast<float>(magnitude_of(predicted));
    const int32_t exponent = __builtin_bit_cast(int32_t, number) >> kWholes;
    if constexpr (sizeof(T) == 4) {
      bin = (bits >> kHalves) - 2 * exponent + 2 * 23;
    } else {
      bin = (bits >> kWholes) - exponent + 52;
    }
  }
  bin = bin < 1 ? 1 : bin;
  bin = bin > kBins - 1 ? kBins - 1 : bin;
  return static_cast<uint8_t>(bits == 0 ? 0 : bin);
}

template <typename T, bool kExact>
void bins_of(const float* sizes, const T* predicted, size_t n, uint8_t* __restrict out) {
  CGX_APART for (size_t i = 0; i < n; ++i) out[i] = bin_of(sizes[i], predicted[i], kExact);
}

template <typename T>
void bins(const float* sizes, const T* predicted, bool exact, size_t n, uint8_t* __restrict out) {
  if (exact) {
    bins_of<T, true>(sizes, predicted, n, out);
  } else {
    bins_of<T, false>(sizes, predicted, n, out);
  }
}

template <typename T, bool kBoth>
void expect_numbers(const Around<T>& from, const Weights& weights, size_t n,
                    const Expected<T>& out) {
  const T *a = from.across[0], *b = from.across[1], *c = from.across[2], *d = from.across[3];
  const T *e = from.down[0], *f = from.down[1], *g = from.down[2], *h = from.down[3];
  const T *upper = from.upper, *lower = from.lower;
  const T *up = from.up, *before = from.before, *before_up = from.before_up;
  const T* before_that = from.before_that;
  T* __restrict base = out.base;
  T* __restrict predicted = out.predicted;
  T w[Weights::kCount];
  for (int k = 0; k < Weights::kCount; ++k) w[k] = static_cast<T>(weights.of[k]) * T{0.015625};
  CGX_APART for (size_t i = 0; i < n; ++i) {
    const T across = middle(a[i], b[i], c[i], d[i]);
    T mean = across;
    T more = (w[0] * up[i] + w[1] * before[i]) + (w[2] * before_up[i] + w[3] * before_that[i]);
    if constexpr (kBoth) {
      const T down = middle(e[i], f[i], g[i], h[i]);
      mean = (across + down) * T{0.5};
      const T corners = ((upper[i] + upper[i + 1]) + (lower[i] + lower[i + 1])) * T{0.25};
      more = more + (w[4] * ((across - down) * T{0.5}) + w[5] * (corners - mean));
    }
    base[i] = mean;
    const T sum = mean + more;
    predicted[i] = where(mask_of<T>(magnitude_of(sum) <= Of<T>::kGreatest), sum);
  }
}

template <bool kBoth>
void expect_sizes(const float* left, const float* right, const float* above, const float* below,
                  const float* up, const float* before, size_t n, float* __restrict out) {
  CGX_APART for (size_t i = 0; i < n; ++i) {
    float sides = left[i] + right[i];
    if constexpr (kBoth) sides = (sides + (above[i] + below[i])) * 0.5f;
    out[i] = sides;
  }
  if (up != nullptr && before != nullptr) {
    CGX_APART for (size_t i = 0; i < n; ++i) out[i] = out[i] + 2 * (up[i] + before[i]);
  } else if (up == nullptr && before == nullptr) {
    CGX_APART for (size_t i = 0; i < n; ++i) out[i] = out[i] * 3;
  } else {
    const float* const one = up != nullptr ? up : before;
    CGX_APART for (size_t i = 0; i < n; ++i) out[i] = 2 * (out[i] + one[i]);
  }
}

template <typename T>
void expect(const Around<T>& from, const Weights& weights, bool exact, size_t n,
            const Expected<T>& out) {
  n = whole_groups(n);
  if (from.down[0] != nullptr) {
    expect_numbers<T, true>(from, weights, n, out);
    expect_sizes<true>(from.left, from.right, from.above, from.below, from.size_up,
                       from.size_before, n, out.sizes);
  } else {
    expect_numbers<T, false>(from, weights, n, out);
    expect_sizes<false>(from.left, from.right, nullptr, nullptr, from.size_up, from.size_before, n,
                        out.sizes);
  }
  bins(out.sizes, out.predicted, exact, n, out.bins);
}

template <typename T>
void to_grid(const T* x, const T* predicted, size_t n, double step, double bound,
             const Found<T>& out) {
  ResidualOf<T>* __restrict residuals = out.residuals;
  T* __restrict y = out.values;
  float* __restrict size = out.size;
  const T wide = static_cast<T>(step), inverse = static_cast<T>(1 / step);
  // What a difference of numbers of the type may be, so that the exact one is within the bound: it is
  // rounded once, but exact among subnormal numbers, where this one may be rounded up.
  T most = static_cast<T>(bound * (1 - (sizeof(T) == 4 ? 0x1p-22 : 0x1p-51)));
  if (static_cast<double>(most) > bound) {
    most = __builtin_bit_cast(T, __builtin_bit_cast(typename Of<T>::Bits, most) - 1);
  }
  n = whole_groups(n);
  CGX_APART for (size_t i = 0; i < n; ++i) {
    const T steps = (x[i] - predicted[i]) * inverse;
    const T sum = steps + Of<T>::kRounder;  // the whole number is in its low bits
    const T count = sum - Of<T>::kRounder;
    const T number = predicted[i] + count * wide;
    const auto fits = mask_of<T>(magnitude_of(steps) < Of<T>::kMost) &
                      mask_of<T>(magnitude_of(x[i] - number) <= most);
    const ResidualOf<T> residual = low_bits_of(sum);
    const T whole_steps = where(fits, count);
    residuals[i] = (residual & fits) | (kNoResidual<T> & ~fits);
    y[i] = predicted[i] + whole_steps * wide;
    size[i] = static_cast<float>(magnitude_of(whole_steps));
  }
}

// A whole number as T; magnitudes up to kMost. Lanes behind the last value may have any.
template <typename T>
inline CGX_INLINE T number_of(ResidualOf<T> residual) {
  using U = typename Of<T>::Unsigned;
  const U sum = static_cast<U>(residual) + __builtin_bit_cast(U, Of<T>::kRounder);
  return __builtin_bit_cast(T, sum) - Of<T>::kRounder;
}

template <typename T>
void from_grid(const T* predicted, size_t n, double step, const Found<T>& out) {
  const ResidualOf<T>* residuals = out.residuals;
  T* __restrict y = out.values;
  float* __restrict size = out.size;
  const T wide = static_cast<T>(step);
  n = whole_groups(n);
  CGX_APART for (size_t i = 0; i < n; ++i) {
    const auto fits = mask_of<T>(residuals[i] != kNoResidual<T>);
    const T count = number_of<T>(residuals[i] & fits);
    y[i] = predicted[i] + count * wide;
    size[i] = static_cast<float>(magnitude_of(count));
  }
}

template <typename T>
void to_exact(const T* x, const T* predicted, size_t n, const Found<T>& out) {
  using U = typename Of<T>::Unsigned;
  ResidualOf<T>* __restrict residuals = out.residuals;
  T* __restrict y = out.values;
  float* __restrict size = out.size;
  n = whole_groups(n);
  CGX_APART for (size_t i = 0; i < n; ++i) {
    residuals[i] = static_cast<ResidualOf<T>>(static_cast<U>(place_of(x[i])) -
                                              static_cast<U>(place_of(predicted[i])));
    y[i] = x[i];
    size[i] = static_cast<float>(magnitude_of(x[i] - predicted[i]));
  }
}

template <typename T>
void from_exact(const T* predicted, size_t n, const Found<T>& out) {
  using U = typename Of<T>::Unsigned;
  using Bits = typename Of<T>::Bits;
  const ResidualOf<T>* residuals = out.residuals;
  T* __restrict y = out.values;
  float* __restrict size = out.size;
  n = whole_groups(n);
  CGX_APART for (size_t i = 0; i < n; ++i) {
    const auto fits = mask_of<T>(residuals[i] != kNoResidual<T>);
    const T number = number_at<T>(static_cast<Bits>(static_cast<U>(place_of(predicted[i])) +
                                                    static_cast<U>(residuals[i] & fits)));
    y[i] = number;
    size[i] = static_cast<float>(magnitude_of(number - predicted[i]));
  }
}

template <typename T>
void to_words(const T* x, const T* predicted, size_t n, const Found<T>& out) {
  ResidualOf<T>* __restrict residuals = out.residuals;
  T* __restrict y = out.values;
  float* __restrict size = out.size;
  n = whole_groups(n);
  CGX_APART for (size_t i = 0; i < n; ++i) {
    const T difference = x[i] - whole(predicted[i]);
    const auto fits = mask_of<T>(magnitude_of(difference) <= Of<T>::kMost);
    residuals[i] = (low_bits_of(difference + Of<T>::kRounder) & fits) | (kNoResidual<T> & ~fits);
    y[i] = x[i];
    size[i] = static_cast<float>(magnitude_of(difference));
  }
}

template <typename T>
void from_words(const T* predicted, size_t n, const Found<T>& out) {
  const ResidualOf<T>* residuals = out.residuals;
  T* __restrict y = out.values;
  float* __restrict size = out.size;
  n = whole_groups(n);
  CGX_APART for (size_t i = 0; i < n; ++i) {
    const auto fits = mask_of<T>(residuals[i] != kNoResidual<T>);
    const T difference = number_of<T>(residuals[i] & fits);
    y[i] = whole(predicted[i]) + difference;
    size[i] = static_cast<float>(magnitude_of(difference));
  }
}

template <typename T>
bool short_tokens(const ResidualOf<T>* residuals, size_t n, uint8_t* __restrict tokens) {
  using U = typename Of<T>::Unsigned;
  constexpr U kFirstLong = static_cast<U>(Tokens<ResidualOf<T>>::kFirstLong);
  U all = 0;
  CGX_APART for (size_t i = 0; i < n; ++i) {
    const ResidualOf<T> r = residuals[i];
    const U folded = (static_cast<U>(r) << 1) ^ static_cast<U>(r >> (8 * sizeof(T) - 1));
    all = folded > all ? folded : all;
    tokens[i] = static_cast<uint8_t>(folded);
  }
  return all < kFirstLong;
}

template <typename T>
bool tokens(const ResidualOf<T>* residuals, size_t n, uint8_t* __restrict out,
            uint8_t* __restrict counts) {
  using Bits = typename Of<T>::Bits;
  using Known = Tokens<ResidualOf<T>>;
  // A whole number below 2^24 or 2^53 is a number of the type: its exponent says how long it is, the
  // highest bits of its mantissa are those that the token has.
  constexpr int kMantissa = sizeof(T) == 4 ? 23 : 52;
  constexpr Bits kBias = sizeof(T) == 4 ? 127 : 1023;
  constexpr Bits kLongest = Bits{1} << (kMantissa - 1);
  Bits longest = 0;
  CGX_APART for (size_t i = 0; i < n; ++i) {
    const Bits residual = residuals[i];
    const Bits sign = residual >> (8 * sizeof(T) - 1);
    const Bits magnitude = less<T>(residual ^ sign, sign);
    longest |= magnitude;
    const Bits bits = __builtin_bit_cast(Bits, number_of<T>(magnitude & (kLongest - 1)));
    const Bits place =
        (bits >> (kMantissa - Known::kKept)) - ((kBias + Known::kSmall) << Known::kKept);
    const Bits rest = (bits >> kMantissa) - kBias - Known::kKept;
    const Bits folded = (residual << 1) ^ sign;
    const Bits is_short = mask_of<T>(magnitude < (Bits{1} << Known::kSmall));
    const Bits is_long = static_cast<Bits>(Known::kFirstLong) + 2 * place - sign;
    out[i] = static_cast<uint8_t>((folded & is_short) | (is_long & ~is_short));
    counts[i] = static_cast<uint8_t>(rest & ~is_short);
  }
  return static_cast<typename Of<T>::Unsigned>(longest) <
         static_cast<typename Of<T>::Unsigned>(kLongest);
}

template <typename T>
bool short_residuals(const uint8_t* tokens, size_t n, ResidualOf<T>* __restrict residuals) {
  uint8_t greatest = 0;
  CGX_APART for (size_t i = 0; i < n; ++i) {
    const ResidualOf<T> token = tokens[i];
    greatest = tokens[i] > greatest ? tokens[i] : greatest;
    residuals[i] = (token >> 1) ^ (0 - (token & 1));
  }
  return greatest < Tokens<ResidualOf<T>>::kFirstLong;
}

// By masks.
template <typename T>
inline CGX_INLINE T either(typename Of<T>::Bits mask, T x, T otherwise) {
  using Bits = typename Of<T>::Bits;
  return __builtin_bit_cast(
      T, (__builtin_bit_cast(Bits, x) & mask) | (__builtin_bit_cast(Bits, otherwise) & ~mask));
}

template <typename T>
void put_holes(const uint8_t* hole, const T* predicted, const float* sizes, size_t n,
               const Found<T>& out) {
  T* __restrict const values = out.values;
  float* __restrict const size = out.size;
  CGX_APART for (size_t i = 0; i < n; ++i) {
    values[i] = either(0 - static_cast<typename Of<T>::Bits>(hole[i]), predicted[i], values[i]);
  }
  CGX_APART for (size_t i = 0; i < n; ++i) {
    size[i] = either(0 - static_cast<Of<float>::Bits>(hole[i]), sizes[i] * kOneOf, size[i]);
  }
}

inline double sum(const float* x, size_t n) {
  double sums[kGroup] = {};
  size_t i = 0;
  for (; i + kGroup <= n; i += kGroup) {
    for (size_t k = 0; k < kGroup; ++k) sums[k] += static_cast<double>(x[i + k]);
  }
  for (size_t k = 0; i < n; ++i, ++k) sums[k] += static_cast<double>(x[i]);
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

template <typename T>
void difference(const T* x, const T* y, size_t n, T* __restrict out) {
  n = whole_groups(n);
  CGX_APART for (size_t i = 0; i < n; ++i) out[i] = x[i] - y[i];
}

template <typename T>
constexpr RowLoops<T> make_rows() {
  return {expect<T>,    bins<T>,      to_grid<T>,      to_exact<T>,
          to_words<T>,  from_grid<T>, from_exact<T>,   from_words<T>,
          put_holes<T>, tokens<T>,    short_tokens<T>, short_residuals<T>,
          sum,          difference<T>};
}

constexpr RowLoops<float> kNarrow = make_rows<float>();
constexpr RowLoops<double> kWide = make_rows<double>();

#undef CGX_APART

}  // namespace
}  // namespace CGX_LEVEL
}  // namespace cgx::bounded::field
