#include "tensors/gpu/here.h"

#include <ATen/Functions.h>

#include <cstring>

#include "base/error.h"
#include "tensors/gpu/stream.h"

namespace cgx {

Here::Here(c10::Device device, const char* what) : on_(device) {
  const c10::Stream stream = current_stream(device);
  refuse_capture(stream, what, "what it tells its kernels belongs to");
  queue_.emplace(device::Driver::get(), handle_of(stream));
}

at::Tensor upload(const std::vector<std::byte>& bytes, c10::Device device) {
  if (bytes.empty()) return {};
  const at::Tensor host = at::empty({static_cast<int64_t>(bytes.size())},
                                    at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  std::memcpy(host.mutable_data_ptr(), bytes.data(), bytes.size());
  return host.to(device, at::kByte, /*non_blocking=*/true);
}

void check_on_gpu(const at::Tensor& tensor, const char* what) {
  if (!tensor.is_cuda() || !tensor.is_contiguous()) {
    throw ConfigError(str_of(what, " is on ", tensor.device().str(),
                             ", allowed here: a contiguous tensor on cuda"));
  }
}

std::byte* memory_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(const_cast<void*>(tensor.const_data_ptr()));
}

}  // namespace cgx
