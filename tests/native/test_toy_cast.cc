// A new cast needs its declaration and one line: here add_cast(). The contract with its statistics, the
// list, its configurations as text and hash, and the conformance suite take it without knowing it.
#include <algorithm>
#include <cmath>
#include <limits>

#include "check.h"
#include "codec/cast.h"
#include "codec/choice.h"

namespace cgx::native {
namespace {

// The scale of values that share one: the least power of two that none of them exceeds, if float32 has it.
// Values that have none are not scaled.
template <typename Real>
int exponent_of_scale(const Real* x, size_t n, int64_t group) {
  if (group == 1) return 0;
  Real most = 0;
  for (size_t i = 0; i < n; ++i) {
    if (std::isfinite(x[i])) most = std::max(most, std::fabs(x[i]));
  }
  int exponent = 0;
  const Real fraction = std::frexp(most, &exponent);
  return most == 0 ? 0 : std::min(fraction == 0.5f ? exponent - 1 : exponent, 127);
}

double least_of(const CastConfig& config) {
  return std::exp2(std::ceil(std::log2(config.real("least"))));
}

// To a power of two from `least` to 1, of either sign, or to zero. Values round to nearest, or at random.
class ToyPowers final : public Cast {
 public:
  explicit ToyPowers(const CastConfig& config)
      : Cast(config),
        least_(static_cast<float>(least_of(config))),
        stochastic_(config.get("rounding") != 0),
        group_(config.get("group")) {}

  size_t block() const override { return static_cast<size_t>(group_); }
  CastSize size() const override { return {.bits = 8}; }
  double largest() const override { return 1; }
  double smallest_step() const override { return static_cast<double>(least_); }

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
    for (size_t start = 0; start < n; start += block()) {
      const size_t end = std::min(start + block(), n);
      const int exponent = exponent_of_scale(x + start, end - start, group_);
      for (size_t i = start; i < end; ++i) {
        const Real value = x[i], size = std::ldexp(std::fabs(value), -exponent);
        const Real power = power_of(size, stochastic_ ? random_of(run.key, run.index + i) : 0.5f);
        y[i] = std::isnan(value) ? static_cast<Real>(NAN)
                                 : std::copysign(std::ldexp(power, exponent), value);
        if (saturations != nullptr && size > 1 && std::isfinite(size)) ++*saturations;
      }
    }
  }

  // cut: the part of the way up from where on a value is rounded up.
  template <typename Real>
  Real power_of(Real size, float part) const {
    const auto least = static_cast<Real>(least_), cut = static_cast<Real>(part);
    if (size >= 1) return 1;
    if (size < least) return size > cut * least ? least : 0;
    const Real below = std::ldexp(Real{1}, std::ilogb(size));
    return size - below > cut * below ? 2 * below : below;
  }

  const float least_;
  const bool stochastic_;
  const int64_t group_;
};

std::shared_ptr<const Cast> make_powers(const CastConfig& config) {
  return std::make_shared<ToyPowers>(config);
}

void bound_of_powers(const CastConfig& config, const float* x, size_t n, double* limits) {
  const int64_t group = config.get("group");
  for (size_t start = 0; start < n; start += static_cast<size_t>(group)) {
    const size_t end = std::min(start + static_cast<size_t>(group), n);
    const double scale = std::exp2(exponent_of_scale(x + start, end - start, group));
    for (size_t i = start; i < end; ++i) {
      const double size = std::fabs(static_cast<double>(x[i]));
      limits[i] = size > scale ? std::numeric_limits<double>::infinity()
                               : std::max(size, scale * least_of(config));
    }
  }
}

const CastFamily& toy_powers() {
  static const CastFamily family{
      {.name = "toy_powers",
       .meaning = "Powers of two up to 1",
       .parameters = {{.name = "least",
                       .kind = Parameter::Kind::kReal,
                       .fallback = "0.0625",
                       .least = 0x1p-100,
                       .greatest = 1,
                       .open_greatest = true,
                       .meaning = "The least power, rounded up to one"},
                      {.name = "rounding",
                       .kind = Parameter::Kind::kChoice,
                       .fallback = "nearest",
                       .choices = "nearest,stochastic",
                       .meaning = "How values between two powers round"},
                      {.name = "group",
                       .kind = Parameter::Kind::kInteger,
                       .fallback = "1",
                       .low = 1,
                       .high = 5000,
                       .meaning = "Values that share a scale; 1: none is scaled"}}},
      {.make = make_powers, .bound = bound_of_powers},
  };
  return family;
}

// Before main(), so that all tests of this program have it.
const bool added = [] {
  add_cast(toy_powers());
  return true;
}();

}  // namespace

TEST(toy_cast_rounds_to_powers_of_two) {
  CHECK(added && contains(casts().names(), "toy_powers"));
  const auto cast = make_cast(casts().parse("toy_powers least=0.2"));
  CHECK(cast->describe() == "toy_powers least=0.2 rounding=nearest group=1");
  const float x[] = {0.3f, 0.4f, -0.9f, 0.1f, 0.2f, 5, -0.0f, INFINITY};
  float y[8];
  CastStatistics done;
  cast->roundtrip(x, DType::kFloat32, {.count = 8, .columns = 8}, 0, 8, y, DType::kFloat32, &done);
  const float expected[] = {0.25f, 0.5f, -1, 0, 0.25f, 1, -0.0f, 1};
  CHECK(std::equal(y, y + 8, expected) && std::signbit(y[6]));
  CHECK(done.values == 8 && done.nonfinite == 1 && done.underflows == 1 && done.saturations == 1 &&
        done.amax == 5);
  double sum = 0, values = 0;
  for (int i = 0; i < 7; ++i) values += std::pow(static_cast<double>(x[i]), 2);
  CHECK(std::fabs(done.squared_values - values) < 1e-14 * values, done.squared_values, " for ",
        values);
  for (int i = 0; i < 7; ++i)
    sum += std::pow(static_cast<double>(y[i]) - static_cast<double>(x[i]), 2);
  CHECK(std::fabs(done.squared_error - sum) < 1e-14 * sum, done.squared_error, " for ", sum);
}

TEST(toy_cast_has_a_real_parameter) {
  const CastConfig config = casts().named("toy_powers").set("least", 0.3);
  CHECK(config.real("least") == 0.3 && config.text("least") == "0.3");
  CHECK(casts().parse(config.describe()) == config);
  CHECK(contains(error_of<ConfigError>([&] { config.get("least"); }), "real()"));
  CHECK(contains(error_of<ConfigError>([&] { config.real("rounding"); }), "rounding"));
  for (const char* bad : {"1", "0", "nan", "inf", "-0.5", "0,5", "1e-400", ""}) {
    const std::string text =
        error_of<ConfigError>([&] { CastConfig(toy_powers()).set("least", std::string(bad)); });
    CHECK(contains(text, str_of("cast toy_powers: least='", bad, "' is not allowed")) &&
              contains(text, "takes finite numbers from 7.888609052210118e-31 and below 1"),
          text);
  }
  CHECK(contains(error_of<ConfigError>([] { CastConfig(toy_powers()).set("least", 2); }), "'2'"));
  CHECK(CastConfig(toy_powers()).set("least", 0.5).hash() !=
        CastConfig(toy_powers()).set("least", std::nextafter(0.5, 1.0)).hash());
}

TEST(toy_cast_is_no_option_of_a_group) {
  for (const Parameter& p : codec_settings()) CHECK(p.name != "least");
  CHECK(!contains(codec_names(), "toy_powers"));
  CHECK(
      contains(error_of<ConfigError>([] { config_named("toy_powers"); }), "codec is 'toy_powers'"));
}

TEST(casts_of_one_name_are_refused) {
  CHECK(contains(error_of<ConfigError>([] { add_cast(toy_powers()); }),
                 "cast 'toy_powers' is there already"));
}

}  // namespace cgx::native
