// The loops of blocks, which the compiler makes vectors of. A file of ops/foreach_level-inl.h, for the level
// `scalar`, too.

namespace cgx::blocks {
namespace CGX_LEVEL {
namespace {

using formats::Kind;
using formats::Rule;
using formats::WordOf;

// The greatest magnitude, as bits; of a NaN or an infinity they are the greatest.
template <typename Real>
static inline CGX_INLINE typename WordOf<Real>::Signed greatest(
    const Real* x, size_t n, typename WordOf<Real>::Signed most) {
  using Signed = typename WordOf<Real>::Signed;
  for (size_t i = 0; i < n; ++i) {
    const auto u = static_cast<Signed>(as_bits(x[i]) & ~WordOf<Real>::kSign);
    most = u > most ? u : most;
  }
  return most;
}

// y = the element of x / scale, times scale. inverse: 1 / scale, exactly, if `exact`; else 0.
template <Kind kind, bool plain, bool exact, typename Real>
static inline CGX_INLINE void cast_piece(const Rule<Real>& rule, const Real* x, size_t n,
                                         Real scale, Real inverse, formats::Draws draws, Real* y) {
  uint32_t state = draws.state();
  CGX_INDEPENDENT for (size_t i = 0; i < n; ++i, state += kRandomStep) {
    const uint32_t random = formats::drawn<kind>(draws, state, rule.random_shift);
    y[i] =
        formats::rounded<kind, plain>(rule, exact ? x[i] * inverse : x[i] / scale, random) * scale;
  }
}

template <typename Real>
static inline CGX_INLINE const Rule<Real>& rule_of(const formats::Rules& rules) {
  if constexpr (sizeof(Real) == 4) {
    return rules.narrow;
  } else {
    return rules.wide;
  }
}

template <typename Real>
static inline CGX_INLINE uint64_t count_above(const Real* x, size_t n, Real limit) {
  using Signed = typename WordOf<Real>::Signed;
  const auto last = static_cast<Signed>(as_bits(limit));
  Signed count = 0;
  for (size_t i = 0; i < n; ++i) {
    count += static_cast<Signed>(as_bits(x[i]) & ~WordOf<Real>::kSign) > last ? 1 : 0;
  }
  return static_cast<uint64_t>(count);
}

template <Kind kind, bool plain, bool exact, typename Real>
static inline CGX_INLINE void cast_row(const Shape& shape, const Rule<Real>& rule,
                                       const Values<Real>& v, size_t first, size_t n, Real scale,
                                       Real inverse) {
  // Beyond the largest number: where scale times that is inexact it is rounded, as the value is.
  if (v.beyond != nullptr) {
    *v.beyond += count_above(v.x + first, n, static_cast<Real>(shape.scale_rule.largest) * scale);
  }
  const uint64_t number = v.index + first;
  formats::Draws draws{kind == Kind::kStochastic
                           ? key_of_high(v.key, static_cast<uint32_t>(number >> 32))
                           : RandomKey{},
                       static_cast<uint32_t>(number)};
  // The counter has the low word of a value's number, the key its high word.
  const uint64_t left = (uint64_t{1} << 32) - (number & 0xffffffffu);
  const size_t some = kind == Kind::kStochastic && left < n ? static_cast<size_t>(left) : n;
  cast_piece<kind, plain, exact>(rule, v.x + first, some, scale, inverse, draws, v.y + first);
  if (kind != Kind::kStochastic || some == n) return;
  draws = {key_of_high(v.key, static_cast<uint32_t>((number + some) >> 32)), 0};
  cast_piece<kind, plain, exact>(rule, v.x + first + some, n - some, scale, inverse, draws,
                                 v.y + first + some);
}

// Blocks next to each other: their scales are computed side by side.
constexpr size_t kBlocks = 64;

template <typename Real>
struct Scales {
  typename WordOf<Real>::Signed most[kBlocks];  // the greatest magnitudes, as bits
  Real scale[kBlocks], inverse[kBlocks];
};

template <typename Real>
static inline CGX_INLINE void find_powers(const Shape& shape, size_t blocks, Scales<Real>& scales) {
  const formats::ScaleRule rule = shape.scale_rule;
  for (size_t b = 0; b < blocks; ++b) {
    const auto word = static_cast<typename WordOf<Real>::Word>(scales.most[b]);
    const int32_t s =
        formats::power_of_scale(rule, static_cast<double>(formats::real_of_word(word)));
    scales.scale[b] = static_cast<Real>(formats::power_of_two(s));
    scales.inverse[b] = static_cast<Real>(formats::power_of_two(-s));
  }
}

template <typename Real>
static inline CGX_INLINE Real greatest_of(const Scales<Real>& scales, size_t b) {
  return formats::real_of_word(static_cast<typename WordOf<Real>::Word>(scales.most[b]));
}

template <typename Real>
static inline CGX_INLINE void find_divisors(const Shape& shape, size_t blocks,
                                            Scales<Real>& scales) {
  const formats::ScaleRule rule = shape.scale_rule;
  for (size_t b = 0; b < blocks; ++b) {
    scales.scale[b] = static_cast<Real>(formats::divisor_of(rule, greatest_of(scales, b)));
  }
}

template <typename Real>
static inline CGX_INLINE void find_parts(const Shape& shape, size_t blocks, double of_tensor,
                                         Scales<Real>& scales) {
  const formats::ScaleRule rule = shape.scale_rule;
  const Rule<float> e4m3 = shape.e4m3;
  const auto all = static_cast<float>(of_tensor);
  for (size_t b = 0; b < blocks; ++b) {
    const Real amax = greatest_of(scales, b);
    const float scale = formats::divisor_of(rule, amax);
    scales.scale[b] = static_cast<Real>(formats::e4m3_scale(rule, e4m3, scale, all, amax));
  }
}

// Blocks of `size` values, the last one perhaps fewer, in n values of each of `rows` rows, from `first` on.
template <Kind kind, bool plain, typename Real>
static inline CGX_INLINE void cast_blocks(const Shape& shape, const Rule<Real>& rule,
                                          const Values<Real>& v, size_t first, size_t n,
                                          size_t size, size_t rows) {
  using Signed = typename WordOf<Real>::Signed;
  Scales<Real> scales;
  const size_t whole = n / size, rest = n % size, blocks = whole + (rest != 0 ? 1 : 0);
  const auto measured = static_cast<Signed>(as_bits(static_cast<Real>(v.amax)));
  for (size_t b = 0; b < blocks; ++b) scales.most[b] = shape.measured ? measured : 0;
  for (size_t r = 0; r < rows && !shape.measured; ++r) {
    const Real* x = v.x + first + r * v.columns;
    for (size_t b = 0; b < whole; ++b)
      scales.most[b] = greatest(x + b * size, size, scales.most[b]);
    if (rest != 0) scales.most[whole] = greatest(x + whole * size, rest, scales.most[whole]);
  }
  const bool exact = shape.scale == formats::Scale::kE8m0;
  if (exact) {
    find_powers(shape, blocks, scales);
  } else if (shape.scale == formats::Scale::kFloat32) {
    find_divisors(shape, blocks, scales);
  } else {
    find_parts(shape, blocks, v.of_tensor, scales);
  }
  const bool nan = !(v.of_tensor < static_cast<double>(__builtin_inff()));
  for (size_t b = 0; b < blocks; ++b) {
    if (!nan && scales.most[b] < static_cast<Signed>(WordOf<Real>::kInfinity)) continue;
    scales.scale[b] = scales.inverse[b] = formats::real_of_word(WordOf<Real>::kNanWord);
  }
  for (size_t r = 0; r < rows; ++r) {
    const size_t row = first + r * v.columns;
    for (size_t b = 0; b < whole; ++b) {
      exact ? cast_row<kind, plain, true>(shape, rule, v, row + b * size, size, scales.scale[b],
                                          scales.inverse[b])
            : cast_row<kind, plain, false>(shape, rule, v, row + b * size, size, scales.scale[b],
                                           Real{0});
    }
    if (rest == 0) continue;
    exact ? cast_row<kind, plain, true>(shape, rule, v, row + whole * size, rest,
                                        scales.scale[whole], scales.inverse[whole])
          : cast_row<kind, plain, false>(shape, rule, v, row + whole * size, rest,
                                         scales.scale[whole], Real{0});
  }
}

// known: the blocks' size where the compiler may know it, else 0.
template <Kind kind, bool plain, size_t known, typename Real>
static inline CGX_INLINE void cast_strip(const Shape& shape, const Values<Real>& v) {
  const Rule<Real> rule = rule_of<Real>(shape.rules);
  const size_t size = known != 0 ? known : shape.size;
  const size_t rows = shape.rows > 1 ? v.count / v.columns : 1;
  const size_t columns = shape.rows > 1 ? v.columns : v.count;
  const size_t step = kBlocks * size;
  for (size_t c = 0; c < columns; c += step) {
    cast_blocks<kind, plain>(shape, rule, v, c, columns - c < step ? columns - c : step, size,
                             rows);
  }
}

template <Kind kind, typename Real>
static void cast(const Shape& shape, const Values<Real>& values) {
  if constexpr (sizeof(Real) == 4) {
    // MX blocks have 32 values and NVFP4 blocks 16. Their elements are plain; only mxint8's are not.
    if (shape.rules.narrow.plain) {
      if (shape.size == 32) return cast_strip<kind, true, 32>(shape, values);
      if (shape.size == 16) return cast_strip<kind, true, 16>(shape, values);
      return cast_strip<kind, true, 0>(shape, values);
    }
  }
  cast_strip<kind, false, 0>(shape, values);
}

constexpr Loops kLoops{
    {cast<Kind::kNearest, float>, cast<Kind::kZero, float>, cast<Kind::kStochastic, float>},
    {cast<Kind::kNearest, double>, cast<Kind::kZero, double>, cast<Kind::kStochastic, double>}};

}  // namespace
}  // namespace CGX_LEVEL
}  // namespace cgx::blocks
