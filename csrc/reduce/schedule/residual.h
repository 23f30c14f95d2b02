// Arithmetic of error feedback on the host.
//
// The residual of a rank has one value for each value of its input, in the units of the sum. With
// it the rank contributes v = x + residual, in float32; where it encodes a value as v^, the residual
// becomes (v - v^) * divisor, so that (results * divisor) + (residuals of all ranks) stays equal to
// the sum of all inputs of all calls, up to roundings of float32. A value whose error is not finite
// (a NaN or Inf was met) leaves its residual as it was: the residual is always finite.
//
// Pointers to values of a tensor's type may have any alignment. Thread-safe for disjoint values.
#pragma once

#include <cstddef>

#include "reduce/schedule/reducer.h"

namespace cgx {

/// y[i] = value number first + i of the run at `input`, residual added if the view asks for it.
void load_values(const Call& call, const View& input, const Run& run, size_t first, size_t n,
                 float* y);

/// residual = (wanted - sent) * divisor, or with `add` += it, where the result is finite.
void keep_error(const Call& call, const Run& run, size_t first, size_t n, const float* wanted,
                const float* sent, float divisor, bool add);

}  // namespace cgx
