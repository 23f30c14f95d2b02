// What a block keeps of the buckets of a tile of `maxmin`.
#pragma once

#include "codec/families/maxmin/formulas.h"
#include "codec/gpu/families.h"

namespace cgx::gpu::maxmin {

CGX_HD bool is_stochastic(const CodecRun& run) { return run.own[0] != 0; }

CGX_HD bool keeps_zeros(const CodecRun& run) { return run.own[2] != 0; }

/// Extremes of what a thread has seen. A NaN is remembered, not compared.
struct Extremes {
  float min, max;
  bool finite;
  bool zero;  // has one been seen?

  CGX_HD static Extremes none() {
    return {from_bits(0x7f800000u), from_bits(0xff800000u), true, false};
  }
  CGX_HD void see(float x) {
    min = x < min ? x : min;
    max = x > max ? x : max;
    finite = finite && x == x;
    zero = zero || x == 0.0f;
  }
  CGX_HD void join(const Extremes& other) {
    min = other.min < min ? other.min : min;
    max = other.max > max ? other.max : max;
    finite = finite && other.finite;
    zero = zero || other.zero;
  }
  /// Both flags as a number, for exchanges, and back.
  CGX_HD int flags() const { return (finite ? 1 : 0) | (zero ? 2 : 0); }
  CGX_HD static Extremes of(float min, float max, int flags) {
    return {min, max, (flags & 1) != 0, (flags & 2) != 0};
  }
  CGX_HD MaxMinMeta meta(const CodecRun& run) const {
    const float levels = maxmin_levels(run.bits);
    return zero && keeps_zeros(run) ? maxmin_meta_with_zero(min, max, finite, levels)
                                    : maxmin_meta(min, max, finite, levels);
  }
};

/// A bucket as its groups are coded: by division, or by the reciprocal of its step.
struct Scale {
  float min;
  MaxMinReciprocal step;
  uint32_t by_reciprocal;
};

struct BucketMemory {
  MaxMinMeta meta[kTile];
  Scale scales[kTile / kGroup];  // of runs with groups
  Extremes seen[kThreads];       // of a long bucket
};

}  // namespace cgx::gpu::maxmin
