// Real parameters: texts, bits, ranges; the other kinds are tested through the settings and families.
#include <clocale>
#include <cmath>
#include <limits>

#include "base/parameter.h"
#include "check.h"
#include "data.h"

namespace cgx::native {
namespace {

Parameter real(double least, double greatest, bool open_least = false, bool open_greatest = false) {
  return {.name = "rate",
          .variable = "CGX_TEST_RATE",
          .kind = Parameter::Kind::kReal,
          .fallback = "1",
          .least = least,
          .greatest = greatest,
          .open_least = open_least,
          .open_greatest = open_greatest};
}

constexpr double kMost = std::numeric_limits<double>::max();

std::string text_in(const Parameter& p, const std::string& value) {
  return canonical(p, "rate", value);
}

}  // namespace

TEST(parameter_reals_have_the_shortest_text) {
  const Parameter p = real(-kMost, kMost);
  const std::pair<const char*, const char*> texts[] = {
      {"0.5", "0.5"},   {" 0.50 ", "0.5"}, {"5e-1", "0.5"},     {"+1", "1"},
      {"1E5", "1e+05"}, {"-0", "0"},       {"-0.0", "0"},       {"0.1", "0.1"},
      {".25", "0.25"},  {"3.", "3"},       {"5e-324", "5e-324"}};
  for (const auto& [given, expected] : texts) {
    CHECK(text_in(p, given) == expected, given, " became ", text_in(p, given));
  }
  Random random(1);
  for (int i = 0; i < 10000; ++i) {
    const double x = __builtin_bit_cast(double, random());
    if (!std::isfinite(x) || x == 0) continue;
    const std::string text = shortest_text(x);
    CHECK(text_in(p, text) == text, text);
    const int64_t number = number_of(p, text);
    CHECK(real_number_of(p, number) == x && text_of(p, number) == text, text);
  }
}

TEST(parameter_reals_refuse_what_is_no_number_of_the_range) {
  const Parameter p = real(0, 1, true);
  for (const char* bad : {"nan", "inf", "-inf", "0", "-0", "1.0000001", "1e400", "1e-400", "", "x",
                          "0x1p-1", "0.5f", "0,5", "1_0", "--1", "+-1", "0.5 0.5"}) {
    const std::string text = error_of<ConfigError>([&] { text_in(p, bad); });
    CHECK(text == str_of("rate='", bad,
                         "' is not allowed; rate takes finite numbers above 0 and up to 1"),
          text);
  }
  CHECK(text_in(p, "1") == "1" && text_in(p, "5e-324") == "5e-324");
}

TEST(parameter_reals_say_what_is_allowed) {
  CHECK(allowed(real(0, 1)) == "numbers from 0 to 1");
  CHECK(allowed(real(0, 1, false, true)) == "finite numbers from 0 and below 1");
  CHECK(allowed(real(0, kMost, true)) == "finite numbers above 0");
  CHECK(allowed(real(-kMost, 2.5)) == "finite numbers up to 2.5");
  CHECK(allowed(real(-kMost, kMost)) == "finite numbers");
}

TEST(parameter_reals_in_python) {
  Parameter p = real(0, 1);
  CHECK(std::string(python_type(p)) == "float" && python_default(p) == "1.0");
  p.fallback = "1e-05";
  CHECK(python_default(p) == "1e-05");
  p.fallback = "0.25";
  CHECK(python_default(p) == "0.25");
}

TEST(parameter_reals_from_the_environment) {
  const Parameter p = real(0, 1);
  setenv("CGX_TEST_RATE", " 2.5e-1", 1);
  CHECK(from_environment(p) == "0.25");
  setenv("CGX_TEST_RATE", "2", 1);
  const std::string text = error_of<ConfigError>([&] { from_environment(p); });
  unsetenv("CGX_TEST_RATE");
  CHECK(text == "CGX_TEST_RATE='2' is not allowed; rate takes numbers from 0 to 1", text);
}

// Where numbers are written with a comma, as far as the system has such a locale.
TEST(parameter_reals_do_not_depend_on_the_locale) {
  const std::string before = std::setlocale(LC_ALL, nullptr);
  for (const char* name : {"de_DE.UTF-8", "de_DE", "fr_FR.UTF-8"}) {
    if (std::setlocale(LC_ALL, name) != nullptr) break;
  }
  const Parameter p = real(0, 1);
  const std::string text = text_in(p, "0.5");
  std::setlocale(LC_ALL, before.c_str());
  CHECK(text == "0.5");
}

TEST(parameter_kinds_without_a_real_number_have_none) {
  const Parameter p{.name = "bits", .kind = Parameter::Kind::kInteger, .low = 1, .high = 8};
  CHECK(error_of<ConfigError>([&] { real_number_of(p, 1); }) ==
        "parameter bits is no real number; it takes integers from 1 to 8");
}

}  // namespace cgx::native
