// The current stream of a tensor's device, and small data of the host on it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "device/queue.h"

namespace cgx {

/// The device's current stream, with its context current, for as long as it lives. RuntimeError: the
/// stream is captured into a graph; `what` then says what cannot be.
class Here {
 public:
  Here(c10::Device device, const char* what);

  const device::Queue& queue() const { return *queue_; }

 private:
  const c10::DeviceGuard on_;
  std::optional<device::Queue> queue_;
};

/// The bytes in new memory of the device, once the current stream gets there. Through pinned memory,
/// which torch keeps until the copy is done; the memory on the device is torch's, too: freed at the end
/// of a call, it goes to no other stream. Undefined for none.
at::Tensor upload(const std::vector<std::byte>& bytes, c10::Device device);

/// ConfigError: the tensor, an argument `what`, is not contiguous, or not on a GPU.
void check_on_gpu(const at::Tensor& tensor, const char* what);

/// Of a contiguous tensor.
std::byte* memory_of(const at::Tensor& tensor);
inline unsigned char* bytes_of(const at::Tensor& tensor) {
  return reinterpret_cast<unsigned char*>(memory_of(tensor));
}

}  // namespace cgx
