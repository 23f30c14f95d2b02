// Casts by what was measured of the whole tensor (measure.h), on a GPU: eight values of each thread.
#pragma once

#include "codec/casts/gpu/measure.h"

namespace cgx::casting::on_gpu {

/// Calls work(random), with the random bits of element `number`, for the kind of rounding: work is a
/// struct with a template of it.
template <typename Work, typename... Arguments>
CGX_HD auto by_kind(const Call& call, int32_t shift, uint64_t number, const Work& work,
                    const Arguments&... arguments) {
  switch (static_cast<Kind>(call.kind)) {
    case Kind::kNearest:
      return work.template of<Kind::kNearest>(arguments..., 0);
    case Kind::kZero:
      return work.template of<Kind::kZero>(arguments..., 0);
    default: {
      const RandomKey key = key_of_high(call.key, static_cast<uint32_t>(number >> 32));
      const uint32_t bits = random_bits(static_cast<uint32_t>(number), key.low, key.high);
      return work.template of<Kind::kStochastic>(arguments..., bits >> shift);
    }
  }
}

CGX_HD const zscore::Zones<float>& zones_of(const Call& call, float) { return call.narrow_zones; }
CGX_HD const zscore::Zones<double>& zones_of(const Call& call, double) { return call.wide_zones; }

struct Coded {
  template <Kind kind, typename Real>
  CGX_HD Real of(const zscore::Zones<Real>& zones, zscore::Centre centre, Real x,
                 uint32_t random) const {
    return zscore::coded<kind>(zones, static_cast<Real>(centre.mean),
                               static_cast<Real>(centre.sigma), x, random);
  }
};

struct Squeezed {
  template <Kind kind>
  CGX_HD double of(const formats::Rule<float>& e5m2, s2fp8::Slope slope, double x,
                   uint32_t random) const {
    return s2fp8::squeezed<kind>(e5m2, static_cast<double>(slope.alpha),
                                 static_cast<double>(slope.beta), x, random);
  }
};

/// What the call's values are cast by.
struct Found {
  Way way;
  zscore::Centre centre;
  s2fp8::Slope slope;
};

CGX_HD Found found_of(const Call& call) {
  Found found{};
  if (call.work == Work::kZScore) {
    found.centre = zscore::centre_of(call.spread, *call.measured);
    found.way = zscore::way_of(found.centre, call.values);
  } else {
    found.slope = s2fp8::slope_of(*call.measured);
    found.way = s2fp8::way_of(found.slope);
  }
  return found;
}

template <typename Real>
CGX_HD Real cast_value(const Call& call, const Found& found, Real x, uint64_t number) {
  if (found.way == Way::kNan) return static_cast<Real>(from_bits(kNan));
  if (found.way == Way::kCopy) return x;
  if (call.work == Work::kSqueezed) {
    return static_cast<Real>(by_kind(call, call.narrow.random_shift, number, Squeezed{},
                                     call.narrow, found.slope, static_cast<double>(x)));
  }
  const zscore::Zones<Real>& zones = zones_of(call, Real{});
  return by_kind(call, zones.whole.random_shift, number, Coded{}, zones, found.centre, x);
}

template <typename Real>
CGX_HD void cast_eight(const Call& call, const Found& found, uint64_t first, uint32_t n) {
  gpu::Eight<Real> eight;
  load_eight(call.x, first, n, call.type, eight);
  // Only z-scores saturate.
  const bool counts =
      call.beyond != nullptr && call.work == Work::kZScore && found.way == Way::kCast;
  const double far = call.farthest * static_cast<double>(found.centre.sigma);
  const double middle = static_cast<double>(found.centre.mean);
  const Real lowest = static_cast<Real>(middle - far), largest = static_cast<Real>(middle + far);
  uint32_t beyond = 0;
  CGX_UNROLL for (uint32_t k = 0; k < gpu::kGroup; ++k) {
    const Real x = eight.values[k];
    beyond += counts && k < n && is_beyond(x, lowest, largest) ? 1 : 0;
    eight.values[k] = cast_value(call, found, x, first + k);
  }
  store_eight(call.y, first, n, call.type, eight);
  if (counts) add_at_once(call.beyond, beyond);
}

/// Part number i of the call.
template <typename Block>
CGX_HD void measured_stage(Block& block, gpu::NoMemory&, const Call& call, uint64_t i) {
  gpu::each_eight(block, call.values, call.type, i, [&](auto real, uint64_t first, uint32_t n) {
    cast_eight<decltype(real)>(call, found_of(call), first, n);
  });
}

}  // namespace cgx::casting::on_gpu
