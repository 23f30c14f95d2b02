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

/// What kernels of the key ADInplaceOrView do around an operator that writes to `out`, as torch's own do:
/// may_change() raises a RuntimeError for an inference tensor outside of InferenceMode; has_changed()
/// counts the version.
void may_change(const at::Tensor& out);
void has_changed(const at::Tensor& out);

/// Boxed kernels, which fit every operator of torch_cgx. refuse_boxed, for the key Autograd, calls refuse()
/// for each tensor; count_versions_boxed, for ADInplaceOrView, calls may_change() and has_changed() for
/// each tensor that the schema declares as written.
void refuse_boxed(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack);
void count_versions_boxed(const c10::OperatorHandle& op, c10::DispatchKeySet,
                          torch::jit::Stack* stack);

}  // namespace cgx
