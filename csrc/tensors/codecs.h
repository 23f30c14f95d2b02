// A codec on tensors: what `encode` and `decode` of torch_cgx.codecs do.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "codec/codec.h"
#include "tensors/gpu/kernels.h"

namespace cgx {

struct EncodeKey {
  uint64_t sequence = 0;
  int rank = 0;
  int stage = 0;
  uint64_t index = 0;
};

/// The payload of x, in `out` or in a new tensor. x: any shape and strides, on the CPU or a GPU,
/// float32, float16 or bfloat16. `out`: uint8, one dimension, of exactly the payload's size, on the
/// device of x. Long tensors use the caller's intra-op threads. TypeError, ValueError.
at::Tensor encode_tensor(const Codec& codec, const at::Tensor& x, const EncodeKey& key,
                         const std::optional<at::Tensor>& out, const LoadKernels& load);

/// The values of a payload in `out`, or in a new tensor of `numel` values. `dtype`: of the tensor
/// that was encoded; none: the type of `out`, else float32. With `add`, the values are added to
/// `out`, in float32.
at::Tensor decode_tensor(const Codec& codec, const at::Tensor& payload,
                         const std::optional<at::Tensor>& out, std::optional<int64_t> numel,
                         std::optional<at::ScalarType> dtype, bool add, const LoadKernels& load);

/// The dtype of a type that codecs take; for others a TypeError that names `what`.
DType codec_dtype(const char* what, at::ScalarType type);

}  // namespace cgx
