// Integers with a zero point (affine.h).
#include "codec/casts/integer/affine.h"

#include <algorithm>
#include <cmath>

#include "codec/casts/integer/integer.h"
#include "codec/casts/integer/loops.h"

namespace cgx::integers {
namespace {

// Rounds to integers; the range of a group has fewer than 2^17.
formats::Fixed whole_numbers(const Integers& of) {
  return {.word = 24, .fraction = 0, .rounding = of.rounding, .random_bits = of.random_bits};
}

class WithZeroPoint final : public IntegerCast {
 public:
  WithZeroPoint(const CastConfig& config, const Integers& given)
      : IntegerCast(config, given), rules_(whole_numbers(given)) {}

  // The scale, and the zero point.
  CastSize size() const override { return size_of_scales(32 + integers().bits); }
  double largest() const override { return std::ldexp(1.0, integers().bits) - 1; }

  bool set_call(casting::on_gpu::Call& call) const override {
    call.narrow = rules_.narrow;
    call.wide = rules_.wide;
    call.kind = static_cast<uint8_t>(rules_.kind);
    call.steps = largest();
    set_blocks(call);
    return true;
  }

  Measured join(const Measured& a, const Measured& b) const override {
    // NaN and infinities win.
    return {{extreme(a.of[0], b.of[0], a.of[0] < b.of[0]),
             extreme(a.of[1], b.of[1], a.of[1] > b.of[1])}};
  }

 private:
  static double extreme(double a, double b, bool first) {
    if (std::isnan(a) || std::isnan(b)) return std::nan("");
    return first ? a : b;
  }

  template <typename Real>
  static Measured measured(const Range<Real>& range) {
    return {{static_cast<double>(range.least), static_cast<double>(range.greatest)}};
  }
  Measured measure(const float* x, size_t n) const override {
    return measured(loops().range(x, n));
  }
  Measured measure(const double* x, size_t n) const override {
    return measured(loops().wide_range(x, n));
  }

  void cast(const float* x, size_t n, const Run& run, float* y,
            uint64_t* saturations) const override {
    const auto loop = loops().narrow[static_cast<int>(rules_.kind)];
    by_blocks(x, n, run, y, saturations, loop);
  }
  void cast(const double* x, size_t n, const Run& run, double* y,
            uint64_t* saturations) const override {
    const auto loop = loops().wide[static_cast<int>(rules_.kind)];
    by_blocks(x, n, run, y, saturations, loop);
  }

  // No value is beyond a range that its own group has made.
  template <typename Real, typename Loop>
  void by_blocks(const Real* x, size_t n, const Run& run, Real* y, uint64_t*, Loop loop) const {
    const size_t size = of_blocks() ? integers().size : n;
    for (size_t first = 0; first < n; first += size) {
      const size_t some = std::min(size, n - first);
      cast_group(x + first, some, run, run.index + first,
                 of_blocks() ? measure(x + first, some) : run.measured, y + first, loop);
    }
  }

  template <typename Real, typename Loop>
  void cast_group(const Real* x, size_t n, const Run& run, uint64_t number, const Measured& range,
                  Real* y, Loop loop) const {
    if (!std::isfinite(range.of[0]) || !std::isfinite(range.of[1])) {
      std::fill(y, y + n, static_cast<Real>(from_bits(kNan)));
      return;
    }
    const Affine affine = affine_of(range.of[0], range.of[1], largest());
    formats::in_draws(run.key, number, n, [&](size_t at, size_t some, const formats::Draws& draws) {
      loop(rules_, {x + at, y + at, some, affine, draws});
    });
  }

  const formats::Rules rules_;
};

}  // namespace

std::shared_ptr<const Cast> make_affine(const CastConfig& config, const Integers& integers) {
  return std::make_shared<WithZeroPoint>(config, integers);
}

}  // namespace cgx::integers
