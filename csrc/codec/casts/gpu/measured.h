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

/// By mean and sigma.
struct ByZScore {
  Way way;
  zscore::Centre centre;

  CGX_HD explicit ByZScore(const Call& call)
      : centre(zscore::centre_of(call.spread, *call.measured)) {
    way = zscore::way_of(centre, call.values);
  }

  template <typename Real>
  CGX_HD Real operator()(const Call& call, Real x, uint64_t number) const {
    const zscore::Zones<Real>& zones = zones_of(call, Real{});
    return by_kind(call, zones.whole.random_shift, number, Coded{}, zones, centre, x);
  }

  template <typename Real>
  CGX_HD bool saturates(const Call& call, Real x) const {
    const double far = call.farthest * static_cast<double>(centre.sigma);
    const double middle = static_cast<double>(centre.mean);
    return is_beyond(x, static_cast<Real>(middle - far), static_cast<Real>(middle + far));
  }
};

/// By the slope of logarithms. No value saturates.
struct BySlope {
  Way way;
  s2fp8::Slope slope;

  CGX_HD explicit BySlope(const Call& call) : slope(s2fp8::slope_of(*call.measured)) {
    way = s2fp8::way_of(slope);
  }

  template <typename Real>
  CGX_HD Real operator()(const Call& call, Real x, uint64_t number) const {
    return static_cast<Real>(by_kind(call, call.narrow.random_shift, number, Squeezed{},
                                     call.narrow, slope, static_cast<double>(x)));
  }

  template <typename Real>
  CGX_HD bool saturates(const Call&, Real) const {
    return false;
  }
};

template <typename By, typename Real>
CGX_HD void cast_eight(const Call& call, const By& by, uint64_t first, uint32_t n) {
  gpu::Eight<Real> eight;
  load_eight(call.x, first, n, call.type, eight);
  uint32_t beyond = 0;
  CGX_UNROLL for (uint32_t k = 0; k < gpu::kGroup; ++k) {
    Real& x = eight.values[k];
    if (by.way == Way::kCopy) continue;
    beyond += call.beyond != nullptr && by.way == Way::kCast && k < n && by.saturates(call, x);
    x = by.way == Way::kNan ? static_cast<Real>(from_bits(kNan)) : by(call, x, first + k);
  }
  store_eight(call.y, first, n, call.type, eight);
  if (call.beyond != nullptr) add_at_once(call.beyond, beyond);
}

/// Part number i of the call.
template <typename By, typename Block>
CGX_HD void measured_stage(Block& block, gpu::NoMemory&, const Call& call, uint64_t i) {
  gpu::each_eight(block, call.values, call.type, i, [&](auto real, uint64_t first, uint32_t n) {
    cast_eight<By, decltype(real)>(call, By(call), first, n);
  });
}

}  // namespace cgx::casting::on_gpu
