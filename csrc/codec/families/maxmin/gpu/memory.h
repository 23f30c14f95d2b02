// What a block keeps of the buckets of a tile of `maxmin`.
#pragma once

#include "codec/families/maxmin/formulas.h"
#include "codec/gpu/families.h"
#include "codec/gpu/group.h"

namespace cgx::gpu::maxmin {

CGX_HD bool is_stochastic(const CodecRun& run) { return run.own[0] != 0; }

/// Extremes of what a thread has seen; NaN if it has seen one.
struct Extremes {
  float min, max;

  CGX_HD static Extremes none() { return {from_bits(0x7f800000u), from_bits(0xff800000u)}; }
  CGX_HD void see(float x) { join({x, x}); }
  CGX_HD void join(const Extremes& other) {
    min = nan_min(min, other.min);
    max = nan_max(max, other.max);
  }
};

/// A bucket as its groups are coded: by division, or by the reciprocal of its step.
struct alignas(16) Scale {
  float min;
  MaxMinReciprocal step;
  uint32_t by_reciprocal;
};

struct BucketMemory {
  MaxMinMeta meta[kTile];
  Scale scales[kTile / kGroup];  // of buckets that are no shorter than a group
  Extremes seen[kThreads];       // of a long bucket
};

}  // namespace cgx::gpu::maxmin
