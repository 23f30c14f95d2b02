// Memory for the work of a stream, of the GPU or pinned.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "device/queue.h"

namespace cgx::device {

/// A block that grows. Outgrown memory is kept, because pending work of the stream may still use
/// it; sizes double, so it is never more than the block in use.
class GrowingMemory {
 public:
  using Allocate = std::shared_ptr<std::byte> (*)(const Driver&, size_t);

  /// `allocate`: allocate_device or allocate_pinned.
  explicit GrowingMemory(Allocate allocate) : allocate_(allocate) {}

  /// At least `bytes` bytes, also for 0. The content is lost when the block grows. ResourceError.
  std::byte* room(const Queue& queue, size_t bytes) {
    if (blocks_.empty() || bytes > bytes_) {
      const InContext here(queue.driver(), queue.context());
      size_t room = kLeast;
      while (room < bytes) room *= 2;
      blocks_.push_back(allocate_(queue.driver(), room));
      bytes_ = room;
    }
    return blocks_.back().get();
  }

  /// Size of the block in use.
  size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kLeast = 4096;
  Allocate allocate_;
  std::vector<std::shared_ptr<std::byte>> blocks_;
  size_t bytes_ = 0;
};

}  // namespace cgx::device
