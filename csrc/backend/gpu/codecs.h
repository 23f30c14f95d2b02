// A codec on tensors of a GPU: runs on its current stream, after the caller's earlier work there;
// the host waits for nothing. The bytes equal the bytes of the CPU's codec (codec/codec.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "backend/gpu/kernels.h"
#include "codec/codec.h"

namespace cgx {

/// `x`: contiguous, of a type that codecs take. `payload`: uint8 on the same device, contiguous,
/// 16-byte aligned, codec.encoded_bytes(x.numel(), type of x) bytes. `index`: number of the first
/// value in a longer run.
/// ConfigError: tensors that are not so. ResourceError: no driver, or no kernels. RuntimeError:
/// the stream is captured into a graph.
void gpu_encode(const Codec& codec, const at::Tensor& x, const at::Tensor& payload, RandomKey key,
                uint64_t index, const LoadKernels& load);

/// `wire`: type of the tensor that was encoded. `y`: float32, or of that type; contiguous; written,
/// or added to, which only float32 can be. Errors as above.
void gpu_decode(const Codec& codec, const at::Tensor& payload, DType wire, const at::Tensor& y,
                bool add, const LoadKernels& load);

}  // namespace cgx
