// What the kernels of cuda_float_compress are told, and how a thread block shares its work: it
// takes the groups of a quarter of a block of the format at a time, a group for each thread.
#pragma once

#include "codec/compat/cuda_float_formulas.h"
#include "codec/gpu/run.h"

namespace cgx::cuda_float_compress::on_gpu {

using cgx::gpu::kThreads;

inline constexpr uint32_t kPartValues = kThreads * kGroup;
inline constexpr uint32_t kPartsOfBlock = kGroupsOfBlock / kThreads;
inline constexpr int32_t kNoMisfit = 0x7fffffff;

struct EncodeCall {
  const float* x;
  uint32_t* raw;     // whole blocks
  int32_t* misfits;  // for each part the index of the first value that does not fit, or kNoMisfit
  uint64_t values;
  uint64_t count;  // parts, of whole blocks
  Grid grid;
  uint8_t keep_going;  // values out of the bound are no misfits
};

struct DecodeCall {
  const uint32_t* raw;
  float* y;
  uint64_t values;
  uint64_t count;  // parts that have values
  float step;
};

/// Part number i: `first` counts values, n of which are there.
struct Part {
  uint64_t first;
  uint32_t n;
};

CGX_HD Part part_of(uint64_t values, uint64_t i) {
  const uint64_t first = i * kPartValues, left = values > first ? values - first : 0;
  return {first, left < kPartValues ? static_cast<uint32_t>(left) : kPartValues};
}

/// The place of word 0 of thread t's group.
CGX_HD uint64_t word_of(uint64_t i, uint32_t t) {
  return i / kPartsOfBlock * kBlockValues + i % kPartsOfBlock * kThreads + t;
}

/// A word for each value of a part. One is left out behind each group, so that threads which work
/// on neighbouring groups use different banks of the memory.
struct Words {
  uint32_t words[kPartValues + kThreads];
  CGX_HD uint32_t& operator[](uint32_t at) { return words[at + at / kGroup]; }
};

}  // namespace cgx::cuda_float_compress::on_gpu
