// Exact results in float64, and how far the engine's may be from them (docs/numerics.md).
#pragma once

#include <vector>

#include "base/dtype.h"
#include "codec/codec.h"
#include "reduce/plan/plan.h"

namespace cgx::native {

/// Values, and a bound of each one's error so far.
struct Estimate {
  std::vector<double> value;
  std::vector<double> error;

  explicit Estimate(const std::vector<float>& exact)
      : value(exact.begin(), exact.end()), error(exact.size(), 0.0) {}
};

/// One more encoding by the codecs of the layers (raw ones: rounding to the tensor's type).
Estimate encoded(Estimate x, const std::vector<Layer>& layers, DType dtype);

/// The float32 sum, divided by `divisor`.
Estimate summed(const std::vector<Estimate>& parts, double divisor = 1);

/// Rounded to the tensor's type.
Estimate rounded(Estimate x, DType dtype);

/// What an all-reduce of inputs[rank] may give.
Estimate expected_all_reduce(const std::vector<std::vector<float>>& inputs,
                             const std::vector<Layer>& layers, DType dtype, Algorithm algorithm,
                             const Topology& topology, bool intra_exact, bool average);

/// Throws CheckFailed with the first value that is further from the exact one than allowed.
void check_inside(const std::vector<float>& result, const Estimate& expected);

}  // namespace cgx::native
