// `s2fp8`: e5m2 of magnitudes that are squeezed and shifted in the logarithm (formulas.h).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/unroll.h"
#include "codec/casts/list.h"
#include "codec/casts/s2fp8/formulas.h"
#include "codec/formats/loops.h"

namespace cgx {
namespace {

using formats::Kind;

// The logarithms are summed in 16 lanes, as zscore/loops.h sums values.
constexpr size_t kLogLanes = 16;

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

  Measured join(const Measured& a, const Measured& b) const override {
    return {{a.of[0] + b.of[0], a.of[1] + b.of[1], std::max(a.of[2], b.of[2]),
             std::min(a.of[3], b.of[3])}};
  }

 private:
  // The number of finite values other than 0, the sum of their logarithms, the greatest and the least of these.
  template <typename Real>
  static Measured logarithms(const Real* x, size_t n) {
    double count[kLogLanes] = {}, sums[kLogLanes] = {};
    double greatest = -INFINITY, least = INFINITY;
    for (size_t i = 0; i < n; ++i) {
      const auto value = static_cast<double>(x[i]);
      if (value == 0 || !std::isfinite(value)) continue;
      const double l = formats::log2_of(std::fabs(value));
      count[i % kLogLanes] += 1;
      sums[i % kLogLanes] += l;
      greatest = std::max(greatest, l);
      least = std::min(least, l);
    }
    for (size_t step = kLogLanes / 2; step > 0; step /= 2) {
      for (size_t k = 0; k < step; ++k) {
        count[k] += count[k + step];
        sums[k] += sums[k + step];
      }
    }
    return {{count[0], sums[0], greatest, least}};
  }
  Measured measure(const float* x, size_t n) const override { return logarithms(x, n); }
  Measured measure(const double* x, size_t n) const override { return logarithms(x, n); }

  void cast(const float* x, size_t n, const Run& run, float* y, uint64_t*) const override {
    cast_as(x, n, run, y);
  }
  void cast(const double* x, size_t n, const Run& run, double* y, uint64_t*) const override {
    cast_as(x, n, run, y);
  }

  template <typename Real>
  void cast_as(const Real* x, size_t n, const Run& run, Real* y) const {
    switch (rules_.kind) {
      case Kind::kNearest:
        return cast_by<Kind::kNearest>(x, n, run, y);
      case Kind::kZero:
        return cast_by<Kind::kZero>(x, n, run, y);
      default:
        return cast_by<Kind::kStochastic>(x, n, run, y);
    }
  }

  template <Kind kind, typename Real>
  void cast_by(const Real* x, size_t n, const Run& run, Real* y) const {
    const double mean = run.measured.of[1] / run.measured.of[0], greatest = run.measured.of[2];
    // Magnitudes that are all equal need no squeezing, and have no slope. Their mean may be rounded.
    if (!(run.measured.of[3] < greatest)) {
      if (x != y) std::memcpy(y, x, n * sizeof(Real));
      return;
    }
    const s2fp8::Squeeze squeeze = s2fp8::squeeze_of(mean, greatest, rules_.narrow);
    for (size_t i = 0; i < n; ++i) {
      const auto value = static_cast<double>(x[i]);
      if (value == 0 || !std::isfinite(value)) {
        y[i] = value == value ? x[i] : static_cast<Real>(from_bits(kNan));
        continue;
      }
      const RandomKey key = key_of_high(run.key, static_cast<uint32_t>((run.index + i) >> 32));
      const uint32_t bits =
          kind == Kind::kStochastic
              ? random_bits(static_cast<uint32_t>(run.index + i), key.low, key.high)
              : 0;
      y[i] = static_cast<Real>(
          s2fp8::squeezed<kind>(squeeze, value, bits >> rules_.narrow.random_shift));
    }
  }

  const formats::Rules rules_;
};

std::shared_ptr<const Cast> make_s2fp8(const CastConfig& config) {
  return std::make_shared<S2Fp8Cast>(config);
}

}  // namespace

const CastFamily& s2fp8_cast() {
  using Kind = Parameter::Kind;
  static const auto* family = new CastFamily{
      {.name = "s2fp8",
       .meaning = "e5m2 of magnitudes squeezed and shifted in the logarithm: S2FP8",
       .parameters = {{.name = "rounding",
                       .kind = Kind::kChoice,
                       .fallback = "nearest",
                       .choices = "nearest,zero,stochastic",
                       .meaning = "How values between two numbers of e5m2 round"},
                      {.name = "random_bits",
                       .kind = Kind::kInteger,
                       .fallback = "24",
                       .low = 1,
                       .high = 24,
                       .meaning = "Random bits of a value, of stochastic rounding"}}},
      {.make = make_s2fp8},
  };
  return *family;
}

}  // namespace cgx
