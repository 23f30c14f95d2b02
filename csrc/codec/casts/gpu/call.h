// The argument of the kernels of casts.
#pragma once

#include "codec/casts/measured.h"
#include "codec/casts/zscore/formulas.h"
#include "codec/casts/zscore/moments.h"
#include "codec/formats/scale.h"
#include "codec/gpu/run.h"
#include "codec/ops/random.h"

namespace cgx::casting::on_gpu {

/// Which kernel casts.
enum class Work : uint8_t {
  kRound,     // each value by itself
  kBlocks,    // blocks that share a scale
  kZScore,    // by the mean and sigma of the tensor
  kSqueezed,  // by the logarithms of the tensor's magnitudes
};

/// Where the blocks of a tensor lie: in planes of rows of columns.
struct Grid {
  uint64_t columns, rows;   // of a plane
  uint64_t across, strips;  // blocks next to each other, and strips of them, in a plane
  uint64_t size;            // values of a block's row; 0: as many as the tensor's have
  uint32_t block_rows;
};

struct Call {
  const unsigned char* x;
  unsigned char* y;  // may be x
  uint64_t values;
  uint64_t count;              // parts of gpu::kPartValues; of kBlocks parts of several blocks
  unsigned long long* beyond;  // null, or what the number of saturated values is added to
  const double* amax;          // null, or the tensor's greatest magnitude
  const double* range;         // null, or its least and its greatest value
  RandomKey key;
  formats::Rule<float> narrow;
  formats::Rule<double> wide;
  double lowest, largest;  // numbers of the format
  // kBlocks:
  formats::ScaleRule scale_rule;
  formats::Rule<float> e4m3;
  Grid grid;
  uint64_t blocks;
  double steps;    // of integers with a zero point: 2^bits - 1; else 0
  uint32_t lanes;  // threads that share a block: a power of two up to gpu::kThreads
  bool of_tensor;  // all blocks are of one scale: that of `amax`, or of `range`
  // kZScore, kSqueezed:
  Measured* measured;  // of each block of kStatisticsBlock values; then the first is of the tensor
  uint64_t samples;    // as Cast::samples()
  zscore::Spread spread;
  zscore::Zones<float> narrow_zones;
  zscore::Zones<double> wide_zones;
  double farthest;  // sigmas beyond which a value saturates
  uint8_t scale;    // a formats::Scale
  uint8_t kind;     // a formats::Kind
  uint8_t type;     // a gpu::Type, or gpu::kWideType
  Work work;
};

/// How many values of kZScore and kSqueezed are measured, and in how many blocks.
CGX_HD uint64_t measured_values(const Call& call) {
  return call.samples > 0 && call.samples < call.values ? call.samples : call.values;
}
CGX_HD uint64_t measured_blocks(const Call& call) {
  return (measured_values(call) + kStatisticsBlock - 1) / kStatisticsBlock;
}

}  // namespace cgx::casting::on_gpu
