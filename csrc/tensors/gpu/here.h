// The current stream of a tensor's device, and small data of the host on it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "device/queue.h"

namespace cgx {

/// The device's current stream, with its context current, for as long as it lives. RuntimeError
/// while the stream is captured into a graph; `what` names the operation in its text.
class Here {
 public:
  Here(c10::Device device, const char* what);

  const device::Queue& queue() const { return *queue_; }

 private:
  const c10::DeviceGuard on_;
  std::optional<device::Queue> queue_;
};

/// Copies bytes to new memory of the device, on the current stream, through pinned memory. Both are of
/// torch's allocators: the pinned memory stays until the copy is done, and memory that is freed at the
/// end of a call is reused on this stream only. An undefined tensor for no bytes.
at::Tensor upload(const std::vector<std::byte>& bytes, c10::Device device);

/// ConfigError unless the tensor is contiguous and on a GPU; `what` names the argument.
void check_on_gpu(const at::Tensor& tensor, const char* what);

/// Of a contiguous tensor.
std::byte* memory_of(const at::Tensor& tensor);
inline unsigned char* bytes_of(const at::Tensor& tensor) {
  return reinterpret_cast<unsigned char*>(memory_of(tensor));
}

}  // namespace cgx
