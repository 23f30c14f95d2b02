// Codes of formats against the numbers that the format lists, and codecs against the casts of the same
// formats.
#include <cmath>

#include "check.h"
#include "codec/cast.h"
#include "codec/codec.h"
#include "codec/formats/parameters.h"
#include "codec/formats/presets.h"
#include "codec/formats/rules.h"
#include "data.h"

namespace cgx::native {
namespace {

using formats::Format;
using formats::Variant;

template <typename Body>
void for_each_format(const Body& body) {
  for (int exponent = 1; exponent <= 8; ++exponent) {
    for (int mantissa = 0; exponent + mantissa <= 15; ++mantissa) {
      for (Variant variant :
           {Variant::kIeee, Variant::kFn, Variant::kFinite, Variant::kFnuz, Variant::kP3109}) {
        const Format format{exponent, mantissa, variant};
        try {
          formats::check("test", format);
        } catch (const ConfigError&) {
          continue;
        }
        body(format, str_of("exponent ", exponent, " mantissa ", mantissa, " variant ",
                            static_cast<int>(variant)));
      }
    }
  }
}

const RandomKey kFormatKey = random_key(7, 1, 0, 0);

// Gaussian values, all magnitudes, both zeros, subnormals, the ends of float32; a NaN and an Inf.
std::vector<float> hard_values(size_t n) {
  Random random(n);
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) {
    const double r = random.signed_unit();
    const auto wide = static_cast<double>(random(250)) - 140;
    x[i] = static_cast<float>(i / 64 % 2 == 0 ? r : r * std::exp2(wide));
    if (i % 37 == 5) x[i] = r < 0 ? -0.0f : 0.0f;
    if (i / 256 % 4 == 3) x[i] = static_cast<float>(r * 1e-40);
    if (i / 256 % 4 == 2 && i % 50 == 0) x[i] = r < 0 ? -3.4028235e38f : 3.4028235e38f;
  }
  if (n > 300) x[270] = std::nanf(""), x[n - 1] = INFINITY;
  return x;
}

}  // namespace

TEST(codec_formats_codes_are_those_of_the_numbers) {
  for_each_format([](const Format& format, const std::string& name) {
    const formats::CodeRule rule = formats::code_rule_of(format);
    const uint32_t sign = 1u << rule.width;
    for (uint32_t code = 0; code < 2 * sign; ++code) {
      const uint32_t c = code & (sign - 1);
      const float value = formats::value_of_code(rule, code);
      const bool zero_is_nan = !format.has_negative_zero() && code == sign;
      if (zero_is_nan || (c > format.top() && !(format.has_infinity() && c == format.top() + 1))) {
        CHECK(as_bits(value) == kNan, name, " code ", code);
        continue;
      }
      const double number = c > format.top() ? INFINITY : format.value_of(c);
      CHECK(static_cast<double>(value) == (code < sign ? number : -number), name, " code ", code);
      CHECK(std::signbit(value) == (code >= sign), name, " code ", code);
      CHECK(formats::code_of(rule, value) == code, name, " code ", code);
    }
    const uint32_t nan = formats::code_of(rule, from_bits(kNan));
    const float back = formats::value_of_code(rule, nan);
    CHECK(std::isnan(back) == format.has_nan(), name);
    if (!format.has_nan() && format.has_infinity()) CHECK(std::isinf(back), name);
  });
}

TEST(codec_formats_blocks_are_those_of_the_cast) {
  for (const formats::Preset& preset : formats::presets()) {
    if (std::string(preset.text).rfind("block", 0) != 0 || std::string(preset.name) == "nvfp4") {
      continue;
    }
    for (const char* scale : {"floor", "ceil", "even", "rceil"}) {
      if (std::string(preset.name) == "fp8_block128" && std::string(scale) != "floor") continue;
      for (const char* rounding : {"nearest", "stochastic"}) {
        const auto codec = make_codec(config_named("block")
                                          .set("format", std::string(preset.name))
                                          .set("scale_rounding", std::string(scale))
                                          .set("rounding", std::string(rounding)));
        CastConfig config = casts().parse(preset.text);
        config.set("scale_rounding", std::string(scale)).set("rounding", std::string(rounding));
        const auto cast = make_cast(config);
        for (size_t n : {0, 1, 31, 32, 33, 127, 129, 400, 5003}) {
          const std::vector<float> x = hard_values(n);
          std::vector<float> y(n), expected(n);
          std::vector<std::byte> payload(codec->encoded_bytes(n, DType::kFloat32));
          codec->encode(x.data(), DType::kFloat32, DType::kFloat32, n, 0, n, kFormatKey, 0,
                        payload.data());
          codec->decode(payload.data(), DType::kFloat32, n, 0, n, y.data(), false);
          Cast::Run run;
          run.count = run.columns = n;
          run.key = kFormatKey;
          cast->roundtrip(x.data(), DType::kFloat32, run, 0, n, expected.data(), DType::kFloat32,
                          nullptr);
          for (size_t i = 0; i < n; ++i) {
            CHECK(as_bits(y[i]) == as_bits(expected[i]), codec->describe(), " n=", n, " value ", i,
                  ": ", x[i], " became ", y[i], ", the cast's is ", expected[i]);
          }
        }
      }
    }
  }
}

TEST(codec_formats_values_are_those_of_the_cast) {
  for (const char* text :
       {"float", "float variant=fn", "float exponent=5 mantissa=2 variant=fnuz overflow=saturate",
        "float exponent=3 mantissa=2 variant=p3109 rounding=zero", "float exponent=2 mantissa=1",
        "float exponent=5 mantissa=2 rounding=stochastic random_bits=8",
        "float exponent=6 mantissa=9 rounding=stochastic subnormals=0"}) {
    const auto codec = make_codec(config_of_text(text));
    const auto cast = make_cast(casts().parse(text));
    const size_t n = 5003;
    std::vector<float> x = hard_values(n), y(n), expected(n);
    // The cast saturates infinities, too.
    x[n - 1] = 1;
    std::vector<std::byte> payload(codec->encoded_bytes(n, DType::kFloat32));
    codec->encode(x.data(), DType::kFloat32, DType::kFloat32, n, 0, n, kFormatKey, 0,
                  payload.data());
    codec->decode(payload.data(), DType::kFloat32, n, 0, n, y.data(), false);
    Cast::Run run;
    run.count = run.columns = n;
    run.key = kFormatKey;
    cast->roundtrip(x.data(), DType::kFloat32, run, 0, n, expected.data(), DType::kFloat32,
                    nullptr);
    for (size_t i = 0; i < n; ++i) {
      CHECK(as_bits(y[i]) == as_bits(expected[i]), codec->describe(), " value ", i, ": ", x[i],
            " became ", y[i], ", the cast's is ", expected[i]);
    }
  }
}

TEST(codec_formats_that_codecs_cannot_carry_are_errors) {
  const auto error = [](const char* text) {
    return error_of<ConfigError>([&] { make_codec(config_of_text(text)); });
  };
  CHECK(contains(error("float exponent=5 mantissa=4"),
                 "10 bits, allowed on the wire: 2 to 8, or 16"));
  CHECK(contains(error("float exponent=8 mantissa=10"), "19 bits"));
  for (const char* variant : {"finite", "cpd", "scale"}) {
    const std::string text =
        error_of<ConfigError>([&] { config_named("float").set("variant", std::string(variant)); });
    CHECK(contains(text, variant) && contains(text, "ieee,fn,fnuz,p3109"), text);
  }
  CHECK(contains(error("float variant=fn overflow=inf"), "which has no infinity"));
  CHECK(contains(
      error_of<ConfigError>([] { config_named("block").set("format", std::string("nvfp4")); }),
      "mxfp4"));
  CHECK(contains(error("block format=fp8_block128 scale_rounding=ceil"), "only with e8m0"));
}

}  // namespace cgx::native
