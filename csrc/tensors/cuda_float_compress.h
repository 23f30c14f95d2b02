// The stages of cuda_float_compress's format beside its entropy coder, where a tensor is: operators
// cuda_float_compress_encode and cuda_float_compress_decode.
//
// On a GPU kernels run on its current stream, and the host waits for nothing. Errors: as bounded.h.
#pragma once

#include <ATen/core/Tensor.h>

namespace cgx {

/// The values of a contiguous float32 tensor on the CPU.
const float* cuda_float_compress_values(const at::Tensor& tensor);

/// cuda_float_compress::encode() of a contiguous float32 tensor. words: int32, raw_words(numel) of
/// them. misfits: int32, one for each part of on_gpu::kPartValues words, gets the index of the first
/// misfit there that `keep_going` does not cover, and 2^31 - 1 for none; the CPU looks for one only.
/// The words are complete if there is none.
void cuda_float_compress_encode(const at::Tensor& tensor, double step, double max_error,
                                bool keep_going, const at::Tensor& words,
                                const at::Tensor& misfits);

/// cuda_float_compress::decode() to a contiguous float32 tensor.
void cuda_float_compress_decode(const at::Tensor& words, double step, const at::Tensor& out);

}  // namespace cgx
