// What a cast measures of a group of values before it casts them: on the host and in kernels.
#pragma once

#include "base/nan.h"
#include "codec/ops/random.h"

#if !defined(CGX_DEVICE_COMPILER)
#include <cstddef>
#endif

namespace cgx {

/// Values whose statistics are summed together, and that are measured together.
inline constexpr uint64_t kStatisticsBlock = 4096;
/// Blocks of a tensor that are joined first, in their order; then what that gives, in its order.
inline constexpr uint64_t kJoinedBlocks = 16;

/// Of a group of values: numbers as a cast defines them.
struct Measured {
  double of[4] = {};
};

namespace casting {

/// What follows for the values of a measured group.
enum class Way : uint8_t {
  kCast,
  kCopy,  // there is nothing to cast by: they stay
  kNan,   // all become NaN
};

CGX_HD bool is_number(float x) { return (as_bits(x) & 0x7fffffffu) < 0x7f800000u; }

#if !defined(CGX_DEVICE_COMPILER)
/// y = what becomes of values that are not cast; y may be x.
template <typename Real>
void without_cast(Way way, const Real* x, size_t n, Real* y) {
  const Real nan = static_cast<Real>(from_bits(kNan));
  for (size_t i = 0; i < n; ++i) y[i] = way == Way::kNan ? nan : one_nan(x[i]);
}
#endif

/// The place of sample number i, of `samples` among `count` values: one of each part of the group, at a place
/// that the key chooses.
CGX_HD uint64_t sample_place(RandomKey key, uint64_t i, uint64_t samples, uint64_t count) {
  const uint64_t begin = count * i / samples, end = count * (i + 1) / samples;
  const uint64_t bits = random_bits(static_cast<uint32_t>(i), ~key.low, ~key.high);
  return begin + ((bits * (end - begin)) >> 32);
}

}  // namespace casting
}  // namespace cgx
