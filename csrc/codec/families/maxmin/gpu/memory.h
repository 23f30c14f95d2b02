// What a block keeps of the buckets of a tile of `maxmin`.
#pragma once

#include "codec/families/maxmin/formulas.h"
#include "codec/gpu/families.h"

namespace cgx::gpu::maxmin {

CGX_HD bool is_stochastic(const CodecRun& run) { return run.own[0] != 0; }

/// Extremes of what a thread has seen. A NaN is remembered, not compared.
struct Extremes {
  float min, max;
  bool finite;

  CGX_HD static Extremes none() { return {from_bits(0x7f800000u), from_bits(0xff800000u), true}; }
  CGX_HD void see(float x) {
    min = x < min ? x : min;
    max = x > max ? x : max;
    finite = finite && x == x;
  }
  CGX_HD void join(const Extremes& other) {
    min = other.min < min ? other.min : min;
    max = other.max > max ? other.max : max;
    finite = finite && other.finite;
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
