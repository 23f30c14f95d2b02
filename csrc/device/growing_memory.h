// Memory for the work of a stream, of the GPU or pinned.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "device/queue.h"

namespace cgx::device {

/// Memory that grows. Outgrown memory is kept, because pending work of the stream may still use
/// it; sizes double, so it is never more than the memory in use.
class GrowingMemory {
 public:
  using Allocate = std::shared_ptr<std::byte> (*)(const Driver&, size_t);

  /// `allocate`: allocate_device or allocate_pinned.
  explicit GrowingMemory(Allocate allocate) : allocate_(allocate) {}

  /// At least `bytes` bytes, also for 0. The content is lost when the memory grows. ResourceError.
  std::byte* room(const Queue& queue, size_t bytes) {
    if (memories_.empty() || bytes > bytes_) {
      const InContext here(queue.driver(), queue.context());
      size_t room = kLeast;
      while (room < bytes) room *= 2;
      memories_.push_back(allocate_(queue.driver(), room));
      bytes_ = room;
    }
    return memories_.back().get();
  }

  /// Size of the memory in use.
  size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kLeast = 4096;
  Allocate allocate_;
  std::vector<std::shared_ptr<std::byte>> memories_;
  size_t bytes_ = 0;
};

}  // namespace cgx::device
