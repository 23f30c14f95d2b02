#include "tensors/activations/norms.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>

#include "base/error.h"
#include "codec/activations/norms/norms.h"
#include "tensors/activations/floating.h"
#include "tensors/checks.h"
#include "tensors/memory.h"
#include "tensors/threads.h"

namespace cgx {
namespace {

at::Tensor numbers(const char* what, const at::Tensor& tensor, int64_t count) {
  check_tensor(what, tensor);
  TORCH_CHECK_TYPE(tensor.scalar_type() == at::kFloat && tensor.is_cpu(), what,
                   " is another tensor than one of float32 on the CPU");
  TORCH_CHECK_VALUE(tensor.numel() == count, what, " has ", tensor.numel(),
                    " values, allowed: ", count);
  return readable(tensor);
}

const float* floats(const at::Tensor& tensor) {
  return static_cast<const float*>(tensor.const_data_ptr());
}

// out = the sum of `blocks` runs of `width` values, in order.
void sum_blocks(const float* partial, size_t blocks, size_t stride, size_t width, float* out) {
  std::fill_n(out, width, 0.0f);
  for (size_t i = 0; i < blocks; ++i) {
    const float* from = partial + i * stride;
    for (size_t j = 0; j < width; ++j) out[j] += from[j];
  }
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_backward(
    const at::Tensor& grad, const at::Tensor& output, const at::Tensor& rstd,
    const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& inverse, bool centred,
    std::array<bool, 3> wanted) {
  const at::AutoDispatchBelowADInplaceOrView autograd;
  const SafeAfterFork one_thread;
  check_tensor("grad", grad);
  check_tensor("output", output);
  const DType dtype = floating_dtype("output.dtype", output.scalar_type());
  TORCH_CHECK_TYPE(grad.scalar_type() == output.scalar_type(),
                   "grad is of another dtype than output");
  TORCH_CHECK_VALUE(
      grad.sizes() == output.sizes() && grad.is_cpu() && output.is_cpu(),
      "grad and output have other shapes or devices, allowed: equal ones, on the CPU");
  const int64_t width = weight.numel();
  const int64_t rows = rstd.numel();
  TORCH_CHECK_VALUE(rows * width == output.numel(), "output has ", output.numel(),
                    " values, allowed for ", rows, " rows of ", width, ": ", rows * width);
  const at::Tensor r = numbers("rstd", rstd, rows), w = numbers("weight", weight, width),
                   b = numbers("bias", bias, width), v = numbers("inverse", inverse, width);
  const at::Tensor dy = readable(grad), y = readable(output);
  const Norm norm{static_cast<size_t>(width), centred, floats(w), floats(b), floats(v)};
  at::Tensor dx = at::empty(wanted[0] ? y.sizes() : at::IntArrayRef{0}, y.options());
  const size_t blocks = (static_cast<size_t>(rows) + kNormRows - 1) / kNormRows;
  const bool sums = wanted[1] || wanted[2];
  const at::Tensor partial =
      at::empty({sums ? static_cast<int64_t>(blocks) : 0, 2, width}, w.options());
  auto* const partials = static_cast<float*>(partial.mutable_data_ptr());
  const size_t row_bytes = norm.width * size_of(dtype);
  const std::byte *from = bytes_of_host(dy), *out = bytes_of_host(y);
  std::byte* const to = wanted[0] ? bytes_of_host(dx) : nullptr;
  in_parts(static_cast<size_t>(rows) * norm.width, kNormRows * std::max<size_t>(norm.width, 1),
           [&](size_t first, size_t n) {
             const size_t last = n == 0 ? 0 : (first + n) / norm.width;
             for (size_t i = n == 0 ? 0 : first / norm.width; i < last; i += kNormRows) {
               float* const at = partials + i / kNormRows * 2 * norm.width;
               norm_backward(norm, dtype, std::min(kNormRows, last - i), from + i * row_bytes,
                             out + i * row_bytes, floats(r) + i,
                             to == nullptr ? nullptr : to + i * row_bytes, sums ? at : nullptr,
                             sums ? at + norm.width : nullptr);
             }
           });
  at::Tensor dweight = at::empty({wanted[1] ? width : 0}, w.options());
  at::Tensor dbias = at::empty({wanted[2] ? width : 0}, w.options());
  if (wanted[1]) {
    auto* const sum = static_cast<float*>(dweight.mutable_data_ptr());
    sum_blocks(partials, blocks, 2 * norm.width, norm.width, sum);
    for (size_t j = 0; j < norm.width; ++j) sum[j] *= norm.inverse[j];
  }
  if (wanted[2]) {
    sum_blocks(partials + norm.width, blocks, 2 * norm.width, norm.width,
               static_cast<float*>(dbias.mutable_data_ptr()));
  }
  return {dx, dweight, dbias};
}

}  // namespace cgx
