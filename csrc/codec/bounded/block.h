// A block: up to 65536 values of a tensor, encoded by themselves.
//
//     header         depends on the map; of kRaw and kConstant, its first byte only
//     coded          symbols with their lists: one frame of the entropy coder, or uncompressed
//     low bits       planes of bytes, then planes of bits, unless they are coded
//     CRC-32C        of all of this
//
// A block without bytes holds values whose bits are all 0.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/bounded/encode/estimate.h"
#include "codec/bounded/maps/maps.h"

namespace cgx::bounded {

inline constexpr int kBlockBits = 16;
inline constexpr size_t kBlockValues = size_t{1} << kBlockBits;

struct BlockHeader {
  Map map = Map::kRaw;
  Predictor predictor = Predictor::kNone;
  LowBits low = LowBits::kPlanes;
  bool compressed = false;   // the coded part is a frame
  bool signed_zero = false;  // -0 has the word -1, and negative words are one less (signed_zero.h)
  bool quads = false;        // symbols are packed, four to a byte (quads.h)
  bool windowed = false;     // symbols are coded by those before them (ans/windowed.h)
  uint8_t center = 0;        // of the packed or windowed symbols
  uint16_t listed = 0;       // symbols that quads leave to a list
  int width = 0;
  int shift = 0;     // kOrder
  int64_t base = 0;  // the residual of symbol 0
  double step = 0;   // kGrid
  int64_t origin =
      0;  // kOrder, kLogGrid; of a map of the block's own, its bytes; in the place of the step
  uint32_t outliers = 0;
  uint32_t specials = 0;
  uint32_t coded = 0;  // bytes of the coded part

  static constexpr size_t kBytes = 36;
  void write(std::byte* out) const;
  /// Reads the header of a block of n values of that type, whose map is neither kRaw nor kConstant.
  /// PayloadError: a field has a value that the format does not define, or that cannot be.
  static BlockHeader read(const std::byte* in, const Maps& maps, size_t n);
  /// PayloadError: map, shift or origin is not one of these types and bounds, of n values.
  void check_map(const Maps& maps, size_t n) const;
};

/// Sizes of a block's parts, from its header.
struct BlockSizes {
  size_t symbols;     // bytes of the symbols, packed or not, and of what quads leave to the list;
                      // windowed: all that the rest leaves of the coded part
  size_t coded_low;   // bytes
  size_t outliers;    // bytes
  size_t nodes;       // bytes; of a curve
  size_t own;         // bytes; of a map of the block's own
  size_t rest;        // bytes of the content behind symbols and coded low bits
  size_t content;     // bytes that the entropy coder sees, or would see
  size_t low_bytes;   // planes of bytes, not coded
  size_t low_bits;    // planes of bits
  size_t bit_stride;  // bytes of a plane of bits
  size_t low;         // bytes of the low bits

  BlockSizes(const BlockHeader& header, DType element, size_t n);
};

inline constexpr size_t kCrcBytes = 4;

}  // namespace cgx::bounded
