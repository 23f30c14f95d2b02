// A payload: a header, a table of lengths, and the blocks of a tensor. Little-endian. Numbers are those
// of bytes.h: of up to 64 bits, in 7 bits a byte.
//
//     0    4        "CGXB"
//     4    1        version, 3
//     5    1        type (element.h), + 64 where values are complex: pairs of that type
//     6    1        kind of bound (maps.h)
//     7    1        number of dimensions
//     8    4        CRC-32C of the rest of the header, of the table, and of the last four bytes of each
//                   block, which are its own checksum: so blocks cannot change places
//     12   8        bound that was asked for, float64; not where lossless
//     ...  8        bound of the values, float64; only where it was asked for as relative
//     ...           shape: a number for each dimension
//     ...           table: for each block one more than its bytes; or 0, and how many blocks from here
//                   on are as the one before (before the first one: without bytes)
//     ...           blocks that are not as the one before
//     ...           zeros, where values are more than 2^17 times the bytes
//
// A type with 128 added marks a payload of one frame, in which the entropy coder finds repetitions that
// are far apart. The form of the frame (whole.h), its length, the frame and its CRC-32C then replace the
// table and the blocks.
//
// Versions 1 and 2 have 16, a number of 32 bits, at 12, then both bounds, the shape in 64 bits a
// dimension, and the bytes of each block in 32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "codec/bounded/maps/maps.h"
#include "codec/bounded/whole.h"

namespace cgx::bounded {

struct Container {
  DType element = DType::kFloat32;
  bool complex = false;
  BoundKind kind = BoundKind::kLossless;
  double asked = 0;
  double bound = 0;
  std::vector<uint64_t> shape;
  int version = kLastVersion;
  std::optional<Whole> whole;  // all values are one frame

  static constexpr size_t kMostDims = 64;

  /// Values of that element, two for a complex number.
  uint64_t values() const;
  uint64_t blocks() const;
  /// Values of block k; all but the last have kBlockValues.
  size_t values_of(uint64_t block) const;

  /// The most bytes that header and table take, in version 3.
  static size_t most_head(size_t dims, size_t blocks) { return 28 + 10 * dims + 5 * blocks; }
  /// Header and table of these blocks, in the container's version. A block with the memory of the one
  /// before is as that.
  std::vector<std::byte> write(std::span<const std::span<const std::byte>> blocks) const;
  /// Returns a payload of one frame. `whole` gives the frame's form.
  std::vector<std::byte> write_whole(std::span<const std::byte> frame) const;
  /// Zeros that follow so many bytes of header, table and blocks.
  size_t padding(size_t bytes) const;

 private:
  void write_rest(std::vector<std::byte>& out) const;
};

/// A payload's header, and where its blocks are.
struct OpenContainer {
  struct Place {
    uint64_t begin, end;
  };
  Container header;
  std::vector<Place> places;  // of each block; several may have the same; or of the frame

  /// Reads a payload of `bytes` bytes at `data`. PayloadError: it does not follow the format, was cut or
  /// altered. Takes no more memory than a payload of this length can need.
  static OpenContainer read(std::span<const std::byte> payload);
};

}  // namespace cgx::bounded
