// Checks of tensors that may be a GPU's, before a call of the engine.
#pragma once

#include <ATen/core/Tensor.h>

namespace cgx {

/// RuntimeError: the current stream of the tensor's GPU is captured into a graph.
void refuse_in_capture(const char* what, const at::Tensor& tensor);

/// ValueError: the two are on different devices.
void check_same_device(const char* what, const at::Tensor& one, const at::Tensor& other);

}  // namespace cgx
