// The backward pass of norms that keep their output (codec/activations/norms): operator norm_backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <tuple>

namespace cgx {

/// grad, output: equal shapes and types, float32, float16 or bfloat16, on the CPU; rows are their last `width`
/// values. rstd: float32, one number a row. weight, bias, inverse (1 / weight): float32, `width` each. Returns dx as
/// `output`, and dweight and dbias of float32, each where `wanted`, else an empty tensor.
/// Errors: TypeError and ValueError for other tensors.
std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_backward(
    const at::Tensor& grad, const at::Tensor& output, const at::Tensor& rstd,
    const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& inverse, bool centred,
    std::array<bool, 3> wanted);

}  // namespace cgx
