// What autograd kernels of operators share: refusals, and results that raise in the backward pass.
#pragma once

#include <ATen/core/Tensor.h>

namespace cgx {

/// True if autograd records what is done to the tensor.
bool tracks(const at::Tensor& tensor);

/// RuntimeError: the tensor has a tangent of forward-mode differentiation. TypeError: it is nested;
/// Python implements jagged ones, and would raise an error without a text before the library's kernels
/// are called. operation, what: the operator and its argument.
void refuse_tangent(const char* operation, const char* what, const at::Tensor& tensor);
/// The same; and RuntimeError if autograd tracks the tensor.
void refuse(const char* operation, const char* what, const at::Tensor& tensor);

/// `result` was computed from `tensor`; the backward pass through it raises a RuntimeError of this text.
void raise_in_backward(const at::Tensor& result, const at::Tensor& tensor, const char* text);

}  // namespace cgx
