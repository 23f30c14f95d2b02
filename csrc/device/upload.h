// Small data of the host to the device, through pinned memory: from other memory a copy may wait for
// the whole stream, and reads the memory after the call.
#pragma once

#include <cstddef>
#include <memory>

#include "device/growing_memory.h"
#include "device/queue.h"

namespace cgx::device {

/// One thread at a time.
class Uploads {
 public:
  /// `queue` outlives the result.
  explicit Uploads(const Queue& queue) : queue_(queue) {}

  /// New memory of the device with these bytes, once the stream gets there; null for none. The caller
  /// may change `from` at once. Waits, at most Queue::kGrace, where earlier copies have not begun and
  /// take all room. ResourceError, TimeoutError.
  std::shared_ptr<std::byte> upload(const void* from, size_t bytes);

 private:
  const Queue& queue_;
  GrowingMemory staging_{&allocate_pinned};
  std::unique_ptr<OwnEvent> copied_;  // the last one
  size_t used_ = 0;
};

}  // namespace cgx::device
