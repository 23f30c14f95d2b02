// The loops of norm_backward(): once per SIMD level, with the same bits on each.
#pragma once

#include <cstddef>

#include "codec/activations/norms/norms.h"
#include "codec/ops/by_level.h"

namespace cgx::norms {

/// One row of float32. dweight and dbias, which may be null, are added to.
using Row = void(const Norm& norm, const float* dy, const float* y, float rstd, float* dx,
                 float* dweight, float* dbias);

struct Loops {
  Row* row;
};

}  // namespace cgx::norms
