// A payload: a header, a table of lengths, and the blocks of a tensor. Little-endian.
//
//     0    4        "CGXB"
//     4    1        version, 1 or 2 (maps.h)
//     5    1        type (element.h), + 64 where values are complex: pairs of that type
//     6    1        kind of bound (maps.h)
//     7    1        number of dimensions
//     8    4        CRC-32C of the rest of the header, of the table, and of the last four bytes of each
//                   block, which are its own checksum: so blocks cannot change places
//     12   4        bits of the number of values in a block: 16
//     16   8        bound that was asked for, float64
//     24   8        bound of the values, float64: another one where it was asked for as relative
//     32   8 a dim  shape
//     ...  4 a block  table: bytes of each block
//     ...           blocks, nothing after the last
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codec/bounded/maps/maps.h"

namespace cgx::bounded {

struct Container {
  DType element = DType::kFloat32;
  bool complex = false;
  BoundKind kind = BoundKind::kLossless;
  double asked = 0;
  double bound = 0;
  std::vector<uint64_t> shape;
  int version = kFirstVersion;

  static constexpr size_t kFixedBytes = 32;
  static constexpr size_t kMostDims = 64;

  /// Values of that element, two for a complex number.
  uint64_t values() const;
  uint64_t blocks() const;
  /// Values of block k; all but the last have kBlockValues.
  size_t values_of(uint64_t block) const;

  /// Bytes of header and table.
  static size_t head_bytes(size_t dims, size_t blocks) {
    return kFixedBytes + 8 * dims + 4 * blocks;
  }
  /// Header and table of these blocks.
  std::vector<std::byte> write(std::span<const std::span<const std::byte>> blocks) const;
};

/// A payload's header, and where its blocks are.
struct OpenContainer {
  Container header;
  std::vector<uint64_t> starts;  // of each block, and the end of the last

  /// Reads a payload of `bytes` bytes at `data`. PayloadError: it does not follow the format, was cut or
  /// altered. Takes no more memory than a payload of this length can need.
  static OpenContainer read(std::span<const std::byte> payload);
};

}  // namespace cgx::bounded
