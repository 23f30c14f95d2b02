// What values need to become codes of a format: the constants of rounding (rule.h) and of codes (codes.h), for
// the host and for kernels.
#pragma once

#include "codec/formats/rules.h"

namespace cgx::formats {

/// How values become codes of 2 to 8 bits, or 16; coder_of() makes it.
struct Coder {
  Kind kind;
  Rule<float> rule;
  CodeRule code;
  int bits;

  /// Bytes of n codes.
  CGX_HD uint64_t bytes(uint64_t n) const {
    const auto width = static_cast<uint64_t>(bits);
    return n / 8 * width + (n % 8 * width + 7) / 8;
  }
};

CGX_HD Coder coder_of(const Casting& casting) {
  const Format& format = casting.format;
  Coder coder{kind_of(casting), rule_of<float>(casting), code_rule_of(format), format.bits()};
  const bool infinity = casting.overflow == Overflow::kInfinity ||
                        (casting.overflow == Overflow::kSaturate && format.has_infinity());
  coder.code.infinite = infinity ? WordOf<float>::kInfinity : WordOf<float>::kNanWord;
  return coder;
}

}  // namespace cgx::formats
