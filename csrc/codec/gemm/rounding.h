// How the products and the sums of a matrix product are rounded: one rounding a format, as fast as the
// format allows; for the host.
//
// Each is the cast of codec/formats/rule.h, except for two things that no result shows. A NaN keeps any
// payload until the result is written. Zero has any sign: a sum begins as +0, adding a zero of either sign
// to +0 gives +0, and so does x - x, so a result that is zero is +0.
//
// A sum needs less than a product: what is added are numbers of the format, multiples of its least step
// q. So the float32 sum is a multiple of q, too, and one below the least normal number is a number.
//
// Most formats are rounded by float32's own adder: x + M - M with M = 1.5 2^(e + drop), where 2^e is the
// greatest power of two in x, or the least normal number if that is greater. The last bit of numbers like
// M is 2^(e - mantissa), so the sum is rounded to that, ties to even. This holds for `tame` operands:
// magnitudes below 2^51, so that products and M stay finite. Other operands (very large, infinite, NaN)
// take the general ways.
#pragma once

#include <cstddef>

#include "codec/formats/rules.h"

namespace cgx::gemm {

enum class Way : uint8_t {
  kScaled,      // by the adder; beyond the largest number, which ends an exponent, infinite
  kClamped,     // by the adder; beyond the largest number that number
  kSelected,    // by the adder; beyond the largest number an infinity or NaN
  kBits,        // float32's own exponents: on the bits
  kFixed,       // fixed point, to nearest
  kCpd,         // CPD's rule, by the adder
  kCpdBits,     // CPD's rule with float32's own exponents: float32's subnormal values become 0
  kZero,        // toward zero
  kZeroBits,    // toward zero with float32's own exponents
  kAnyNearest,  // general ways: rule.h
  kAnyZero,
  kAnyCpd,
  kHopper,  // see hopper.h; its partial sums are added in float32
};
inline constexpr size_t kWays = 13;

/// Magnitudes of operands from this one on are not tame.
inline constexpr uint32_t kWild = 0x59000000u;  // 2^51

/// The constants of a rounding; constants_of() makes them.
struct Constants {
  formats::Rule<float> rule;
  uint32_t tiny;     // the least normal number
  uint32_t raise;    // what is added to the bits of 2^e, for M
  uint32_t quantum;  // the least step
  uint32_t lowest;   // number
  uint32_t largest;  // number
  uint32_t beyond;   // kSelected: what a larger number is multiplied by
  float up, down;    // kScaled, kCpd: by `up` values beyond the numbers become infinite; 1 / up
  float magic;       // kFixed: M
};

Constants constants_of(formats::Kind kind, const formats::Rule<float>& rule);

/// The fastest way that a format allows, and the general one.
Way way_of(formats::Kind kind, const formats::Rule<float>& rule);
Way general_way_of(formats::Kind kind);

inline constexpr uint32_t kExponent = 0x7f800000u;

CGX_HD_LOOP uint32_t least_of(uint32_t a, uint32_t b) { return a < b ? a : b; }
CGX_HD_LOOP uint32_t greatest_of(uint32_t a, uint32_t b) {
  return static_cast<int32_t>(a) < static_cast<int32_t>(b) ? b : a;
}

/// The exponent of a value as the power of two that it is.
CGX_HD_LOOP uint32_t power_in(float x) { return as_bits(x) & kExponent; }

/// x + M - M.
CGX_HD_LOOP float by_adder(float x, uint32_t power, uint32_t raise) {
  const float m = from_bits(power + raise);
  return (x + m) - m;
}

/// What becomes of values beyond the numbers.
struct Scale {
  CGX_HD_LOOP explicit Scale(const Constants& c) : up(c.up), down(c.down) {}
  CGX_HD_LOOP float operator()(float x) const { return (x * up) * down; }
  float up, down;
};
/// Of finite values: on bits, where greater magnitudes of negative values are greater unsigned integers,
/// and those of positive ones greater signed integers.
struct Clamp {
  CGX_HD_LOOP explicit Clamp(const Constants& c) : lowest(c.lowest), largest(c.largest) {}
  CGX_HD_LOOP float operator()(float x) const {
    const auto a = static_cast<int32_t>(least_of(as_bits(x), lowest));
    const auto b = static_cast<int32_t>(largest);
    return from_bits(static_cast<uint32_t>(a < b ? a : b));
  }
  uint32_t lowest, largest;
};
struct Select {
  CGX_HD_LOOP explicit Select(const Constants& c) : largest(c.largest), beyond(c.beyond) {}
  CGX_HD_LOOP float operator()(float x) const {
    const uint32_t over = formats::where_less(largest, as_bits(x) & 0x7fffffffu);
    return x * from_bits(0x3f800000u | (over & beyond));  // 1, or an infinity or NaN
  }
  uint32_t largest, beyond;
};

template <typename Limit>
struct ByAdder {
  CGX_HD_LOOP explicit ByAdder(const Constants& c) : tiny(c.tiny), raise(c.raise), limit(c) {}
  CGX_HD_LOOP float product(float x) const {
    return limit(by_adder(x, greatest_of(power_in(x), tiny), raise));
  }
  CGX_HD_LOOP float sum(float x) const { return limit(by_adder(x, power_in(x), raise)); }
  uint32_t tiny, raise;
  Limit limit;
};

/// product(x): a float32 product in the format. sum(x): a float32 sum or difference of two numbers of it.
template <Way way>
struct Rounding;

template <>
struct Rounding<Way::kScaled> : ByAdder<Scale> {
  CGX_HD_LOOP explicit Rounding(const Constants& c) : ByAdder(c) {}
};
template <>
struct Rounding<Way::kClamped> : ByAdder<Clamp> {
  CGX_HD_LOOP explicit Rounding(const Constants& c) : ByAdder(c) {}
};
template <>
struct Rounding<Way::kSelected> : ByAdder<Select> {
  CGX_HD_LOOP explicit Rounding(const Constants& c) : ByAdder(c) {}
};

/// A carry beyond the largest number makes infinity's bits, and subnormal numbers have float32's step.
template <>
struct Rounding<Way::kBits> {
  CGX_HD_LOOP explicit Rounding(const Constants& c)
      : half(c.rule.half), odd(c.rule.odd), cut(c.rule.cut), drop(c.rule.drop) {}
  CGX_HD_LOOP float sum(float x) const {
    const uint32_t bits = as_bits(x);
    return from_bits((bits + half + ((bits >> drop) & odd)) & ~cut);
  }
  CGX_HD_LOOP float product(float x) const { return sum(x); }
  uint32_t half, odd, cut;
  int32_t drop;
};

/// All numbers are multiples of one step, so sums only have to stay within the numbers.
template <>
struct Rounding<Way::kFixed> {
  CGX_HD_LOOP explicit Rounding(const Constants& c) : clamp(c), magic(c.magic) {}
  CGX_HD_LOOP float sum(float x) const { return clamp(x); }
  CGX_HD_LOOP float product(float x) const { return (clamp(x) + magic) - magic; }
  Clamp clamp;
  float magic;
};

/// Infinite by the exponent before the rounding; below the least normal number, what is less than the last
/// bit of a 24-bit significand there is lost before it.
template <>
struct Rounding<Way::kCpd> {
  CGX_HD_LOOP explicit Rounding(const Constants& c) : tiny(c.tiny), raise(c.raise), scale(c) {}
  CGX_HD_LOOP float product(float x) const {
    const float a = scale(x);
    const uint32_t power = power_in(a), kept = greatest_of(power, tiny);
    const uint32_t lost = least_of((kept - power) >> 23, 31);
    return by_adder(from_bits(as_bits(a) & (~0u << lost)), kept, raise);
  }
  CGX_HD_LOOP float sum(float x) const {
    const float a = scale(x);
    return by_adder(a, power_in(a), raise);
  }
  uint32_t tiny, raise;
  Scale scale;
};

template <>
struct Rounding<Way::kCpdBits> {
  CGX_HD_LOOP explicit Rounding(const Constants& c) : bits(c) {}
  CGX_HD_LOOP float sum(float x) const {
    const uint32_t zero = formats::where_less(as_bits(x) & 0x7fffffffu, 0x800000u);
    return from_bits(as_bits(bits.sum(x)) & ~zero);
  }
  CGX_HD_LOOP float product(float x) const { return sum(x); }
  Rounding<Way::kBits> bits;
};

template <>
struct Rounding<Way::kZero> {
  CGX_HD_LOOP explicit Rounding(const Constants& c)
      : tiny(c.tiny), quantum(c.quantum), cut(c.rule.cut), clamp(c) {}
  CGX_HD_LOOP float sum(float x) const { return clamp(from_bits(as_bits(x) & ~cut)); }
  CGX_HD_LOOP float product(float x) const {
    const uint32_t bits = as_bits(x), power = power_in(x);
    const uint32_t lost = least_of((greatest_of(power, tiny) - power) >> 23, 31);
    const uint32_t zero = formats::where_less(bits & 0x7fffffffu, quantum);
    return clamp(from_bits(bits & (~cut << lost) & ~zero));
  }
  uint32_t tiny, quantum, cut;
  Clamp clamp;
};

template <>
struct Rounding<Way::kZeroBits> {
  CGX_HD_LOOP explicit Rounding(const Constants& c) : cut(c.rule.cut) {}
  CGX_HD_LOOP float sum(float x) const { return from_bits(as_bits(x) & ~cut); }
  CGX_HD_LOOP float product(float x) const { return sum(x); }
  uint32_t cut;
};

template <formats::Kind kind>
struct General {
  CGX_HD_LOOP explicit General(const Constants& c) : rule(c.rule) {}
  CGX_HD_LOOP float sum(float x) const { return formats::rounded<kind>(rule, x, 0); }
  CGX_HD_LOOP float product(float x) const { return sum(x); }
  formats::Rule<float> rule;
};
template <>
struct Rounding<Way::kAnyNearest> : General<formats::Kind::kNearest> {
  CGX_HD_LOOP explicit Rounding(const Constants& c) : General(c) {}
};
template <>
struct Rounding<Way::kAnyZero> : General<formats::Kind::kZero> {
  CGX_HD_LOOP explicit Rounding(const Constants& c) : General(c) {}
};
template <>
struct Rounding<Way::kAnyCpd> : General<formats::Kind::kCpd> {
  CGX_HD_LOOP explicit Rounding(const Constants& c) : General(c) {}
};

template <>
struct Rounding<Way::kHopper> {
  CGX_HD_LOOP explicit Rounding(const Constants&) {}
  CGX_HD_LOOP float sum(float x) const { return x; }
};

}  // namespace cgx::gemm
