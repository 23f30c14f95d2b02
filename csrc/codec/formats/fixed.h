// Numbers in fixed point: k 2^-fraction, where k is an integer of `word` bits with its sign; for the host
// and for kernels.
#pragma once

#include "codec/formats/format.h"

namespace cgx::formats {

struct Fixed {
  int word = 8, fraction = 0;
  bool symmetric = false;  // -2^(word - 1) is left out
  Rounding rounding = Rounding::kNearest;
  int random_bits = 24;

  CGX_HD double quantum() const { return power_of<double>(-fraction); }
  CGX_HD double largest() const { return power_of<double>(word - 1 - fraction) - quantum(); }
  CGX_HD double lowest() const {
    return symmetric ? -largest() : -power_of<double>(word - 1 - fraction);
  }
};

}  // namespace cgx::formats
