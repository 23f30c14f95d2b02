#include "tensors/activations/gpu.h"

#include "codec/gpu/kernels.h"
#include "codec/gpu/run.h"
#include "tensors/checks.h"
#include "tensors/gpu/here.h"
#include "tensors/gpu/kernels.h"

namespace cgx {
namespace {

constexpr const char* kActivation = "a function of torch_cgx.activations";

// The arguments that all three calls have.
template <typename Call>
Call call_of(const at::Tensor& x, DType dtype) {
  Call call{};
  call.x = bytes_of(x);
  call.values = count_of(x);
  call.count = (count_of(x) + gpu::kPartValues - 1) / gpu::kPartValues;
  static_assert(static_cast<uint8_t>(DType::kFloat64) == gpu::kWideType);
  call.type = static_cast<uint8_t>(dtype);
  return call;
}

}  // namespace

void gpu_level_encode(const at::Tensor& x, DType dtype, const LevelTable& table,
                      const at::Tensor& codes) {
  auto call = call_of<levels::on_gpu::EncodeCall>(x, dtype);
  call.codes = bytes_of(codes);
  call.table = table.on_gpu();
  const Here here(x.device(), kActivation);
  kernels_for(here.queue(), kernel_loader()).encode(call, here.queue().stream());
}

void gpu_level_multiply(const at::Tensor& grad, DType dtype, const LevelTable& table,
                        const at::Tensor& codes, const at::Tensor& y) {
  auto call = call_of<levels::on_gpu::MultiplyCall>(grad, dtype);
  call.codes = bytes_of(codes);
  call.y = bytes_of(y);
  call.table = table.on_gpu();
  const Here here(grad.device(), kActivation);
  kernels_for(here.queue(), kernel_loader()).multiply(call, here.queue().stream());
}

void gpu_dropout(const at::Tensor& x, DType dtype, double p, RandomKey key, const at::Tensor& y) {
  auto call = call_of<dropping::on_gpu::Call>(x, dtype);
  call.y = bytes_of(y);
  call.keep = static_cast<float>(1 - p);
  call.scale = p < 1 ? 1 / (1 - p) : 0;
  call.key = key;
  const Here here(x.device(), kActivation);
  kernels_for(here.queue(), kernel_loader()).dropout(call, here.queue().stream());
}

}  // namespace cgx
