// Dropout of a run of numbers: a number that stays becomes x / (1 - p), another one x * 0. So a NaN or an
// Inf that is dropped becomes NaN, as in torch.
//
// Whether a value stays is a function of (key, number of the element), by the generator of
// codec/ops/random.h: random_of(key, number) < 1 - p, in float32. So the backward pass is the same
// function of the gradient with the same key, and nothing is kept in between. Products are rounded once
// to float32 and then to the type; float64 computes in float64. Results do not depend on the SIMD
// level. Pointers have any alignment; y may be x. Pure, thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "codec/ops/random.h"

namespace cgx {

/// index: number of the first element. p: 0 to 1. Errors: ConfigError for a dtype other than float32,
/// float16, bfloat16 and float64, or another p, and where CGX_CPU_LEVEL is bad.
void dropout(const void* x, DType dtype, size_t n, double p, RandomKey key, uint64_t index,
             void* y);

}  // namespace cgx
