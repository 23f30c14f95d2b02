// Codes of numbers that a format has, and the values of codes: the single source, for loops of every SIMD
// level and for kernels.
//
// A code is the sign above the format's code (format.h). From the least normal number on a code is the
// number's own bits, shifted, less what the biases differ by; below, it counts quanta: added to the power of
// two whose last bit is one quantum, they stand in the sum's last bits. Functions have no branches.
#pragma once

#include "codec/formats/rule.h"

namespace cgx::formats {

/// A format without such a code: no code compares equal.
inline constexpr uint32_t kNoCode = 0x7fffffffu;

/// The constants of a format's codes; code_rule_of() (rules.h) makes them.
struct CodeRule {
  int32_t drop;           // bits of float32's mantissa that the format lacks
  int32_t width;          // bits below the sign
  uint32_t rebias;        // exponent 0 of float32 less that of the format, as a code
  uint32_t tiny;          // magnitudes below are counted in quanta, as bits
  uint32_t tiny_code;     // its code
  uint32_t top;           // the code of the largest number
  uint32_t infinity;      // its code, or kNoCode
  uint32_t nan;           // the code that a NaN gets, with its sign
  uint32_t negative_nan;  // the code of -0 where that is NaN, or kNoCode
  uint32_t infinite;      // what an infinite value becomes, as bits: an infinity or NaN
  float magic;            // its last bit is the quantum
};

/// As where_less(), for magnitudes, by the sign of a difference: compilers make branches of comparisons here,
/// and no vectors.
CGX_HD_LOOP uint32_t below(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(static_cast<int32_t>(a - b) >> 31);
}

/// What travels of x, whose cast is y. What is not finite stays so, where a cast would saturate it.
CGX_HD_LOOP float unsaturated(const CodeRule& rule, float x, float y) {
  const uint32_t bits = as_bits(x), infinite = below((bits & 0x7fffffffu) ^ 0x7f800000u, 1u);
  return from_bits(select(infinite, rule.infinite | (bits & 0x80000000u), as_bits(y)));
}

/// Of a number of the format, an infinity it has, or a NaN.
CGX_HD_LOOP uint32_t code_of(const CodeRule& rule, float x) {
  const uint32_t bits = as_bits(x), u = bits & 0x7fffffffu;
  const uint32_t quanta = as_bits(from_bits(u) + rule.magic) - as_bits(rule.magic);
  uint32_t code = select(below(u, rule.tiny), quanta, (u >> rule.drop) - rule.rebias);
  code = select(below(0x7f7fffffu, u), rule.infinity, code);
  code |= (bits >> 31) << rule.width;
  return select(below(0x7f800000u, u), rule.nan, code);
}

/// Of any code below 2^(width + 1); NaN is the one of base/nan.h.
CGX_HD_LOOP float value_of_code(const CodeRule& rule, uint32_t code) {
  const uint32_t c = code & ((1u << rule.width) - 1);
  const uint32_t tiny = as_bits(from_bits(as_bits(rule.magic) + c) - rule.magic);
  uint32_t u = select(below(c, rule.tiny_code), tiny, (c + rule.rebias) << rule.drop);
  const uint32_t other = below(rule.top, c);
  const uint32_t infinite = below(c ^ rule.infinity, 1u);
  const uint32_t nan = (other & ~infinite) | below(code ^ rule.negative_nan, 1u);
  u = select(other, 0x7f800000u, u) | (code >> rule.width) << 31;
  return from_bits(select(nan, kNan, u));
}

}  // namespace cgx::formats
