// SmaQ's code of a value: the single source of these numerics, for loops and for kernels. A word of `bits`
// has a flag, which says whether the value is an outlier, and an integer k of bits - 1 with its sign:
//
//   z = (x - mean) / sigma
//   |z| <= T   k = round(|z| r), r = (2^(main - 2) - 1) / T                         main bits
//   else       k = round((|z| - T) r), r = (2^(outlier - 2) - 1) / (T_o - T)        outlier bits
//   y = mean + sign(z) (k / r, + T of an outlier) sigma
//
// k is at most 2^(bits - 2) - 1, also of |z| > T_o, so that it fits its word, unless the caller lets it grow,
// as SmaQ's own code does. A NaN or an infinity, which the mean of a sample need not show, becomes NaN.
// Source: SmaQ, IEEE CAL 20(2), 2021.
#pragma once

#include "codec/formats/rule.h"

namespace cgx::zscore {

/// The constants of a code. They do not depend on the values.
template <typename Real>
struct Zones {
  using Word = typename formats::WordOf<Real>::Word;
  Real threshold;
  Real rate[2], step[2];      // r and 1 / r: of main codes, of outliers
  Word most[2];               // the largest k
  Word cleared;               // bits of a negative result that become 0: all or none
  formats::Rule<Real> whole;  // rounds to integers
};

template <formats::Kind kind, typename Real>
CGX_HD_LOOP Real coded(const Zones<Real>& zones, Real mean, Real sigma, Real x, uint32_t random) {
  using Type = formats::WordOf<Real>;
  using Word = typename Type::Word;
  const Real z = (x - mean) / sigma;
  const Word sign = as_bits(z) & Type::kSign, u = as_bits(z) & ~Type::kSign;
  const Word outlier = formats::where_less(as_bits(zones.threshold), u);
  const auto pick = [&](Real main, Real other) {
    return formats::real_of_word(formats::select(outlier, as_bits(other), as_bits(main)));
  };
  const Real base = formats::real_of_word(as_bits(zones.threshold) & outlier);
  const Real place = (formats::real_of_word(u) - base) * pick(zones.rate[0], zones.rate[1]);
  // To an integer; of what is beyond all codes anything that is, too.
  const Word k = formats::round_tiny<kind, false>(zones.whole, as_bits(place), random);
  const Word most = formats::select(outlier, zones.most[1], zones.most[0]);
  const Word kept = formats::select(formats::where_less(most, k), most, k);
  const Real size = formats::real_of_word(kept) * pick(zones.step[0], zones.step[1]) + base;
  const Real y = formats::real_of_word(as_bits(size) | sign) * sigma + mean;
  const Word negative = Word{0} - (as_bits(y) >> (8 * sizeof(Word) - 1));
  const Word finite = formats::where_less(as_bits(x) & ~Type::kSign, Type::kInfinity);
  const Word kept_y = as_bits(y) & ~(negative & zones.cleared);
  return formats::real_of_word(formats::select(finite, kept_y, Type::kNanWord));
}

}  // namespace cgx::zscore
