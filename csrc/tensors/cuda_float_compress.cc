#include "tensors/cuda_float_compress.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <cmath>

#include "codec/compat/cuda_float_compress.h"
#include "codec/compat/gpu/call.h"
#include "tensors/checks.h"
#include "tensors/gpu/here.h"
#include "tensors/gpu/kernels.h"
#include "tensors/memory.h"

namespace cgx {
namespace {

namespace format = cuda_float_compress;

constexpr const char* kCompression = "compression";
constexpr int32_t kNoMisfit = INT32_MAX;

void check(const char* what, const at::Tensor& tensor, at::ScalarType type, size_t values,
           const at::Tensor& values_of) {
  check_tensor(what, tensor);
  TORCH_CHECK_TYPE(tensor.scalar_type() == type, what, " is ", text_of(tensor.scalar_type()),
                   ", allowed: ", text_of(type));
  const bool dense = tensor.is_contiguous() && !tensor.is_neg() && !tensor._is_zerotensor() &&
                     reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 4 == 0;
  TORCH_CHECK_VALUE(dense, what, " is not contiguous or not aligned, allowed: a contiguous tensor");
  TORCH_CHECK_VALUE(tensor.device() == values_of.device(), what, " is on device ", tensor.device(),
                    ", allowed: ", values_of.device());
  TORCH_CHECK_VALUE(static_cast<size_t>(tensor.numel()) == values, what, " has ", tensor.numel(),
                    " values, allowed for ", values_of.numel(), " values: ", values);
}

void check_apart(const char* what, const at::Tensor& tensor, const char* other_what,
                 const at::Tensor& other) {
  TORCH_CHECK_VALUE(!share_memory(tensor, other), what, " shares memory with ", other_what,
                    ", allowed: memory of its own");
}

float checked_step(double step) {
  const auto value = static_cast<float>(step);
  TORCH_CHECK_VALUE(std::isnormal(value) && value > 0, "step is ", step,
                    ", allowed: above 0, and a normal number in float32");
  return value;
}

}  // namespace

const float* cuda_float_compress_values(const at::Tensor& tensor) {
  check("tensor", tensor, at::kFloat, static_cast<size_t>(tensor.numel()), tensor);
  TORCH_CHECK_VALUE(tensor.is_cpu(), "tensor is on device ", tensor.device(), ", allowed: cpu");
  return reinterpret_cast<const float*>(memory_of(tensor));
}

void cuda_float_compress_encode(const at::Tensor& tensor, double step, double max_error,
                                bool keep_going, const at::Tensor& words,
                                const at::Tensor& misfits) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto n = static_cast<size_t>(tensor.numel());
  const size_t raw = format::raw_words(n), parts = raw / format::on_gpu::kPartValues;
  TORCH_CHECK_VALUE(n <= format::kMostValues, "tensor has ", n,
                    " values, allowed: ", format::kMostValues);
  check("tensor", tensor, at::kFloat, n, tensor);
  check("words", words, at::kInt, raw, tensor);
  check("misfits", misfits, at::kInt, parts, tensor);
  TORCH_CHECK_VALUE(std::isfinite(max_error) && max_error > 0, "max_error is ", max_error,
                    ", allowed: a finite number above 0");
  check_apart("words", words, "tensor", tensor);
  check_apart("misfits", misfits, "tensor", tensor);
  check_apart("misfits", misfits, "words", words);
  const float grid_step = checked_step(step);
  const auto* x = reinterpret_cast<const float*>(memory_of(tensor));
  auto* out = reinterpret_cast<uint32_t*>(memory_of(words));
  auto* found = reinterpret_cast<int32_t*>(memory_of(misfits));
  if (tensor.is_cpu()) {
    const format::Misfits met = format::encode(x, n, grid_step, max_error, keep_going, out);
    const size_t first = keep_going ? met.range : std::min(met.range, met.bound);
    std::fill_n(found, parts, kNoMisfit);
    if (first < n) found[first / format::on_gpu::kPartValues] = static_cast<int32_t>(first);
    return;
  }
  const Here here(tensor.device(), kCompression);
  format::on_gpu::EncodeCall call{};
  call.x = x;
  call.raw = out;
  call.misfits = found;
  call.values = n;
  call.count = parts;
  call.grid = format::make_grid(grid_step, max_error);
  call.keep_going = keep_going ? 1 : 0;
  kernels_for(here.queue(), kernel_loader()).encode(call, here.queue().stream());
}

void cuda_float_compress_decode(const at::Tensor& words, double step, const at::Tensor& out) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto n = static_cast<size_t>(out.numel());
  check("out", out, at::kFloat, n, out);
  check("words", words, at::kInt, format::raw_words(n), out);
  check_apart("words", words, "out", out);
  const auto grid_step = static_cast<float>(step);
  const auto* raw = reinterpret_cast<const uint32_t*>(memory_of(words));
  auto* y = reinterpret_cast<float*>(memory_of(out));
  if (out.is_cpu()) return format::decode(raw, n, grid_step, y);
  const Here here(out.device(), kCompression);
  format::on_gpu::DecodeCall call{};
  call.raw = raw;
  call.y = y;
  call.values = n;
  call.count = (n + format::on_gpu::kPartValues - 1) / format::on_gpu::kPartValues;
  call.step = grid_step;
  kernels_for(here.queue(), kernel_loader()).decode(call, here.queue().stream());
}

}  // namespace cgx
