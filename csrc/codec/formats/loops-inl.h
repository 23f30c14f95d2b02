// The loops of rounding, which the compiler makes vectors of. A file of ops/foreach_level-inl.h, for the
// level `scalar`, too.

namespace cgx::formats {
namespace CGX_LEVEL {
namespace {

template <Kind kind, bool plain>
static inline CGX_INLINE void narrow_by(const Rules& rules, const float* x, size_t n, Draws draws,
                                        float* y) {
  const Rule<float> rule = rules.narrow;
  uint32_t state = draws.state();
  CGX_INDEPENDENT for (size_t i = 0; i < n; ++i, state += kRandomStep) {
    const uint32_t random = drawn<kind>(draws, state, rule.random_shift);
    y[i] = rounded<kind, plain>(rule, x[i], random);
  }
}

template <Kind kind>
static void narrow(const Rules& rules, const float* x, size_t n, Draws draws, float* y) {
  if constexpr (kind != Kind::kCpd && kind != Kind::kScale) {
    if (rules.narrow.plain) return narrow_by<kind, true>(rules, x, n, draws, y);
  }
  narrow_by<kind, false>(rules, x, n, draws, y);
}

template <Kind kind>
static void wide(const Rules& rules, const double* x, size_t n, Draws draws, double* y) {
  const Rule<double> rule = rules.wide;
  const Rule<float> other = rules.narrow;
  uint32_t state = draws.state();
  CGX_INDEPENDENT for (size_t i = 0; i < n; ++i, state += kRandomStep) {
    if constexpr (kind == Kind::kCpd) {
      y[i] = static_cast<double>(rounded<kind>(other, static_cast<float>(x[i]), 0));
    } else {
      const uint32_t random = drawn<kind>(draws, state, rule.random_shift);
      y[i] = rounded<kind>(rule, x[i], random);
    }
  }
}

// On bits, whose order is that of magnitudes, with NaN at the end.
template <typename Real>
static Real greatest(const Real* x, size_t n) {
  using Type = WordOf<Real>;
  using Signed = typename Type::Signed;
  Signed most = 0;
  for (size_t i = 0; i < n; ++i) {
    const auto u = static_cast<Signed>(as_bits(x[i]) & ~Type::kSign);
    most = u > most ? u : most;
  }
  return real_of_word(static_cast<typename Type::Word>(most));
}

constexpr Loops kLoops{{narrow<Kind::kNearest>, narrow<Kind::kZero>, narrow<Kind::kStochastic>,
                        narrow<Kind::kCpd>, narrow<Kind::kScale>},
                       {wide<Kind::kNearest>, wide<Kind::kZero>, wide<Kind::kStochastic>,
                        wide<Kind::kCpd>, wide<Kind::kScale>},
                       greatest<float>,
                       greatest<double>};

}  // namespace
}  // namespace CGX_LEVEL
}  // namespace cgx::formats
