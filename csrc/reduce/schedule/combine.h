// Combines values of several ranks in their own type: every op and type but the sums of float32,
// float16 and bfloat16, which codecs decode to float32 (host_stages.cc).
//
//   integers   SUM and PRODUCT wrap, as torch's do; an average is the wrapped sum, divided towards
//              zero
//   bool       SUM, MAX and BOR: any; PRODUCT, MIN and BAND: all
//   float64    in float64; float16 and bfloat16 in float32, rounded once at the end
//   complex    SUM of the real and of the imaginary parts
//
// MIN and MAX of a NaN and a number are NaN, as in torch.minimum; each NaN that is written is the
// one of base/nan.h. Values are combined in the order in which they are given, so ranks that do the
// same get the same bits. Pure functions, thread-safe.
#pragma once

#include <cstddef>
#include <span>

#include "base/dtype.h"
#include "reduce/plan/plan.h"

namespace cgx {

/// out[i] = in[0][i] op in[1][i] op ..., divided by `divisor`, for n values. Pointers may have any
/// alignment. An input may be where the output is; else they do not overlap.
void combine(Combine op, DType dtype, std::span<const std::byte* const> in, size_t n, float divisor,
             std::byte* out);

/// True where none of n values of a type that can be reduced is a NaN or an Inf.
bool values_finite(DType dtype, const std::byte* x, size_t n);

}  // namespace cgx
