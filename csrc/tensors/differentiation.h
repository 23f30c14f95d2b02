// What autograd kernels of operators share: refusals, and results that raise in the backward pass.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

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

/// Before an operator writes to `out`, in the key ADInplaceOrView: as torch's own operators, a
/// RuntimeError for an inference tensor outside of InferenceMode. Afterwards: counts its version.
void may_change(const at::Tensor& out);
void has_changed(const at::Tensor& out);

/// Kernels of any operator of torch_cgx. For the key Autograd: refuse() of each tensor. For
/// ADInplaceOrView: the two above, of each tensor that the schema says is written.
void refuse_boxed(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack);
void count_versions_boxed(const c10::OperatorHandle& op, c10::DispatchKeySet,
                          torch::jit::Stack* stack);

}  // namespace cgx
