// Dropout that keeps nothing for the backward pass but its key: operator dropout (codec/activations/dropout).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace cgx {

/// x / (1 - p) for the values that stay, x * 0 for others: as x, contiguous. Which ones stay is a function
/// of (key, number of the value in row-major order). float32, float64, float16 and bfloat16, on the CPU
/// or a GPU, with equal bits; any strides. Errors: TypeError and ValueError for other tensors; ConfigError: p.
at::Tensor dropout(const at::Tensor& tensor, double p, int64_t key);

}  // namespace cgx
