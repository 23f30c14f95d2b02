// `fixed`: numbers in fixed point.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "codec/casts/list.h"
#include "codec/formats/loops.h"
#include "codec/formats/parameters.h"

namespace cgx {
namespace {

class FixedCast final : public Cast {
 public:
  FixedCast(const CastConfig& config, const formats::Fixed& fixed)
      : Cast(config), fixed_(fixed), rules_(fixed) {}

  bool stochastic() const override { return rules_.kind == formats::Kind::kStochastic; }
  CastSize size() const override { return {.bits = static_cast<double>(fixed_.word)}; }
  double largest() const override { return fixed_.largest(); }
  double smallest_step() const override { return fixed_.quantum(); }

  bool set_call(casting::on_gpu::Call& call) const override {
    call.narrow = rules_.narrow;
    call.wide = rules_.wide;
    call.kind = static_cast<uint8_t>(rules_.kind);
    call.lowest = fixed_.lowest();
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
    if (saturations != nullptr) {
      *saturations += formats::count_beyond(x, n, fixed_.lowest(), fixed_.largest());
    }
    formats::cast(rules_, x, n, run.key, run.index, y);
  }

  const formats::Fixed fixed_;
  const formats::Rules rules_;
};

formats::Fixed fixed_of(const CastConfig& config) {
  formats::Fixed fixed;
  fixed.word = static_cast<int>(config.get("word"));
  fixed.fraction = static_cast<int>(config.get("fraction"));
  fixed.symmetric = config.get("symmetric") != 0;
  fixed.rounding = static_cast<formats::Rounding>(config.get("rounding"));
  fixed.random_bits = static_cast<int>(config.get("random_bits"));
  return fixed;
}

std::shared_ptr<const Cast> make_fixed(const CastConfig& config) {
  return std::make_shared<FixedCast>(config, fixed_of(config));
}

void bound_of_fixed(const CastConfig& config, const float* x, size_t n, double* limits) {
  const formats::Fixed fixed = fixed_of(config);
  const bool nearest = fixed.rounding == formats::Rounding::kNearest;
  for (size_t i = 0; i < n; ++i) {
    const auto value = static_cast<double>(x[i]);
    const bool inside = value >= fixed.lowest() && value <= fixed.largest();
    limits[i] = !inside   ? std::numeric_limits<double>::infinity()
                : nearest ? fixed.quantum() / 2
                          : fixed.quantum();
  }
}

}  // namespace

const CastFamily& fixed_cast() {
  using Kind = Parameter::Kind;
  static const auto* family = new CastFamily{
      {.name = "fixed",
       .meaning = "Numbers in fixed point",
       .parameters = formats::with_rounding(
           {{.name = "word",
             .kind = Kind::kInteger,
             .fallback = "8",
             .low = 2,
             .high = 24,
             .meaning = "Bits of a number, with its sign"},
            {.name = "fraction",
             .kind = Kind::kInteger,
             .fallback = "4",
             .low = -100,
             .high = 100,
             .meaning = "Of them, bits behind the binary point; negative: numbers are "
                        "multiples of a power of two"},
            {.name = "symmetric",
             .kind = Kind::kBoolean,
             .fallback = "0",
             .meaning = "Without the lowest number of two's complement"}},
           "numbers")},
      {.make = make_fixed, .bound = bound_of_fixed},
  };
  return *family;
}

}  // namespace cgx
