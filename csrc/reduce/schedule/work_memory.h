// Memory of a group's reductions, reused from call to call: of the host, or of a GPU (Stages).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace cgx {

class WorkMemory {
 public:
  using Memory = std::shared_ptr<std::byte>;
  using Allocate = std::function<Memory(size_t bytes)>;

  WorkMemory() = default;  // without a buffer
  explicit WorkMemory(Allocate allocate) : allocate_(std::move(allocate)) {}

  /// Size of all buffers together.
  size_t bytes() const {
    size_t all = 0;
    for (const Buffer& buffer : buffers_) all += buffer.bytes;
    return all;
  }

  /// Buffer number `index`, of at least `bytes` bytes; its content is lost when it grows.
  std::byte* buffer(size_t index, size_t bytes) {
    if (index >= buffers_.size()) buffers_.resize(index + 1);
    Buffer& buffer = buffers_[index];
    if (buffer.bytes < bytes) {
      const size_t rounded = (bytes + 4095) / 4096 * 4096;
      buffer.bytes = 0;
      buffer.data = nullptr;
      buffer.data = allocate_(rounded);
      buffer.bytes = rounded;
    }
    return buffer.data.get();
  }

 private:
  struct Buffer {
    Memory data;
    size_t bytes = 0;
  };

  Allocate allocate_;
  std::vector<Buffer> buffers_;
};

}  // namespace cgx
