// `float`: each value rounded to a number with a sign, an exponent and a mantissa.
#include <cmath>

#include "codec/casts/list.h"
#include "codec/formats/bounds.h"
#include "codec/formats/loops.h"
#include "codec/formats/parameters.h"

namespace cgx {
namespace {

class FloatCast final : public Cast {
 public:
  FloatCast(const CastConfig& config, const formats::Casting& casting)
      : Cast(config), casting_(casting), rules_(casting) {}

  bool stochastic() const override { return rules_.kind == formats::Kind::kStochastic; }
  // CPD's cast makes an infinity of its own largest result.
  bool idempotent() const override { return rules_.kind != formats::Kind::kCpd; }
  CastSize size() const override { return {.bits = static_cast<double>(casting_.format.bits())}; }
  double largest() const override { return casting_.format.largest(); }
  double smallest_step() const override {
    if (casting_.format.variant == formats::Variant::kScale) return 0x1p-127;
    const int least = casting_.format.least_exponent();
    return std::ldexp(1.0, casting_.subnormals ? casting_.format.step_exponent() : least);
  }

  bool set_call(casting::on_gpu::Call& call) const override {
    call.narrow = rules_.narrow;
    call.wide = rules_.wide;
    call.kind = static_cast<uint8_t>(rules_.kind);
    call.work = casting::on_gpu::Work::kRound;
    return true;
  }

 private:
  void cast(const float* x, size_t n, const Run& run, float* y,
            uint64_t* saturations) const override {
    cast_as(x, n, run, y, saturations);
  }
  void cast(const double* x, size_t n, const Run& run, double* y,
            uint64_t* saturations) const override {
    cast_as(x, n, run, y, saturations);
  }
  template <typename Real>
  void cast_as(const Real* x, size_t n, const Run& run, Real* y, uint64_t* saturations) const {
    if (saturations != nullptr) *saturations += formats::count_beyond(x, n, -largest(), largest());
    formats::cast(rules_, x, n, run.key, run.index, y);
  }

  const formats::Casting casting_;
  const formats::Rules rules_;
};

std::shared_ptr<const Cast> make_float(const CastConfig& config) {
  return std::make_shared<FloatCast>(config, formats::casting_of(config));
}

void bound_of_float(const CastConfig& config, const float* x, size_t n, double* limits) {
  const formats::Casting casting = formats::casting_of(config);
  for (size_t i = 0; i < n; ++i) {
    limits[i] = formats::error_bound(casting, static_cast<double>(x[i]));
  }
}

}  // namespace

const CastFamily& float_cast() {
  static const auto* family = new CastFamily{
      {.name = "float",
       .meaning = "Numbers with a sign, an exponent and a mantissa",
       .parameters = formats::casting_parameters(4, 3, "ieee", false)},
      {.make = make_float, .bound = bound_of_float},
  };
  return *family;
}

}  // namespace cgx
