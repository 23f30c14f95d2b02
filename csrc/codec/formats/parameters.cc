#include "codec/formats/parameters.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace cgx::formats {
namespace {

constexpr const char* kVariants = "ieee,fn,finite,fnuz,p3109,cpd,scale";

// By name: a declaration may leave some of them out.
Variant variant_named(const std::string& name) {
  const std::vector<std::string> all = split(kVariants);
  return static_cast<Variant>(std::find(all.begin(), all.end(), name) - all.begin());
}

constexpr int kLeastStep = -149;  // exponent of the least number of float32

Overflow default_overflow(const Format& format) {
  switch (format.variant) {
    case Variant::kFn:
    case Variant::kFinite:
      return Overflow::kSaturate;
    case Variant::kFnuz:
    case Variant::kScale:
      return Overflow::kNan;
    default:
      return Overflow::kInfinity;
  }
}

void check_overflow(const Config& config, const Casting& casting) {
  const bool bad = (casting.overflow == Overflow::kInfinity && !casting.format.has_infinity()) ||
                   (casting.overflow == Overflow::kNan && !casting.format.has_nan());
  if (!bad) return;
  throw ConfigError(str_of(config.name(), ": overflow=", config.text("overflow"),
                           " with variant=", config.text("variant"), ", which has no ",
                           casting.overflow == Overflow::kNan ? "NaN" : "infinity"));
}

// The rules of `cpd` and e8m0 leave no choice.
void check_fixed_rule(const Config& config, const Casting& casting) {
  if (casting.format.variant != Variant::kCpd && casting.format.variant != Variant::kScale) return;
  const auto refuse = [&](const char* parameter, const char* allowed) {
    throw ConfigError(str_of(config.name(), ": ", parameter, "=", config.text(parameter),
                             " with variant=", config.text("variant"), ", allowed: ", allowed));
  };
  if (casting.rounding != Rounding::kNearest) refuse("rounding", "nearest");
  if (!casting.subnormals) refuse("subnormals", "1");
  if (casting.format.variant == Variant::kCpd && casting.overflow != Overflow::kInfinity) {
    refuse("overflow", "inf");
  }
  if (casting.format.variant != Variant::kScale) return;
  if (casting.overflow != Overflow::kNan) refuse("overflow", "nan");
  if (casting.format.exponent != 8) refuse("exponent", "8");
  if (casting.format.mantissa != 0) refuse("mantissa", "0");
}

}  // namespace

void check(const std::string& who, const Format& format) {
  if (format.top() < 1) {
    throw ConfigError(str_of(who, ": exponent=", format.exponent,
                             " with mantissa=", format.mantissa, " leaves no finite number but 0"));
  }
  const bool scale = format.variant == Variant::kScale;
  if (format.largest() > static_cast<double>(std::numeric_limits<float>::max()) ||
      (!scale && format.step_exponent() < kLeastStep)) {
    throw ConfigError(str_of(who, ": exponent=", format.exponent, " with mantissa=",
                             format.mantissa, " has numbers from 2^", format.step_exponent(),
                             " to ", format.largest(), ", allowed: numbers that float32 has"));
  }
}

std::vector<Parameter> with_rounding(std::vector<Parameter> parameters, const std::string& numbers,
                                     const char* fallback) {
  using Kind = Parameter::Kind;
  parameters.push_back({.name = "rounding",
                        .kind = Kind::kChoice,
                        .fallback = fallback,
                        .choices = "nearest,zero,stochastic",
                        .meaning = "How values between two " + numbers +
                                   " round: to the nearest, ties to even; toward zero; or up with "
                                   "the probability of their place"});
  parameters.push_back({.name = "random_bits",
                        .kind = Kind::kInteger,
                        .fallback = "24",
                        .low = 1,
                        .high = 24,
                        .meaning = "Random bits of a value, of stochastic rounding"});
  return parameters;
}

std::vector<Parameter> casting_parameters(int exponent, int mantissa, const char* variant,
                                          bool per_call) {
  using Kind = Parameter::Kind;
  std::vector<Parameter> rounding = with_rounding({}, "numbers");
  for (Parameter& parameter : rounding) parameter.per_call = per_call;
  return {{.name = "exponent",
           .kind = Kind::kInteger,
           .fallback = std::to_string(exponent),
           .low = 1,
           .high = 8,
           .per_call = per_call,
           .meaning = "Bits of a number's exponent"},
          {.name = "mantissa",
           .kind = Kind::kInteger,
           .fallback = std::to_string(mantissa),
           .low = 0,
           .high = 23,
           .per_call = per_call,
           .meaning = "Bits of a number's mantissa, without the leading one"},
          rounding[0],
          rounding[1],
          {.name = "subnormals",
           .kind = Kind::kBoolean,
           .fallback = "1",
           .per_call = per_call,
           .meaning = "Numbers below the least normal one; without them such results become 0"},
          {.name = "overflow",
           .kind = Kind::kChoice,
           .fallback = "default",
           .choices = "default,saturate,inf,nan",
           .per_call = per_call,
           .meaning = "What values beyond the largest number become, infinite ones included; by "
                      "default an infinity, without one the largest number (fn) or NaN (fnuz)"},
          {.name = "variant",
           .kind = Kind::kChoice,
           .fallback = variant,
           .choices = kVariants,
           .per_call = per_call,
           .meaning = "Which codes are infinite or NaN"}};
}

Casting casting_of(const Config& config) {
  Casting casting;
  casting.format = {static_cast<int>(config.get("exponent")),
                    static_cast<int>(config.get("mantissa")),
                    variant_named(config.text("variant"))};
  check(config.name(), casting.format);
  casting.rounding = static_cast<Rounding>(config.get("rounding"));
  casting.random_bits = static_cast<int>(config.get("random_bits"));
  casting.subnormals = config.get("subnormals") != 0;
  const int64_t overflow = config.get("overflow");
  casting.overflow =
      overflow == 0 ? default_overflow(casting.format) : static_cast<Overflow>(overflow - 1);
  check_overflow(config, casting);
  check_fixed_rule(config, casting);
  return casting;
}

}  // namespace cgx::formats
