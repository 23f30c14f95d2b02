// What a thread block keeps of the buckets of a tile of `maxmin`.
#pragma once

#include "codec/families/maxmin/formulas.h"
#include "codec/gpu/families.h"
#include "codec/gpu/group.h"

namespace cgx::gpu::maxmin {

CGX_HD bool is_stochastic(const CodecRun& run) { return run.own[0] != 0; }

CGX_HD bool keeps_zeros(const CodecRun& run) { return run.own[2] != 0; }

/// Extremes of what a thread has seen; NaN if it has seen one.
struct Extremes {
  float min, max;
  bool zero;  // has one been seen?

  CGX_HD static Extremes none() { return {from_bits(0x7f800000u), from_bits(0xff800000u), false}; }
  CGX_HD void see(float x) { join({x, x, x == 0.0f}); }
  CGX_HD void join(const Extremes& other) {
    min = nan_min(min, other.min);
    max = nan_max(max, other.max);
    zero = zero || other.zero;
  }
  CGX_HD MaxMinMeta meta(const CodecRun& run) const {
    const float levels = maxmin_levels(run.bits);
    return zero && keeps_zeros(run) ? maxmin_meta_with_zero(min, max, true, levels)
                                    : maxmin_meta(min, max, true, levels);
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
