// Runs of values between the tensor's type and float32, sums, and the division of an average. Each NaN that is written is the one of its type: see base/nan.h.
//
// Pointers to input, and pointers to output of a tensor's type, may have any alignment. Input and
// output must not overlap; they may be the same memory if their types are equal. Thread-safe.
// Errors: ConfigError where CGX_CPU_LEVEL is bad.
#pragma once

#include <cstddef>

#include "base/dtype.h"

namespace cgx {

/// y = float32(x), exact except for the bits of a NaN.
void to_float(const void* x, DType dtype, size_t n, float* y);

/// y = dtype(x), rounded to nearest even; too large becomes Inf, NaN stays NaN.
void from_float(const float* x, DType dtype, size_t n, void* y);

/// y += float32(x).
void add_to_float(const void* x, DType dtype, size_t n, float* y);

/// y = a + b; y may be a or b.
void add_pair(const float* a, const float* b, size_t n, float* y);

/// y /= divisor: true division, one rounding.
void divide(float* y, size_t n, float divisor);

}  // namespace cgx
