// A codec on tensors of a GPU: runs on its current stream, after the caller's earlier work there;
// the host waits for nothing. The bytes equal the bytes of the CPU's codec (codec/codec.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "codec/codec.h"
#include "tensors/gpu/kernels.h"

namespace cgx {

/// `x`: contiguous, of a type that codecs take. `payload`: uint8 on the same device, contiguous,
/// 16-byte aligned, codec.encoded_bytes(x.numel(), type of x) bytes. `index`: number of the first
/// value in a longer run.
/// Errors: ConfigError for other tensors; ResourceError without a driver or kernels; RuntimeError while
/// the stream is captured into a graph.
void gpu_encode(const Codec& codec, const at::Tensor& x, const at::Tensor& payload, RandomKey key,
                uint64_t index, const LoadKernels& load);

/// `wire`: type of the tensor that was encoded. `y`: contiguous, float32 or of that type; the values
/// are written to it, or added, to float32 only. Errors as above.
void gpu_decode(const Codec& codec, const at::Tensor& payload, DType wire, const at::Tensor& y,
                bool add, const LoadKernels& load);

/// What gpu_decode() gives of gpu_encode(), by one kernel. `y`: as x, other memory. The payload goes to
/// memory that is free afterwards.
void gpu_roundtrip(const Codec& codec, const at::Tensor& x, const at::Tensor& y, RandomKey key,
                   uint64_t index, const LoadKernels& load);

}  // namespace cgx
