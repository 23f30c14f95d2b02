#include "codec/gemm/rounding.h"

namespace cgx::gemm {
namespace {

using formats::Kind;
using formats::Rule;
using formats::WordOf;

constexpr uint32_t kInfinity = WordOf<float>::kInfinity;
// The adder has room for numbers below this one: a format with an exponent of 7 bits or fewer.
constexpr uint32_t kRoom = 0x61000000u;  // 2^67

double value_of(uint32_t bits) { return static_cast<double>(from_bits(bits)); }

bool is_power(uint32_t bits) { return (bits & 0x7fffffu) == 0; }

// Whether numbers below the least normal one have the step of those above.
bool has_usual_step(const Rule<float>& rule) {
  const double steps = value_of(rule.tiny) / static_cast<double>(rule.quantum);
  return steps == static_cast<double>(1 << (WordOf<float>::kMantissa - rule.drop));
}

bool has_exponents_of_float32(const Rule<float>& rule) {
  return rule.tiny == 0x800000u && rule.largest == (0x7f7fffffu & ~rule.cut) &&
         rule.infinite == kInfinity && rule.drop < WordOf<float>::kMantissa;
}

// The first number that there is no room for, if values from it on are infinite; else 0.
uint32_t end_of(Kind kind, const Rule<float>& rule) {
  if (kind == Kind::kCpd) return rule.beyond_from;
  const uint32_t next = rule.largest + (uint32_t{1} << rule.drop);
  return rule.beyond == kInfinity && is_power(next) ? next : 0;
}

// Whether a power of two takes this number beyond float32's, and another one brings smaller ones back.
bool can_scale(uint32_t end) { return end >= as_bits(4.0f) && end < kRoom; }

bool is_fixed(const Rule<float>& rule) { return rule.tiny == kInfinity; }

Way nearest_way_of(const Rule<float>& rule) {
  if (is_fixed(rule)) {
    const bool room =
        value_of(rule.largest + rule.more) <= 0x1p22 * static_cast<double>(rule.quantum);
    return room ? Way::kFixed : Way::kAnyNearest;
  }
  if (has_exponents_of_float32(rule)) return Way::kBits;
  if (rule.largest >= kRoom || rule.drop < 2 || rule.drop > 22) return Way::kAnyNearest;
  if (can_scale(end_of(Kind::kNearest, rule))) return Way::kScaled;
  return rule.beyond == rule.largest ? Way::kClamped : Way::kSelected;
}

Way zero_way_of(const Rule<float>& rule) {
  if (is_fixed(rule)) return Way::kAnyZero;
  if (has_exponents_of_float32(rule)) return Way::kZeroBits;
  return rule.largest < kRoom ? Way::kZero : Way::kAnyZero;
}

Way cpd_way_of(const Rule<float>& rule) {
  if (rule.beyond_from == kInfinity)
    return rule.drop < WordOf<float>::kMantissa ? Way::kCpdBits : Way::kAnyCpd;
  return can_scale(rule.beyond_from) && rule.drop >= 2 ? Way::kCpd : Way::kAnyCpd;
}

}  // namespace

Way general_way_of(Kind kind) {
  if (kind == Kind::kCpd) return Way::kAnyCpd;
  return kind == Kind::kZero ? Way::kAnyZero : Way::kAnyNearest;
}

Way way_of(Kind kind, const Rule<float>& rule) {
  const bool usual = is_fixed(rule) || (has_usual_step(rule) && rule.more == 0);
  if (!usual || rule.least_kept != 0) return general_way_of(kind);
  if (kind == Kind::kNearest) return nearest_way_of(rule);
  if (kind == Kind::kZero) return zero_way_of(rule);
  return cpd_way_of(rule);
}

Constants constants_of(Kind kind, const Rule<float>& rule) {
  Constants c{};
  c.rule = rule;
  c.tiny = rule.tiny;
  c.raise = (static_cast<uint32_t>(rule.drop) << WordOf<float>::kMantissa) + 0x400000u;
  c.quantum = as_bits(rule.quantum);
  c.largest = rule.largest;
  c.lowest = (rule.largest + rule.more) | WordOf<float>::kSign;
  c.beyond = rule.beyond;
  const uint32_t end = end_of(kind, rule);
  if (can_scale(end)) {
    c.up = static_cast<float>(0x1p127 / (value_of(end) / 2));
    c.down = 1 / c.up;
  }
  c.magic = 1.5f * rule.magic;
  return c;
}

}  // namespace cgx::gemm
