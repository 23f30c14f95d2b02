#include "device/upload.h"

#include <algorithm>
#include <cstring>

namespace cgx::device {
namespace {

constexpr size_t kLeastRoom = size_t{64} << 10;

}  // namespace

std::shared_ptr<std::byte> Uploads::upload(const void* from, size_t bytes) {
  if (bytes == 0) return nullptr;
  const InContext here(queue_.driver(), queue_.context());
  std::shared_ptr<std::byte> memory = allocate_device(queue_.driver(), bytes);
  if (!copied_) copied_ = std::make_unique<OwnEvent>(queue_.driver());
  const size_t room = staging_.bytes();
  if (bytes > room) {
    used_ = 0;  // a new block: what outgrown ones hold may still be on its way
  } else if (used_ + bytes > room) {
    queue_.synchronize(*copied_, "earlier tables of runs to reach the GPU",
                       Deadline::after(Queue::kGrace));
    used_ = 0;
  }
  std::byte* staged = staging_.room(queue_, std::max(bytes, kLeastRoom)) + used_;
  std::memcpy(staged, from, bytes);
  queue_.to_device(memory.get(), staged, bytes);
  queue_.record(*copied_);
  used_ += (bytes + 63) / 64 * 64;
  return memory;
}

}  // namespace cgx::device
