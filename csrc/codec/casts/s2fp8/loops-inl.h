// The loops of S2FP8. A file of ops/foreach_level-inl.h, for the level `scalar`, too.

namespace cgx::s2fp8 {
namespace CGX_LEVEL {
namespace {

using formats::Kind;

template <Kind kind, typename Real>
static inline CGX_INLINE void cast_by(const formats::Rule<float>& given, Slope slope, const Real* x,
                                      size_t n, formats::Draws draws, Real* y) {
  const formats::Rule<float> e5m2 = given;
  const auto alpha = static_cast<double>(slope.alpha), beta = static_cast<double>(slope.beta);
  uint32_t state = draws.state();
  CGX_INDEPENDENT for (size_t i = 0; i < n; ++i, state += kRandomStep) {
    const uint32_t random = formats::drawn<kind>(draws, state, e5m2.random_shift);
    y[i] = static_cast<Real>(squeezed<kind>(e5m2, alpha, beta, static_cast<double>(x[i]), random));
  }
}

template <Kind kind>
static void narrow(const formats::Rule<float>& e5m2, Slope slope, const float* x, size_t n,
                   formats::Draws draws, float* y) {
  cast_by<kind>(e5m2, slope, x, n, draws, y);
}

template <Kind kind>
static void wide(const formats::Rule<float>& e5m2, Slope slope, const double* x, size_t n,
                 formats::Draws draws, double* y) {
  cast_by<kind>(e5m2, slope, x, n, draws, y);
}

// The lanes of kLanes values, or fewer.
struct Lanes {
  double count[kLanes], sum[kLanes], greatest[kLanes], least[kLanes];

  template <typename Real>
  CGX_INLINE void add(const Real* x, size_t n) {
    for (size_t k = 0; k < n; ++k) {
      const auto value = static_cast<double>(x[k]);
      const uint64_t has = has_logarithm(value);
      const double l = logarithm_of(value);
      const double low = wide_from_bits(formats::select(has, as_bits(l), as_bits(kLeast)));
      const double high = wide_from_bits(formats::select(has, as_bits(l), as_bits(kMost)));
      count[k] += wide_from_bits(as_bits(1.0) & has);
      sum[k] += l;
      greatest[k] = greatest[k] < low ? low : greatest[k];
      least[k] = high < least[k] ? high : least[k];
    }
  }
};

template <typename Real>
static Measured logarithms(const Real* x, size_t n) {
  Lanes lanes;
  for (size_t k = 0; k < kLanes; ++k) {
    lanes.count[k] = lanes.sum[k] = 0;
    lanes.greatest[k] = kLeast;
    lanes.least[k] = kMost;
  }
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) lanes.add(x + i, size_t{kLanes});
  lanes.add(x + i, n - i);
  for (size_t step = kLanes / 2; step > 0; step /= 2) {
    for (size_t k = 0; k < step; ++k) {
      lanes.count[k] += lanes.count[k + step];
      lanes.sum[k] += lanes.sum[k + step];
      const double high = lanes.greatest[k + step], low = lanes.least[k + step];
      lanes.greatest[k] = lanes.greatest[k] < high ? high : lanes.greatest[k];
      lanes.least[k] = low < lanes.least[k] ? low : lanes.least[k];
    }
  }
  return {{lanes.count[0], lanes.sum[0], lanes.greatest[0], lanes.least[0]}};
}

constexpr Loops kLoops{{narrow<Kind::kNearest>, narrow<Kind::kZero>, narrow<Kind::kStochastic>},
                       {wide<Kind::kNearest>, wide<Kind::kZero>, wide<Kind::kStochastic>},
                       logarithms<float>,
                       logarithms<double>};

}  // namespace
}  // namespace CGX_LEVEL
}  // namespace cgx::s2fp8
