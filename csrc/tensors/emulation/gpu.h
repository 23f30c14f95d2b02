// Casts of tensors on a GPU, by the kernels of codec/casts/gpu.
#pragma once

#include <ATen/core/Tensor.h>

#include "codec/cast.h"
#include "tensors/emulation/layout.h"

namespace cgx {

/// x to y, of the same strides, dense, on one GPU; on its current stream. beyond: null, or becomes a tensor
/// of one int64 there, the number of saturated values. NotImplementedError: no kernel has the format.
void gpu_cast(const Cast& cast, const CastLayout& layout, const at::Tensor& x, DType dtype,
              RandomKey key, const at::Tensor& y, at::Tensor* beyond);

}  // namespace cgx
