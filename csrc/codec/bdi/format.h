// BDI: words as a base and a small difference. What a payload says about itself, and the limits.
//
// After base-delta-immediate compression (Pekhimenko et al., PACT 2012) with the configuration of
// NNW-BDI: bases per chunk, constants that all chunks share (immediates), a mask of zero words, and
// shifts that make it lossy.
//
// With si, sb, sd the three scales, a word w of a chunk is
//
//   s = w >> si                        what is compressed, 32 - si bits
//   0                                  if s >> sd is 0 and there is a zero mask
//   (b + (d << sd)) << si              else: b an immediate, or a base (number << sb); d a delta
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cgx::bdi {

constexpr uint32_t kMostBatch = 4096;
constexpr uint32_t kMostBases = 64;
constexpr uint32_t kMostImmediates = 64;
constexpr uint32_t kMostConfigs = 255;
constexpr uint32_t kMostDims = 64;

/// What the words are. It decides only between which words rounding must not cross: see same_kind().
enum class Words : uint8_t { kInt32 = 0, kUint32 = 1, kFloat32 = 2 };

/// One way to write a chunk.
struct Config {
  uint32_t bases = 1;       // at most this many; 0 to kMostBases
  uint32_t base_bits = 32;  // a base, after >> sb; 1 to 32
  uint32_t delta_bits = 8;  // a delta; 0 to 32, without a zero mask 1 to 32
};

/// All that a decoder needs to know.
struct Format {
  Words words = Words::kInt32;
  bool zero_mask = true;
  uint32_t batch = 64;  // words of a chunk; the last may have fewer; 1 to kMostBatch
  uint32_t scale_init = 0, scale_base = 0, scale_delta = 0;  // si, sb, sd; si + sb, si + sd <= 31
  std::vector<uint32_t> immediates;  // different from each other, < 2^(32-si)
  std::vector<Config> configs;       // 1 to kMostConfigs

  uint32_t top() const { return 0xffffffffu >> scale_init; }  // the largest s
  bool lossless() const { return scale_init == 0 && scale_delta == 0; }
};

/// ConfigError names the first value that is out of range, and what is allowed.
void check(const Format& format);

/// Whether an error between these two words is one of their distance: both of one sign and, of
/// float32, both finite, both infinite or both NaN. Of uint32 always.
bool same_kind(Words words, uint32_t a, uint32_t b);

/// Number of words of a tensor. ConfigError: torch could not have it.
uint64_t count_of(const std::vector<uint64_t>& shape);

/// Bits of a chunk as NNW-BDI accounts them: without the number of bases that are used and without
/// the selectors, but with all bases that are allowed. nonzero: words that take a delta.
inline uint64_t accounted_bits(const Format& format, const Config& config, uint64_t words,
                               uint64_t nonzero) {
  return (format.zero_mask ? words : 0) + uint64_t{config.bases} * config.base_bits +
         nonzero * config.delta_bits;
}

/// Bits of a field that holds 0 ... most.
uint32_t width_of(uint32_t most);

/// Bits of the selector of each word, with so many bases used.
inline uint32_t selector_bits(const Format& format, uint32_t used) {
  const auto bases = static_cast<uint32_t>(format.immediates.size()) + used;
  return bases == 0 ? 0 : width_of(bases - 1);
}

}  // namespace cgx::bdi
