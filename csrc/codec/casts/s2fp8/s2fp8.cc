// `s2fp8`: e5m2 of magnitudes that are squeezed and shifted in the logarithm (formulas.h).
#include <cmath>

#include "codec/casts/list.h"
#include "codec/casts/s2fp8/loops.h"
#include "codec/formats/parameters.h"

namespace cgx {
namespace {

using formats::Kind;

class S2Fp8Cast final : public Cast {
 public:
  explicit S2Fp8Cast(const CastConfig& config)
      : Cast(config),
        rules_(formats::Casting{.format = {5, 2, formats::Variant::kIeee},
                                .rounding = static_cast<formats::Rounding>(config.get("rounding")),
                                .random_bits = static_cast<int>(config.get("random_bits")),
                                .overflow = formats::Overflow::kSaturate}) {}

  Group group() const override { return Group::kTensor; }
  bool stochastic() const override { return rules_.kind == Kind::kStochastic; }
  bool idempotent() const override { return false; }
  // alpha and beta
  CastSize size() const override { return {.bits = 8, .group_bits = 64}; }
  double largest() const override { return std::nan(""); }
  double smallest_step() const override { return std::nan(""); }

  Measured join(const Measured& a, const Measured& b) const override { return s2fp8::joined(a, b); }

  bool set_call(casting::on_gpu::Call& call) const override {
    call.kind = static_cast<uint8_t>(rules_.kind);
    call.narrow = rules_.narrow;
    call.work = casting::on_gpu::Work::kSqueezed;
    return true;
  }

 private:
  Measured measure(const float* x, size_t n) const override {
    return s2fp8::loops().logarithms(x, n);
  }
  Measured measure(const double* x, size_t n) const override {
    return s2fp8::loops().wide_logarithms(x, n);
  }

  void cast(const float* x, size_t n, const Run& run, float* y, uint64_t*) const override {
    cast_by(x, n, run, y, s2fp8::loops().narrow[static_cast<int>(rules_.kind)]);
  }
  void cast(const double* x, size_t n, const Run& run, double* y, uint64_t*) const override {
    cast_by(x, n, run, y, s2fp8::loops().wide[static_cast<int>(rules_.kind)]);
  }

  template <typename Real, typename Loop>
  void cast_by(const Real* x, size_t n, const Run& run, Real* y, Loop loop) const {
    const s2fp8::Slope slope = s2fp8::slope_of(run.measured);
    const casting::Way way = s2fp8::way_of(slope);
    if (way != casting::Way::kCast) return casting::without_cast(way, x, n, y);
    formats::in_draws(run.key, run.index, n,
                      [&](size_t first, size_t some, const formats::Draws& draws) {
                        loop(rules_.narrow, slope, x + first, some, draws, y + first);
                      });
  }

  const formats::Rules rules_;
};

std::shared_ptr<const Cast> make_s2fp8(const CastConfig& config) {
  return std::make_shared<S2Fp8Cast>(config);
}

}  // namespace

const CastFamily& s2fp8_cast() {
  static const auto* family = new CastFamily{
      {.name = "s2fp8",
       .meaning = "e5m2 of magnitudes squeezed and shifted in the logarithm: S2FP8",
       .parameters = formats::with_rounding({}, "numbers of e5m2")},
      {.make = make_s2fp8},
  };
  return *family;
}

}  // namespace cgx
