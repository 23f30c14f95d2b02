// The loops of integers with a zero point. A file of ops/foreach_level-inl.h, for the level `scalar`, too.

namespace cgx::integers {
namespace CGX_LEVEL {
namespace {

using formats::Kind;
using formats::Rule;
using formats::WordOf;

template <Kind kind, typename Real>
static inline CGX_INLINE void cast_by(const Rule<Real>& given, const Values<Real>& v) {
  using Signed = typename WordOf<Real>::Signed;
  const Rule<Real> rule = given;
  const Real scale = static_cast<Real>(v.affine.scale);
  const Signed lowest = place_of(static_cast<Real>(v.affine.lowest));
  const Signed highest = place_of(static_cast<Real>(v.affine.highest));
  const Real* const x = v.x;
  Real* const y = v.y;
  const formats::Draws draws = v.draws;
  uint32_t state = draws.state();
  CGX_INDEPENDENT for (size_t i = 0; i < v.n; ++i, state += kRandomStep) {
    const uint32_t random = formats::drawn<kind>(draws, state, rule.random_shift);
    const Real integer = formats::rounded<kind, false>(rule, x[i] / scale, random);
    y[i] = multiple_of(integer, scale, lowest, highest);
  }
}

template <Kind kind>
static void narrow(const formats::Rules& rules, const Values<float>& values) {
  cast_by<kind>(rules.narrow, values);
}

template <Kind kind>
static void wide(const formats::Rules& rules, const Values<double>& values) {
  cast_by<kind>(rules.wide, values);
}

template <typename Real>
static Range<Real> range(const Real* x, size_t n) {
  using Signed = typename WordOf<Real>::Signed;
  Signed least = static_cast<Signed>(WordOf<Real>::kSign - 1), greatest = ~least;
  for (size_t i = 0; i < n; ++i) {
    const Signed place = place_of(x[i]);
    least = place < least ? place : least;
    greatest = place > greatest ? place : greatest;
  }
  return {value_at<Real>(least), value_at<Real>(greatest)};
}

constexpr Loops kLoops{{narrow<Kind::kNearest>, narrow<Kind::kZero>, narrow<Kind::kStochastic>},
                       {wide<Kind::kNearest>, wide<Kind::kZero>, wide<Kind::kStochastic>},
                       range<float>,
                       range<double>};

}  // namespace
}  // namespace CGX_LEVEL
}  // namespace cgx::integers
