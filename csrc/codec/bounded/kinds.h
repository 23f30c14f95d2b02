// Shared by the host and the kernels: the kinds of maps and predictors, and the places of a block's
// sample.
#pragma once

#include "base/host_device.h"

namespace cgx::bounded {

/// How a block's values become words. The numbers are part of the payload's format.
enum class Map : uint8_t {
  kRaw = 0,       // no words: the values' bytes as they are
  kConstant = 1,  // no words: one value
  kOrder = 2,     // maps/order.h
  kGrid = 3,      // maps/grid.h
  kLattice = 4,   // maps/lattice.h
  kLogGrid = 5,   // maps/log_grid.h
  kField = 6,     // words, or numbers of a grid without words, predicted in planes: field/coded.h
  kPalette = 7,   // maps/own.h
  kMultiples = 8,
  kMostly = 9,  // one value, but for a few others
  kBytes = 10,  // a frame of the values' bytes, rearranged: bytes_map.h
};
/// Maps that kernels know. Blocks with others are encoded and decoded by the host.
inline constexpr int kLastOnDevice = 5;
/// Maps that a block brings with it.
CGX_HD bool is_own(Map map) { return map == Map::kPalette || map == Map::kMultiples; }

/// The numbers are part of the payload's format.
enum class Predictor : uint8_t {
  kNone = 0,      // residual = word
  kMean = 1,      // the same, symbols lie around the mean: only the base differs from kNone
  kPrevious = 2,  // residual = word - the word before
  kLine = 3,      // residual = word - (the line through the two words before)
  kCurve = 4,     // places are differences from a curve (maps/curve.h); residual = word
};
inline constexpr int kLastPredictor = 4;

/// The symbol of an outlier: a residual that does not fit a symbol.
inline constexpr uint8_t kOutlier = 255;

/// Values that share a curve, and numbers that describe it.
inline constexpr uint32_t kCurveRun = 256, kCurveNodes = 4;
inline constexpr double kNodeUnit = 64;  // of a node, in parts of a step
/// Bound of a node's magnitude before it is rounded; a curve with a larger one is not used.
inline constexpr double kMostNode = 0x1p30;

/// The sample of a block: runs of neighbours, since predictors look at neighbours. A block that has
/// no more values is looked at as a whole.
inline constexpr uint32_t kRun = 32, kRuns = 32, kSampled = kRun * kRuns;
/// Where run k starts. Runs are not at equal distances: rows of a matrix may be.
CGX_HD uint32_t start_of_run(uint32_t n, uint32_t k) {
  const uint32_t step = (n - kRun) / (kRuns - 1);
  const bool inside = k > 0 && k + 1 < kRuns;
  return k * step + (inside ? k * 37 % (step - kRun + 1) : 0);
}

/// Runs of a block that curves are tried on, of kCurveRun values each, and where run k starts. The
/// block has at least kLeastForCurve values.
inline constexpr uint32_t kTried = 8, kLeastForCurve = 1024;
CGX_HD uint32_t start_of_tried(uint32_t n, uint32_t k) {
  return k * (n / kCurveRun - 1) / (kTried - 1) * kCurveRun;
}

}  // namespace cgx::bounded
