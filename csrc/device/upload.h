// Small data of the host to the device, through pinned memory: from other memory a copy may wait for
// the whole stream, and reads the memory after the call.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "device/queue.h"

namespace cgx::device {

/// One thread at a time.
class Uploads {
 public:
  /// `queue` outlives the result.
  explicit Uploads(const Queue& queue) : queue_(queue) {}

  /// New memory of the device with these bytes, once the stream gets there; null for none. Waits for
  /// nothing: the stream may wait for a peer. The caller may change `from` at once. ResourceError.
  std::shared_ptr<std::byte> upload(const void* from, size_t bytes);

 private:
  std::byte* stage(size_t bytes);

  const Queue& queue_;
  /// Pinned; the last one is in use. The others may still be read; each is at least twice the one
  /// before.
  std::vector<std::shared_ptr<std::byte>> staging_;
  size_t room_ = 0, used_ = 0;        // of the last one
  std::unique_ptr<OwnEvent> copied_;  // the last copy
};

}  // namespace cgx::device
