// Blocks on the wire: how their values are coded, and their scales; for loops and for kernels.
//
// A scale is a byte of e8m0, the power of two 2^(byte - 127), or a float32. The scale of
// a block with a NaN or an infinity is NaN.
#pragma once

#include "codec/formats/coder.h"
#include "codec/formats/scale.h"

namespace cgx {

/// The number of `block` on the wire.
constexpr uint8_t kBlockFamily = 7;

namespace blocks {

constexpr uint32_t kNanByte = 255;

struct WireShape {
  formats::Coder coder;
  formats::ScaleRule scale_rule;
  bool wide;      // scales are float32, not e8m0
  uint64_t size;  // of a block

  CGX_HD uint64_t scale_bytes() const { return wide ? sizeof(float) : 1; }
};

CGX_HD WireShape wire_shape_of(const formats::Casting& element, formats::Scale scale,
                               formats::ScaleRounding rounding, uint64_t size) {
  WireShape shape{formats::coder_of(element), formats::scale_rule_of(element.format, rounding),
                  scale == formats::Scale::kFloat32, size};
  // NaN needs no code: its block's scale is NaN.
  shape.coder.code.nan = 0;
  return shape;
}

/// The scale of a block that is a power of two.
struct PowerScale {
  uint32_t byte;
  float inverse;  // what the block's values are multiplied by
};

/// most: the bits of the block's greatest magnitude.
CGX_HD_LOOP PowerScale power_scale_of(const formats::ScaleRule& rule, uint32_t most) {
  const uint32_t finite = formats::where_less(most, 0x7f800000u);
  const int32_t s = formats::power_of_scale(rule, static_cast<double>(from_bits(most & finite)));
  const uint32_t inverse = as_bits(formats::power_of_two(-s));
  return {formats::select(finite, static_cast<uint32_t>(s + 127), kNanByte),
          from_bits(formats::select(finite, inverse, kNan))};
}

/// The scale of a block that is a float32: what its values are divided by.
CGX_HD_LOOP float wide_scale_of(const formats::ScaleRule& rule, uint32_t most) {
  const uint32_t finite = formats::where_less(most, 0x7f800000u);
  const float divisor = formats::divisor_of(rule, from_bits(most & finite));
  return from_bits(formats::select(finite, as_bits(divisor), kNan));
}

CGX_HD float scale_of_byte(uint32_t byte) {
  const float power = formats::power_of_two(static_cast<int32_t>(byte) - 127);
  return byte == kNanByte ? from_bits(kNan) : power;
}

}  // namespace blocks
}  // namespace cgx
