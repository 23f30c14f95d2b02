// The argument of the kernels of casts.
#pragma once

#include "codec/formats/scale.h"
#include "codec/gpu/run.h"
#include "codec/ops/random.h"

namespace cgx::casting::on_gpu {

/// Which kernel casts.
enum class Work : uint8_t {
  kRound,   // each value by itself
  kBlocks,  // blocks that share a scale
};

/// Where the blocks of a tensor lie: in planes of rows of columns.
struct Grid {
  uint64_t columns, rows;   // of a plane
  uint64_t across, strips;  // blocks next to each other, and strips of them, in a plane
  uint32_t size;            // values of a block's row
  uint32_t block_rows;
};

struct Call {
  const unsigned char* x;
  unsigned char* y;  // may be x
  uint64_t values;
  uint64_t count;              // parts of gpu::kPartValues; of kBlocks parts of several blocks
  unsigned long long* beyond;  // null, or what the number of saturated values is added to
  const double* amax;          // null, or the tensor's greatest magnitude
  RandomKey key;
  formats::Rule<float> narrow;
  formats::Rule<double> wide;
  double lowest, largest;  // numbers of the format
  // kBlocks:
  formats::ScaleRule scale_rule;
  formats::Rule<float> e4m3;
  Grid grid;
  uint64_t blocks;
  uint32_t lanes;  // threads that share a block: a power of two up to gpu::kThreads
  uint8_t scale;   // a formats::Scale
  uint8_t kind;    // a formats::Kind
  uint8_t type;    // a gpu::Type, or gpu::kWideType
  Work work;
};

}  // namespace cgx::casting::on_gpu
