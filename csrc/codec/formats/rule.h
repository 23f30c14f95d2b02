// Rounding of a value to a number of a format, on the bits of the value: the single source of these
// numerics, for loops of every SIMD level and for kernels.
//
// Real is float or double; every number of a format is one of both, so one rounding is all there is.
// A magnitude of bits u from the least normal number on drops its lowest bits: r = u + half, less what is
// dropped; a carry goes into the exponent, as it should. Below, numbers are multiples of a quantum: adding
// and subtracting the power of two whose last bit is that quantum rounds to them. Of a stochastic rounding
// with n random bits R, the fraction f of the way to the next number rounds up where
// floor(f 2^n) + R >= 2^n. Functions have no branches, so compilers make vectors of their loops.
#pragma once

#include "codec/formats/words.h"

namespace cgx::formats {

/// How a loop rounds; chosen once a call.
enum class Kind : uint8_t { kNearest, kZero, kStochastic, kCpd, kScale };
inline constexpr int kKinds = 5;

/// The constants of a rounding; rule_of() (rules.h) makes them.
template <typename Real>
struct Rule {
  using Word = typename WordOf<Real>::Word;
  Word cut;       // the bits that normal numbers drop
  Word half;      // kNearest: half of the last kept bit, less 1; else 0
  Word odd;       // 1, or 0 where nothing is dropped
  Word flip;      // 1 where a kept exponent is odd in the format and even here
  Word tiny;      // magnitudes below are rounded to multiples of the quantum
  Word largest;   // number
  Word beyond;    // what a finite magnitude above becomes
  Word infinite;  // what an infinite one becomes
  Word more;  // what is added to these three, of negative values: two's complement reaches farther
  Word least_kept;  // smaller results become 0
  Word zero_sign;   // the sign that zero may have
  Real magic;       // its last bit is the quantum
  Real quantum;
  Real inverse[2];                    // their product is units / quantum
  int32_t units;                      // 2^random_bits
  int32_t drop;                       // how many bits `cut` has
  int32_t random_right, random_left;  // shifts of a value's random bits to the highest of `cut`
  int32_t random_shift;               // of a word of the generator: leaves a value's random bits
  int32_t bias;                       // of the format
  int32_t random_bits;
  // Zero has a sign, all numbers stay, `flip` and `more` are 0; of kStochastic inverse[1] is 1, and tiny
  // magnitudes are at most 2^30 units. So no operand is subnormal, which costs much.
  bool plain;
  Word beyond_from;  // kCpd: magnitudes from here on become infinite
};

/// All bits where a is less than b, else none; both magnitudes. Compilers make branches of conditions.
template <typename Word>
CGX_HD_LOOP Word where_less(Word a, Word b) {
  using Signed = typename SignedOf<Word>::Type;
  return static_cast<Signed>(a) < static_cast<Signed>(b) ? ~Word{0} : Word{0};
}

template <typename Word>
CGX_HD_LOOP Word select(Word mask, Word where_set, Word where_not) {
  return (where_set & mask) | (where_not & ~mask);
}

/// The same for what no float was computed for: compilers then make a blend of it.
template <typename Word>
CGX_HD_LOOP Word choose(Word mask, Word where_set, Word where_not) {
  return mask != 0 ? where_set : where_not;
}

/// A magnitude on the grid of the quantum.
template <Kind kind, bool plain, typename Real>
CGX_HD_LOOP typename WordOf<Real>::Word round_tiny(const Rule<Real>& rule,
                                                   typename WordOf<Real>::Word u, uint32_t random) {
  if constexpr (kind == Kind::kStochastic && plain) {
    // In fixed point: units of 2^-random_bits quanta, to whose number the random bits are added. Values whose
    // result does not count would not fit.
    const Real low = real_of_word(u & where_less(u, rule.tiny));
    const uint32_t units = static_cast<uint32_t>(static_cast<int32_t>(low * rule.inverse[0]));
    const uint32_t quanta = (units + random) >> rule.random_bits;
    return as_bits(static_cast<Real>(static_cast<int32_t>(quanta)) * rule.quantum);
  }
  const Real a = real_of_word(u);
  Real z = (a + rule.magic) - rule.magic;
  if constexpr (kind != Kind::kNearest) {
    z = z - real_of_word(as_bits(rule.quantum) & where_less(u, as_bits(z)));
  }
  if constexpr (kind == Kind::kStochastic) {
    // The fraction in units of 2^-random_bits.
    const Real fraction = ((a - z) * rule.inverse[0]) * rule.inverse[1];
    const Real least = static_cast<Real>(rule.units - static_cast<int32_t>(random));
    const auto down = where_less(as_bits(fraction), as_bits(least));
    z = z + real_of_word(as_bits(rule.quantum) & ~down);
  }
  return as_bits(z);
}

/// A finite magnitude on the format's grid, as if that had no end.
template <Kind kind, bool plain, typename Real>
CGX_HD_LOOP typename WordOf<Real>::Word round_magnitude(const Rule<Real>& rule,
                                                        typename WordOf<Real>::Word u,
                                                        uint32_t random) {
  using Word = typename WordOf<Real>::Word;
  Word r = u;
  if constexpr (kind == Kind::kNearest) {
    const Word last = u >> rule.drop;
    r += rule.half + ((plain ? last : last ^ rule.flip) & rule.odd);
  }
  if constexpr (kind == Kind::kStochastic) {
    r += (static_cast<Word>(random) >> rule.random_right) << rule.random_left;
  }
  r &= ~rule.cut;
  const Word low = round_tiny<kind, plain>(rule, u, random);
  return select(where_less(u, rule.tiny), low, r);
}

/// CPD's cast of a magnitude: a tie goes to the even significand, with its leading one; below the least
/// normal number what is shifted out is lost before the rounding; a carry beyond the largest number
/// stays; float32's subnormal values become 0.
CGX_HD_LOOP uint32_t round_cpd(const Rule<float>& rule, uint32_t u) {
  const int32_t field = static_cast<int32_t>(u >> 23), exponent = field - 127 + rule.bias;
  const int32_t below = 1 - exponent, some = below & ~(below >> 31);
  const int32_t shift = some < 31 ? some : 31;
  const uint32_t kept = ((u & 0x7fffffu) | 0x800000u) >> shift;
  const uint32_t r = (kept + rule.half + ((kept >> rule.drop) & rule.odd)) & ~rule.cut;
  const uint32_t normal = (u & 0x7f800000u) - 0x800000u + r;
  const auto steps = static_cast<float>(static_cast<int32_t>(r >> rule.drop));
  const uint32_t tiny = as_bits(steps * rule.quantum);
  const uint32_t finite = select(static_cast<uint32_t>((exponent - 1) >> 31), tiny, normal);
  return select(where_less(u, rule.beyond_from), finite, WordOf<float>::kInfinity);
}

/// A positive magnitude as a power of two from 2^-127 on: e8m0.
template <typename Real>
CGX_HD_LOOP typename WordOf<Real>::Word round_to_power(const Rule<Real>& rule,
                                                       typename WordOf<Real>::Word u) {
  using Word = typename WordOf<Real>::Word;
  Word r = (u + rule.half + ((u >> rule.drop) & rule.odd)) & ~rule.cut;
  if constexpr (sizeof(Word) == 4) {
    // 2^-127 is no normal number of float32: the next one begins beyond 1.5 2^-127.
    r = select(where_less(u, 0x800000u), 0x800000u, r);
    return select(where_less(u, 0x600001u), 0x400000u, r);
  } else {
    return select(where_less(r, rule.least_kept), rule.least_kept, r);
  }
}

/// x in the format. `random`: the random bits of the value, a number below 2^random_bits. plain: the rule
/// is (Rule::plain).
template <Kind kind, bool plain = false, typename Real>
CGX_HD_LOOP Real rounded(const Rule<Real>& rule, Real x, uint32_t random) {
  using Type = WordOf<Real>;
  using Word = typename Type::Word;
  const Word bits = as_bits(x), u = bits & ~Type::kSign;
  if constexpr (kind == Kind::kScale) {
    const Word r = round_to_power(rule, u);
    const Word positive = where_less(Word{0}, u) & ~(Word{0} - (bits >> (8 * sizeof(Word) - 1)));
    const Word finite = where_less(u, Type::kInfinity);
    const Word number = positive & finite & ~where_less(rule.largest, r);
    return real_of_word(select(number, r, Type::kNanWord));
  } else if constexpr (kind == Kind::kCpd) {
    const Word sign = bits & Type::kSign;
    Word r = select(where_less(u, Word{0x800000u}), Word{0}, round_cpd(rule, u) | sign);
    r |= sign & where_less(u, Word{1});
    r = select(where_less(u, Type::kInfinity), r, bits);
    return real_of_word(select(where_less(Type::kInfinity, u), Type::kNanWord, r));
  } else {
    Word r = round_magnitude<kind, plain>(rule, u, random);
    const Word more = plain ? Word{0} : rule.more & (Word{0} - (bits >> (8 * sizeof(Word) - 1)));
    // Of what is not finite, too, as far as that becomes the same.
    r = choose(where_less(rule.largest + more, r), rule.beyond + more, r);
    if constexpr (kind == Kind::kZero) {
      r = select(where_less(u, Type::kInfinity), r, rule.infinite + more);
    }
    if constexpr (!plain) r &= ~where_less(r, rule.least_kept);
    const Word nan = where_less(Type::kInfinity, r) | where_less(Type::kInfinity, u);
    if constexpr (plain) {
      r |= bits & Type::kSign;
    } else {
      r |= bits & choose(where_less(r, Word{1}), rule.zero_sign, Type::kSign);
    }
    return real_of_word(choose(nan, Type::kNanWord, r));
  }
}

}  // namespace cgx::formats
