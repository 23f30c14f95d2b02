// What the operators check of their tensors. Python's fake functions (torch_cgx/_operators.py) check the
// same, with the same texts, where tensors have no values yet.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>

#include "base/dtype.h"

namespace cgx {

inline size_t count_of(const at::Tensor& tensor) { return static_cast<size_t>(tensor.numel()); }

/// "torch.float32"
std::string text_of(at::ScalarType type);

/// "torch.sparse_coo"
std::string text_of(at::Layout layout);

/// TypeError: the tensor is nested or not strided. ValueError: it is not on the CPU or a GPU, or
/// its storage is too short. `what`: the argument.
void check_tensor(const char* what, const at::Tensor& tensor);

/// TypeError unless it is uint8 with one dimension.
void check_payload(const char* what, const at::Tensor& tensor);

/// ValueError unless `tensor` is where `other` is.
void check_device(const char* what, const at::Tensor& tensor, const char* other_what,
                  const at::Tensor& other);

/// The dtype of a type that codecs take; for others a TypeError that names `what`.
DType codec_dtype(const char* what, at::ScalarType type);

}  // namespace cgx
