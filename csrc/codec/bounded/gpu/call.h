// Arguments of the error-bounded compressor's kernels. The host fills them in (slab.h); the device
// reads them as they lie in memory.
//
// A thread block encodes or decodes one block of the payload at a time. The output of encoding, which is
// the input of decoding, are the block's parts, one after the other in one buffer.
#pragma once

#include "codec/bounded/kinds.h"
#include "codec/bounded/maps/log_table.h"
#include "codec/bounded/maps/order_places.h"

namespace cgx::bounded::on_gpu {

/// A type of values.
struct ValueType {
  FloatLayout layout;  // of floating-point numbers
  uint32_t bytes;
  uint8_t floating;
  uint8_t extends;  // words of whole numbers have their sign
  uint8_t is_bool;
  uint8_t pad;
};

/// How a block is written, and where its values and parts are.
struct BlockForm {
  uint64_t parts;  // byte of the buffer where they start; a multiple of 8
  int64_t
      value;  // place of the block's first value in the tensor; of a part of a tensor also below 0
  double step, inverse;  // kGrid
  int64_t most;          // decode: magnitudes of the grid's words; below 0: any, as in version 1
  int64_t base;          // the residual of symbol 0; kConstant: the value's bits
  int64_t origin;
  uint32_t n;                   // values
  uint32_t from, to;            // decode: values outside of these are not wanted
  uint32_t outliers, specials;  // in the parts; encode: for how many there is room
  Map map;
  Predictor predictor;
  uint8_t width, shift, signed_zero;
  uint8_t pad[3];
};

/// Bytes of a form's parts, from its `parts` on; all are multiples of 8.
struct Parts {
  uint64_t symbols;   // a byte each; kRaw: the values
  uint64_t bytes;     // planes of low bytes, `stride` apart
  uint64_t bits;      // planes of low bits, `stride` / 8 apart
  uint64_t nodes;     // int32, of curves
  uint64_t outliers;  // words
  uint64_t places;    // of special values, uint16
  uint64_t specials;  // these values
  uint64_t end;
  uint32_t stride;  // a multiple of 64
};
/// The parts begin with two uint32: the numbers of outliers and special values. They may exceed the room
/// for their lists, which then hold the first of them.
constexpr uint32_t kCountBytes = 8;

CGX_HD uint64_t up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

CGX_HD Parts parts_of(const BlockForm& form, uint32_t value_bytes) {
  Parts parts{};
  const uint32_t word_bytes = value_bytes == 8 ? 8 : 4;
  const bool symbols = form.map > Map::kConstant;
  const uint64_t runs = (form.n + kCurveRun - 1) / kCurveRun;
  parts.stride = static_cast<uint32_t>(up(form.n, 64));
  parts.symbols = kCountBytes;
  parts.bytes = parts.symbols + (symbols                 ? parts.stride
                                 : form.map == Map::kRaw ? up(uint64_t{form.n} * value_bytes, 8)
                                                         : 0);
  parts.bits = parts.bytes + static_cast<uint64_t>(form.width / 8) * parts.stride;
  parts.nodes = parts.bits + static_cast<uint64_t>(form.width % 8) * (parts.stride / 8);
  parts.outliers = parts.nodes + (form.predictor == Predictor::kCurve ? runs * kCurveNodes * 4 : 0);
  parts.places = parts.outliers + up(uint64_t{form.outliers} * word_bytes, 8);
  parts.specials = parts.places + up(uint64_t{form.specials} * 2, 8);
  parts.end = parts.specials + up(uint64_t{form.specials} * value_bytes, 8);
  return parts;
}

/// Head of the output of the kernel `look`; the block's sample and the runs for curves follow.
struct LookedAt {
  uint64_t greatest;  // bits of the greatest finite magnitude, of floating-point values
  uint64_t differ;    // 0: all values have the same bits
  uint64_t any;       // all bits that are set in a value
  uint64_t least;     // bits of the least magnitude that is normal, or an infinity's
};

struct LookCall {
  const unsigned char* x;  // values of all blocks
  unsigned char* out;      // LookedAt and values, `stride` bytes for each block
  uint64_t values;         // of all blocks
  uint64_t count;          // blocks
  uint64_t stride;
  ValueType type;
  uint32_t block_values;
  uint8_t tries_curves;
};

/// Tables are null where no form needs them.
struct BlocksCall {
  const unsigned char* x;  // encode
  unsigned char* y;        // decode
  const BlockForm* forms;
  unsigned char* parts;
  uint32_t* faults;  // decode: one for each block, 0 before; 1: the parts do not fit each other
  uint64_t count;    // blocks
  double bound;
  const int16_t* lattice_words;  // by bits
  const uint16_t*
      lattice_values;  // points to the value of word 0; words are indices, also negative
  const LogTable* log_table;
  const double* draw;  // CurveTables
  const double* fit;
  ValueType type;
  int32_t lattice_most;
  uint8_t pointwise;
};

}  // namespace cgx::bounded::on_gpu
