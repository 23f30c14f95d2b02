// Chooses a block's predictor and the number of bits in its symbols by the size that they give a sample
// of the block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codec/bounded/kinds.h"

namespace cgx::bounded {

/// Where the bits below a symbol go.
enum class LowBits : uint8_t {
  kPlanes = 0,  // as they are, packed: they look like noise
  kCoded = 1,   // whole bytes, to the entropy coder with the symbols
};

/// Runs of kRun neighbours.
struct Sample {
  std::vector<int64_t> words;  // whole runs, one after the other; the last may be shorter
};

/// How the words of a block become symbols.
struct SymbolForm {
  Predictor predictor = Predictor::kNone;
  LowBits low = LowBits::kPlanes;
  int width = 0;          // bits below a symbol
  int64_t base = 0;       // the residual of symbol 0
  double bits = 0;        // a value, estimated
  double entropy = 0;     // of a symbol, in bits, without regard to order
  bool in_heaps = false;  // large symbols keep together, or most are alike: see ans/windowed.h
};

/// `word_bits`: 32 or 64, in which differences of words wrap. The sample is not empty.
SymbolForm choose(const Sample& sample, int word_bits);

}  // namespace cgx::bounded
