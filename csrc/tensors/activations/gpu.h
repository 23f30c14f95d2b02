// level_encode, level_multiply and dropout on a GPU: kernels on its current stream; the host waits for nothing.
// Tensors are contiguous, on one device. Errors: ResourceError without a driver or kernels; RuntimeError
// while the stream is captured into a graph.
#pragma once

#include <ATen/core/Tensor.h>

#include "base/dtype.h"
#include "codec/levels/level_table.h"
#include "codec/ops/random.h"

namespace cgx {

void gpu_level_encode(const at::Tensor& x, DType dtype, const LevelTable& table,
                      const at::Tensor& codes);
void gpu_level_multiply(const at::Tensor& grad, DType dtype, const LevelTable& table,
                        const at::Tensor& codes, const at::Tensor& y);
void gpu_dropout(const at::Tensor& x, DType dtype, double p, RandomKey key, const at::Tensor& y);

}  // namespace cgx
