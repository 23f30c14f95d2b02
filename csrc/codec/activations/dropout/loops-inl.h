// The loops of dropout() over the vector operations of one level. A file of ops/foreach_level-inl.h.
// float64 has no vectors here and goes through the scalar loop.

namespace cgx::dropping {
namespace CGX_LEVEL {
namespace {

using namespace cgx::cpu;

#include "codec/ops/simd-inl.h"

/// random_bits_of() of each lane.
static inline CGX_INLINE I bits_of_counters(I counters, I high) {
  I state = exclusive_or(counters, shift_right<16>(counters), high);
  state = mul_low(state, set_int(0x7feb352du));
  state = exclusive_or(state, shift_right<15>(state));
  return mul_low(state, set_int(0x846ca68bu));
}

template <typename T>
static void drop(const Run& run, const std::byte* x, size_t n, std::byte* y) {
  const T type;
  const F keep = set(run.keep), scale = set(static_cast<float>(run.scale)), zero = set(0.0f);
  const I high = set_int(run.key.high);
  const I step = set_int(kRandomStep * static_cast<uint32_t>(kLanes));
  I counters =
      add(set_int(run.key.low + run.first * kRandomStep), mul_low(iota(), set_int(kRandomStep)));
  for (size_t i = 0; i < n; i += kLanes, counters = add(counters, step)) {
    const F factor = select_less(unit_of(bits_of_counters(counters, high)), keep, zero, scale);
    const std::byte* from = x + i * T::kBytes;
    std::byte* to = y + i * T::kBytes;
    if (n - i >= kLanes) {
      store(type, to, one_nan(mul(load(type, from), factor)));
    } else {
      store_first(type, to, n - i, one_nan(mul(load_first(type, from, n - i), factor)));
    }
  }
}

constexpr Loops kLoops{
    {drop<Float32>, drop<Float16>, drop<BFloat16>, scalar::kLoops.drop[kFloat64]}};

}  // namespace
}  // namespace CGX_LEVEL
}  // namespace cgx::dropping
