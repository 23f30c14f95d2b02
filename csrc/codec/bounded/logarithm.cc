#include "codec/bounded/logarithm.h"

#include <array>
#include <bit>
#include <cmath>

namespace cgx::bounded {
namespace {

constexpr uint32_t kTabled = 1024;

struct Tables {
  std::array<double, kTabled + 1> weights;    // c log2 c
  std::array<double, kTabled + 1> mantissas;  // log2(1 + i / kTabled)
};

const Tables& tables() {
  static const Tables made = [] {
    Tables some{};
    for (uint32_t i = 0; i <= kTabled; ++i) {
      some.weights[i] = i == 0 ? 0 : i * log2_of(i);
      some.mantissas[i] = log2_of(1 + static_cast<double>(i) / kTabled);
    }
    return some;
  }();
  return made;
}

}  // namespace

double log2_of(double x) {
  int exponent;
  const double mantissa = std::frexp(x, &exponent);                              // in [1/2, 1)
  const double ratio = (mantissa - 1) / (mantissa + 1), square = ratio * ratio;  // at least -1/3
  double power = ratio, sum = 0;
  for (int k = 1; k < 40; k += 2, power *= square) sum += power / k;
  constexpr double kLog2 = 0.6931471805599453;
  return exponent + 2 * sum / kLog2;
}

double about_log2(double x) {
  // Between two places of the table, on a line.
  int exponent;
  const double mantissa = 2 * std::frexp(x, &exponent);  // in [1, 2)
  const double place = (mantissa - 1) * kTabled;
  const auto at = static_cast<uint32_t>(place);
  const auto& known = tables().mantissas;
  return exponent - 1 + known[at] + (place - at) * (known[at + 1] - known[at]);
}

double weight_of(uint32_t count) {
  const Tables& known = tables();
  if (count <= kTabled) return known.weights[count];
  // Between two places of the table, on a line.
  const int shift = static_cast<int>(std::bit_width(count)) - 11;
  const uint32_t at = (count >> shift) - kTabled;
  const double part =
      static_cast<double>(count & ((1u << shift) - 1)) / static_cast<double>(1u << shift);
  const double mantissa =
      known.mantissas[at] + part * (known.mantissas[at + 1] - known.mantissas[at]);
  return count * (10 + shift + mantissa);
}

}  // namespace cgx::bounded
