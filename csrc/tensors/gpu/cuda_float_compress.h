// The stages of other systems' formats on tensors of a GPU: kernels on its current stream, after
// the caller's earlier work there; the host waits for nothing. torch_cgx/compat/_stages.py calls it.
//
// Errors: ConfigError for a tensor of another dtype, size or device than documented; ResourceError
// without a driver or kernels; RuntimeError while the stream is captured into a graph.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "tensors/gpu/kernels.h"

namespace cgx {

/// cuda_float_compress::encode() of contiguous float32 values: the words, int32, and for each part
/// of them the index of the first misfit that `keep_going` does not cover, 2^31 - 1 for none.
std::pair<at::Tensor, at::Tensor> gpu_cuda_float_compress_encode(const at::Tensor& x, float step,
                                                                 double max_error, bool keep_going,
                                                                 const LoadKernels& load);

/// cuda_float_compress::decode(). raw: the int32 words of whole blocks, on the device of y, which
/// is contiguous float32.
void gpu_cuda_float_compress_decode(const at::Tensor& raw, float step, const at::Tensor& y,
                                    const LoadKernels& load);

}  // namespace cgx
