// The backward pass of a layer norm or RMS norm from its output, of rows of values.
//
// With y = xhat w + b, xhat = (y - b) inverse (inverse = 1 / w), g = dy w and means over a row:
//   dx = rstd (g - mean(g) - xhat mean(dy (y - b))), without mean(g) for an RMS norm
//   dweight = inverse times the sum of dy (y - b) over rows, dbias = sum of dy over rows
//
// Computed in float32. Sums over rows are made of blocks of kNormRows rows, in order, so results depend
// neither on the SIMD level nor on the number of threads. Thread-safe.
#pragma once

#include <cstddef>

#include "base/dtype.h"

namespace cgx {

inline constexpr size_t kNormRows = 128;

/// width: values of a row. weight, bias, inverse: `width` numbers each. centred: a layer norm.
struct Norm {
  size_t width;
  bool centred;
  const float* weight;
  const float* bias;
  const float* inverse;
};

/// One block of at most kNormRows rows. dy, y and dx are of dtype, which is float32, float16 or bfloat16, of
/// any alignment. dx, dweight and dbias may be null; the last two
/// get sums over these rows, dweight without the factor `inverse`. Errors:
/// ConfigError for another dtype, and where CGX_CPU_LEVEL is bad.
void norm_backward(const Norm& norm, DType dtype, size_t rows, const void* dy, const void* y,
                   const float* rstd, void* dx, float* dweight, float* dbias);

}  // namespace cgx
