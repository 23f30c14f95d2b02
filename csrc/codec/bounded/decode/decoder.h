// Decodes blocks in two steps: open() checks a block and returns the frame for the entropy coder;
// decode() takes the content of that frame and writes the values. Safe for any bytes: a block that does
// not follow the format is a PayloadError. Not thread-safe: one decoder a thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "codec/bounded/block.h"
#include "codec/bounded/bytes_map.h"
#include "codec/bounded/maps/own.h"

namespace cgx::bounded {

/// Reader of one block's parts.
struct OpenBlock {
  BlockHeader header;
  size_t n = 0;
  std::span<const std::byte> frame;  // to be decompressed; empty: nothing is
  size_t content = 0;                // bytes that the frame must hold
  size_t symbols = 0;                // of these, the symbols' own
  std::span<const std::byte>
      plain;  // the content, where it is not compressed; a value, or all; a field
  std::span<const std::byte> low;
  Rearranged way = Rearranged::kNot;  // of kBytes

  /// The content of the frame, or of an uncompressed block. PayloadError: its size is not the one that
  /// the header gives.
  std::span<const std::byte> content_of(std::span<const std::byte> of_frame) const;
};

/// Unpacks the symbols of a block whose symbols are packed or windowed. The output has room for the
/// number of values, rounded up to a multiple of 4. PayloadError.
void unpack_symbols(const OpenBlock& block, std::span<const std::byte> content, uint8_t* symbols);
/// The nodes of a block with curves, from their bytes. PayloadError.
void unpack_nodes(const OpenBlock& block, const std::byte* bytes, int32_t* nodes);

namespace field {
template <typename T>
class FieldDecoder;
}  // namespace field

/// Not thread-safe: one decoder a thread. Its memory serves one block after the other.
class Decoder {
 public:
  explicit Decoder(std::shared_ptr<const Maps> maps);
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  const Maps& maps() const { return *maps_; }

  /// A block of n values. The result points into it.
  OpenBlock open(std::span<const std::byte> block, size_t n) const;

  /// Writes block.n values to x, aligned as their type is. `content`: what the frame held; ignored
  /// for a block without a frame.
  void decode(const OpenBlock& block, std::span<const std::byte> content, std::byte* x);

 private:
  template <typename Word>
  void decode_words(const OpenBlock& block, const std::byte* content, std::byte* x) const;
  /// Magnitudes that words other than 0 may have; of the order's map its own.
  struct Limits {
    int64_t least, greatest;
  };
  /// False: one of the words stands for no value. Words with a curve are not looked at.
  /// A map of the block's own, and where the next words are in the block.
  struct Own {
    Palette palette;
    Multiples multiples;
    size_t first = 0;
  };
  Own own_of(const BlockHeader& header, size_t n, std::span<const std::byte> in) const;
  template <typename Word>
  bool from_own(const BlockHeader& header, const Own& own, const Word* words, size_t n,
                std::byte* x) const;
  template <typename Word>
  bool from_words(const BlockHeader& header, const Word* words, const int32_t* nodes, size_t n,
                  const Limits& limits, const Own& own, std::byte* x) const;
  /// Throws the error of the first of these words that stands for no value. `first`: of them in the
  /// block. x: room for a value.
  template <typename Word>
  void refuse_word(const BlockHeader& header, const Word* words, size_t n, size_t first,
                   const Limits& limits, Own& own, std::byte* x) const;
  /// In version 1, words of a float64 grid are the bits of any sum with kRounder: encoders wrote all
  /// whose number is exact.
  bool has_far_words() const;
  template <typename Word>
  Limits limits_of(const BlockHeader& header) const;
  void decode_field(std::span<const std::byte> in, size_t n, std::byte* x);
  template <typename T>
  field::FieldDecoder<T>& fields();
  template <typename T>
  void decode_numbers(std::span<const std::byte> in, size_t n, std::byte* x);
  template <typename Word, typename T>
  void decode_word_field(const BlockHeader& header, std::span<const std::byte> in, size_t n,
                         std::span<const std::byte> own_bytes, std::byte* x);

  const std::shared_ptr<const Maps> maps_;
  std::unique_ptr<field::FieldDecoder<float>> narrow_fields_;
  std::unique_ptr<field::FieldDecoder<double>> wide_fields_;
};

}  // namespace cgx::bounded
