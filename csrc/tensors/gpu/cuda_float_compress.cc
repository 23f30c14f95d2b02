#include "tensors/gpu/cuda_float_compress.h"

#include <ATen/Functions.h>

#include "base/error.h"
#include "codec/compat/cuda_float_compress.h"
#include "codec/compat/gpu/call.h"
#include "tensors/gpu/here.h"

namespace cgx {
namespace {

namespace format = cuda_float_compress;

constexpr const char* kCompression = "compression";

void check(const at::Tensor& tensor, at::ScalarType type, const char* what) {
  check_on_gpu(tensor, what);
  if (tensor.scalar_type() != type) {
    throw ConfigError(str_of(what, " has the dtype ", at::toString(tensor.scalar_type()),
                             ", allowed here: ", at::toString(type)));
  }
}

/// int32, which torch has all operations for.
at::Tensor new_words(size_t words, c10::Device device) {
  return at::empty({static_cast<int64_t>(words)},
                   at::TensorOptions().dtype(at::kInt).device(device));
}

}  // namespace

std::pair<at::Tensor, at::Tensor> gpu_cuda_float_compress_encode(const at::Tensor& x, float step,
                                                                 double max_error, bool keep_going,
                                                                 const LoadKernels& load) {
  check(x, at::kFloat, "input");
  const Here here(x.device(), kCompression);
  const auto n = static_cast<size_t>(x.numel());
  const size_t words = format::raw_words(n), parts = words / format::on_gpu::kPartValues;
  std::pair made{new_words(words, x.device()), new_words(parts, x.device())};
  format::on_gpu::EncodeCall call{};
  call.x = reinterpret_cast<const float*>(memory_of(x));
  call.raw = reinterpret_cast<uint32_t*>(memory_of(made.first));
  call.misfits = reinterpret_cast<int32_t*>(memory_of(made.second));
  call.values = n;
  call.count = parts;
  call.grid = format::make_grid(step, max_error);
  call.keep_going = keep_going ? 1 : 0;
  kernels_for(here.queue(), load).encode(call, here.queue().stream());
  return made;
}

void gpu_cuda_float_compress_decode(const at::Tensor& raw, float step, const at::Tensor& y,
                                    const LoadKernels& load) {
  check(raw, at::kInt, "raw");
  check(y, at::kFloat, "out");
  const auto n = static_cast<size_t>(y.numel());
  if (raw.device() != y.device() || static_cast<size_t>(raw.numel()) != format::raw_words(n)) {
    throw ConfigError(str_of("raw has ", raw.numel(), " words on ", raw.device().str(), ", ", n,
                             " values on ", y.device().str(), " have ", format::raw_words(n),
                             " there"));
  }
  const Here here(y.device(), kCompression);
  format::on_gpu::DecodeCall call{};
  call.raw = reinterpret_cast<const uint32_t*>(memory_of(raw));
  call.y = reinterpret_cast<float*>(memory_of(y));
  call.values = n;
  call.count = (n + format::on_gpu::kPartValues - 1) / format::on_gpu::kPartValues;
  call.step = step;
  kernels_for(here.queue(), load).decode(call, here.queue().stream());
}

}  // namespace cgx
