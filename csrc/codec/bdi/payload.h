// The payload of a tensor of words: header, table of chunks, chunks, checksum.
//
// All numbers are little-endian, all streams of bits lowest first.
//
//    0  4 bytes  magic "CGXI"
//    4  u16      version, 1
//    6  u8       words: 0 int32, 1 uint32, 2 float32
//    7  u8       bit 0: chunks have a zero mask; the others are 0
//    8  u64      bytes of the payload, all included
//   16  u16      batch: words of a chunk
//   18  3 u8     scales: init, base, delta
//   21  3 u8     number of dimensions, of immediates, of configurations
//   24           u64 of each dimension, u32 of each immediate, then for each configuration
//                3 u8: bases, bits of a base, bits of a delta
//                table: for each chunk 0 (raw) or 1 + its configuration, in the fewest bits that
//                hold the number of configurations; zeros fill the last byte
//                chunks, each from a byte on
//    end - 4     CRC-32C of all before it
//
// A raw chunk is its words. Another one is a stream:
//
//   zero mask   1 bit a word: 1 if it is not zero. Without a mask no word is
//   used        number of bases, in the fewest bits that hold the bases of the configuration
//   bases       used numbers
//   selectors   for each word that is not zero the number of its immediate, or behind these of its
//               base, in the fewest bits that hold all
//   deltas      for each word that is not zero
//   zeros       to the next byte
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/parallel.h"
#include "codec/bdi/bits.h"
#include "codec/bdi/chunk_encoder.h"
#include "codec/bdi/format.h"

namespace cgx::bdi {

/// Chunks that a thread deals with at once: about 64K words.
inline uint64_t chunks_of_part(uint32_t batch) { return std::max(65536u / batch, 1u); }

/// A single part needs no other thread.
template <typename Body>
void run_parts(const Parallel& threads, size_t parts, const Body& body) {
  if (parts == 1) return body(0);
  if (parts > 1) threads.run(parts, body);
}

/// A tensor's chunks, encoded: the same bytes for any number of threads.
class Encoded {
 public:
  /// words: count_of(shape) of them. ConfigError: a value of `format`, or the shape, is
  /// out of range.
  Encoded(const Format& format, const EncoderOptions& options, const std::vector<uint64_t>& shape,
          const uint32_t* words, const Parallel& threads);

  size_t bytes() const { return bytes_; }

  /// The payload: bytes() bytes.
  void write(std::byte* out) const;

 private:
  const Format format_;
  const std::vector<uint64_t> shape_;
  size_t bytes_ = 0;
  std::vector<uint8_t> numbers_;               // of each chunk, for the table
  std::vector<std::vector<std::byte>> parts_;  // chunks
};

/// One chunk, before its selectors and deltas are read.
struct Chunk {
  uint8_t number = kRaw;  // in the table
  uint32_t words = 0;
  uint32_t nonzero = 0;  // of a raw chunk all
  uint32_t used = 0;     // bases
  uint64_t at = 0;       // place in the payload
  uint64_t bytes = 0;
};

/// A payload that somebody else wrote. Reading touches its bytes only; checking allocates less than
/// four times as many, decoding beyond its result some arrays of a chunk for each thread. The memory
/// outlives this view and does not change meanwhile.
class Payload {
 public:
  /// Checks all but the numbers inside of chunks, which decode() checks. ConfigError names what is
  /// wrong.
  Payload(const std::byte* data, size_t bytes);

  const Format& format() const { return format_; }
  const std::vector<uint64_t>& shape() const { return shape_; }
  /// At most eight for each byte of the payload.
  uint64_t words() const { return words_; }
  uint64_t chunks() const { return chunks_; }

  /// Writes words() words. ConfigError: a chunk holds what no encoder writes.
  void decode(uint32_t* out, const Parallel& threads) const;

  /// Calls visit(const Chunk&) for each chunk, in order.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    uint64_t at = first_;
    for (uint64_t i = 0; i < chunks_; ++i) {
      const Chunk chunk = look(i, at);
      visit(chunk);
      at += chunk.bytes;
    }
  }

 private:
  class Decoder;

  void read_head();
  void find_parts();
  Chunk look(uint64_t number, uint64_t at) const;

  const std::byte* data_;
  size_t bytes_;
  Format format_;
  std::vector<uint64_t> shape_;
  uint64_t words_ = 0, chunks_ = 0;
  uint64_t table_ = 0, first_ = 0, end_ = 0;  // places: table, first chunk, checksum
  std::vector<uint64_t> parts_;               // places: first chunk of each part
};

}  // namespace cgx::bdi
