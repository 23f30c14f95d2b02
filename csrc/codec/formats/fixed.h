// Numbers in fixed point: k 2^-fraction, where k is an integer of `word` bits with its sign.
#pragma once

#include <cmath>

#include "codec/formats/format.h"

namespace cgx::formats {

struct Fixed {
  int word = 8, fraction = 0;
  bool symmetric = false;  // -2^(word - 1) is left out
  Rounding rounding = Rounding::kNearest;
  int random_bits = 24;

  double quantum() const { return std::ldexp(1.0, -fraction); }
  double largest() const { return std::ldexp(1.0, word - 1 - fraction) - quantum(); }
  double lowest() const { return symmetric ? -largest() : -std::ldexp(1.0, word - 1 - fraction); }
};

}  // namespace cgx::formats
