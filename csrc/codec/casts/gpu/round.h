// Rounding on a GPU: eight values of each thread, in registers.
#pragma once

#include "codec/casts/gpu/call.h"
#include "codec/gpu/eight.h"

namespace cgx::casting::on_gpu {

using formats::Kind;

CGX_HD const formats::Rule<float>& rule_of(const Call& call, float) { return call.narrow; }
CGX_HD const formats::Rule<double>& rule_of(const Call& call, double) { return call.wide; }

CGX_HD float by_cpd(const Call& call, float x) {
  return formats::rounded<Kind::kCpd>(call.narrow, x, 0);
}
CGX_HD double by_cpd(const Call& call, double x) {
  return static_cast<double>(by_cpd(call, static_cast<float>(x)));
}

/// x in the format; number: of the element.
template <typename Real>
CGX_HD Real rounded(const Call& call, Real x, uint64_t number) {
  const formats::Rule<Real>& rule = rule_of(call, Real{});
  switch (static_cast<Kind>(call.kind)) {
    case Kind::kNearest:
      return formats::rounded<Kind::kNearest>(rule, x, 0);
    case Kind::kZero:
      return formats::rounded<Kind::kZero>(rule, x, 0);
    case Kind::kStochastic: {
      const RandomKey key = key_of_high(call.key, static_cast<uint32_t>(number >> 32));
      const uint32_t bits = random_bits(static_cast<uint32_t>(number), key.low, key.high);
      return formats::rounded<Kind::kStochastic>(rule, x, bits >> rule.random_shift);
    }
    case Kind::kCpd:
      return by_cpd(call, x);
    default:
      return formats::rounded<Kind::kScale>(rule, x, 0);
  }
}

/// Whether a finite x is below `lowest` or above `largest`.
template <typename Real>
CGX_HD bool is_beyond(Real x, Real lowest, Real largest) {
  using Type = formats::WordOf<Real>;
  const bool finite = (as_bits(x) & ~Type::kSign) < Type::kInfinity;
  return finite && (x < lowest || x > largest);
}

/// Adds to a number that threads of all thread blocks add to.
CGX_HD void add_at_once(unsigned long long* to, uint32_t count) {
  if (count == 0) return;
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
  atomicAdd(to, static_cast<unsigned long long>(count));
#elif !defined(CGX_RUNTIME_COMPILER)
  __atomic_fetch_add(to, count, __ATOMIC_RELAXED);
#endif
}

template <typename Real>
CGX_HD void round_eight(const Call& call, uint64_t first, uint32_t n) {
  gpu::Eight<Real> eight;
  load_eight(call.x, first, n, call.type, eight);
  uint32_t beyond = 0;
  CGX_UNROLL for (uint32_t k = 0; k < gpu::kGroup; ++k) {
    const Real x = eight.values[k];
    beyond += k < n && is_beyond(x, static_cast<Real>(call.lowest), static_cast<Real>(call.largest))
                  ? 1
                  : 0;
    eight.values[k] = rounded(call, x, first + k);
  }
  store_eight(call.y, first, n, call.type, eight);
  if (call.beyond != nullptr) add_at_once(call.beyond, beyond);
}

/// Part number i of the call.
template <typename Block>
CGX_HD void round_stage(Block& block, gpu::NoMemory&, const Call& call, uint64_t i) {
  gpu::each_eight(block, call.values, call.type, i, [&](auto real, uint64_t first, uint32_t n) {
    round_eight<decltype(real)>(call, first, n);
  });
}

}  // namespace cgx::casting::on_gpu
