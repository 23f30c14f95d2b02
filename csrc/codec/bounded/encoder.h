// Encodes blocks, in two steps: encode() leaves what an entropy coder should see in content();
// finish() makes the block, with what the entropy coder made of it. Not thread-safe: one a thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "codec/bounded/arena.h"
#include "codec/bounded/block.h"
#include "codec/bounded/loops/loops.h"
#include "codec/bounded/maps/grid.h"

namespace cgx::bounded {

class Encoder {
 public:
  explicit Encoder(std::shared_ptr<const Maps> maps);

  /// n values, 1 to kBlockValues, aligned as their type is. They must stay until finish() returns.
  /// Every value comes back as the bound promises: what the map of the block does not give back so
  /// is kept as it is.
  void encode(const std::byte* x, size_t n);

  /// Empty: there is nothing to compress.
  std::span<const std::byte> content() const { return {content_.data(), content_.size()}; }
  /// Estimated bits of a symbol, without regard to order: 8 is noise.
  double entropy() const { return choice_.entropy; }
  /// Symbols are packed, four to a byte.
  bool packed() const { return header_.quads; }

  /// The block, at most most_bytes(). An empty frame: content() could not be made shorter.
  std::span<const std::byte> finish(std::span<const std::byte> frame, Arena& arena);
  static size_t most_bytes(Element element, size_t n) {
    return 1 + n * bytes_of(element) + kCrcBytes;
  }

 private:
  template <typename Word>
  void encode_words();
  /// Values [first, first + n) of the block, n <= kChunk; x: the first of them.
  struct Chunk {
    const std::byte* x;
    size_t first, n;
    bool record;  // special values are appended to the lists
  };
  /// Words of these values. Special values get the word before. Their number.
  template <typename Word>
  size_t map_words(size_t first, size_t n, Word* words, bool record);
  template <typename Word>
  size_t map_chunk(const Chunk& chunk, Word* words);
  template <typename Word>
  size_t on_grid(const Chunk& chunk, Word* words);
  template <typename Word>
  size_t on_log_grid(const Chunk& chunk, Word* words);
  template <typename Word, typename WordOf>
  size_t one_by_one(const Chunk& chunk, Word* words, WordOf&& word_of);
  bool many_signed_zeros() const;
  template <typename Word>
  Sample sample_words(bool all, size_t* specials);
  void choose_starts();
  Seen look() const;
  double unit_of(const Seen& seen) const;
  void use_order();
  template <typename Word>
  void choose_map(const Seen& seen);
  template <typename Word>
  void choose_curve();
  template <typename Word>
  void write_words();
  void use_quads();

  const std::shared_ptr<const Maps> maps_;
  const std::byte* x_ = nullptr;
  size_t n_ = 0;
  BlockHeader header_;
  Choice choice_;
  Grid grid_;
  std::vector<size_t> starts_;  // of the sample's runs; empty: all is looked at
  int64_t before_ = 0;          // the last word
  std::vector<int32_t> nodes_;
  std::vector<uint8_t> listed_;
  std::vector<std::byte> outliers_, places_, specials_;
  std::vector<std::byte> content_, low_;
};

}  // namespace cgx::bounded
