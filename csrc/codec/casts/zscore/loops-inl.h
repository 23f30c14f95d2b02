// The loops of z-scores. A file of ops/foreach_level-inl.h, for the level `scalar`, too.

namespace cgx::zscore {
namespace CGX_LEVEL {
namespace {

using formats::Kind;

template <Kind kind, typename Real>
static inline CGX_INLINE void cast_by(const Zones<Real>& given, Centre centre, const Real* x,
                                      size_t n, formats::Draws draws, Real* y) {
  const Zones<Real> zones = given;
  const auto mean = static_cast<Real>(centre.mean), sigma = static_cast<Real>(centre.sigma);
  uint32_t state = draws.state();
  CGX_INDEPENDENT for (size_t i = 0; i < n; ++i, state += kRandomStep) {
    const uint32_t random = formats::drawn<kind>(draws, state, zones.whole.random_shift);
    y[i] = coded<kind>(zones, mean, sigma, x[i], random);
  }
}

template <Kind kind>
static void narrow(const Zones<float>& zones, Centre centre, const float* x, size_t n,
                   formats::Draws draws, float* y) {
  cast_by<kind>(zones, centre, x, n, draws, y);
}

template <Kind kind>
static void wide(const Zones<double>& zones, Centre centre, const double* x, size_t n,
                 formats::Draws draws, double* y) {
  cast_by<kind>(zones, centre, x, n, draws, y);
}

template <typename Real>
static Sums sums(const Real* x, size_t n) {
  const double origin = static_cast<double>(x[0]);
  double distances[kLanes] = {}, squares[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t k = 0; k < kLanes; ++k) {
      const double d = static_cast<double>(x[i + k]) - origin;
      distances[k] += d;
      squares[k] += d * d;
    }
  }
  for (size_t k = 0; i + k < n; ++k) {
    const double d = static_cast<double>(x[i + k]) - origin;
    distances[k] += d;
    squares[k] += d * d;
  }
  for (size_t step = kLanes / 2; step > 0; step /= 2) {
    for (size_t k = 0; k < step; ++k) {
      distances[k] += distances[k + step];
      squares[k] += squares[k + step];
    }
  }
  return {distances[0], squares[0]};
}

constexpr Loops kLoops{{narrow<Kind::kNearest>, narrow<Kind::kZero>, narrow<Kind::kStochastic>},
                       {wide<Kind::kNearest>, wide<Kind::kZero>, wide<Kind::kStochastic>},
                       sums<float>,
                       sums<double>};

}  // namespace
}  // namespace CGX_LEVEL
}  // namespace cgx::zscore
