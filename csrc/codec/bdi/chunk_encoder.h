// Writes chunks: finds the configuration that takes least, then its bases and deltas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codec/bdi/format.h"

namespace cgx::bdi {

/// What only an encoder has to know.
struct EncoderOptions {
  bool stochastic = false;    // deltas are rounded up with the probability of what is cut off
  bool random_bases = false;  // bases are random words of the chunk instead of the first
  uint64_t seed = 0;          // of both: counter-based, so the order of chunks does not matter
};

/// Number of a chunk in the table that no configuration can hold; configuration k has k + 1.
constexpr uint8_t kRaw = 0;

/// Memory for the chunks of one thread. `format` outlives it, and was checked.
class ChunkEncoder {
 public:
  ChunkEncoder(const Format& format, const EncoderOptions& options);

  /// Appends the bytes of chunk number `chunk`, 1 to batch words, and returns its number in the
  /// table. Of the configurations that can hold the chunk it takes the one with the fewest
  /// accounted_bits(), the first of several.
  uint8_t encode(const uint32_t* words, uint32_t count, uint64_t chunk,
                 std::vector<std::byte>& out);

 private:
  void shift(const uint32_t* words);
  bool holds(size_t number);
  uint32_t cover(uint32_t base, uint32_t owner, uint32_t most);
  bool pick(const Config& config, size_t number, uint32_t* place);
  void find_deltas();
  bool round(const Config& config, const uint32_t* words);
  void write(const Config& config, std::vector<std::byte>& out);

  const Format& format_;
  const EncoderOptions options_;
  // Of the chunk.
  uint32_t count_ = 0;
  uint64_t chunk_ = 0;
  uint32_t nonzero_ = 0;
  std::vector<uint32_t> shifted_;  // s of each word
  std::vector<uint32_t> start_;    // kZero or kFree
  // Of the configuration that was tried last.
  uint32_t used_ = 0;                // bases
  uint32_t from_ = 0;                // no word before this one is free
  std::vector<uint32_t> owner_;      // of each word: kZero, kFree, number of immediate or base
  uint32_t bases_[256] = {};         // immediates, then bases; places that no owner has: 0
  std::vector<uint32_t> selectors_;  // of the words that are not zero; and room for one more
  std::vector<uint32_t> deltas_;
  std::vector<std::byte> bytes_;
};

}  // namespace cgx::bdi
