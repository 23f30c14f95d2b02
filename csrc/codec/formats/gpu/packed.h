// How values become numbers of a format, in a run's own bytes: a table of runs has no room for the constants
// (rules.h), so kernels compute them from these.
#pragma once

#include "codec/formats/format.h"
#include "codec/formats/scale.h"
#include "codec/gpu/run.h"

namespace cgx::gpu::coding {

/// A Casting, and what the scale of a block follows from.
struct Packed {
  formats::Casting casting{};
  formats::Scale scale = formats::Scale::kE8m0;
  formats::ScaleRounding scale_rounding = formats::ScaleRounding::kFloor;
};

/// The fields in a word, one behind the other, lowest bits first.
struct Fields {
  uint32_t word = 0, used = 0;

  CGX_HD void put(uint32_t field, uint32_t bits) {
    word |= field << used;
    used += bits;
  }
  CGX_HD uint32_t take(uint32_t bits) {
    const uint32_t field = word & ((1u << bits) - 1);
    word >>= bits;
    return field;
  }
};

CGX_HD void pack(const Packed& packed, CodecRun& run) {
  const formats::Casting& casting = packed.casting;
  Fields fields;
  fields.put(static_cast<uint32_t>(casting.format.exponent), 4);
  fields.put(static_cast<uint32_t>(casting.format.mantissa), 5);
  fields.put(static_cast<uint32_t>(casting.format.variant), 3);
  fields.put(static_cast<uint32_t>(casting.rounding), 2);
  fields.put(static_cast<uint32_t>(casting.random_bits), 5);
  fields.put(casting.subnormals ? 1 : 0, 1);
  fields.put(static_cast<uint32_t>(casting.overflow), 2);
  fields.put(static_cast<uint32_t>(packed.scale), 2);
  fields.put(static_cast<uint32_t>(packed.scale_rounding), 2);
  static_assert(sizeof run.own == sizeof fields.word, "a run has room for the word");
  for (uint32_t k = 0; k < sizeof run.own; ++k) {
    run.own[k] = static_cast<uint8_t>(fields.word >> (8 * k));
  }
}

CGX_HD Packed unpack(const CodecRun& run) {
  Fields fields;
  for (uint32_t k = 0; k < sizeof run.own; ++k) {
    fields.word |= static_cast<uint32_t>(run.own[k]) << (8 * k);
  }
  Packed packed;
  formats::Casting& casting = packed.casting;
  casting.format.exponent = static_cast<int>(fields.take(4));
  casting.format.mantissa = static_cast<int>(fields.take(5));
  casting.format.variant = static_cast<formats::Variant>(fields.take(3));
  casting.rounding = static_cast<formats::Rounding>(fields.take(2));
  casting.random_bits = static_cast<int>(fields.take(5));
  casting.subnormals = fields.take(1) != 0;
  casting.overflow = static_cast<formats::Overflow>(fields.take(2));
  packed.scale = static_cast<formats::Scale>(fields.take(2));
  packed.scale_rounding = static_cast<formats::ScaleRounding>(fields.take(2));
  return packed;
}

}  // namespace cgx::gpu::coding
