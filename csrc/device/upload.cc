#include "device/upload.h"

#include <algorithm>
#include <cstring>

namespace cgx::device {
namespace {

constexpr size_t kLeastRoom = size_t{64} << 10;

}  // namespace

std::byte* Uploads::stage(size_t bytes) {
  const Driver& driver = queue_.driver();
  if (!copied_) copied_ = std::make_unique<OwnEvent>(driver);
  if (used_ + bytes > room_ && bytes <= room_) {
    const int result = driver.query_event(copied_->get());
    if (result != kNotReady) {
      driver.check(result, "query_event");
      used_ = 0;  // all that lies there has been copied
    }
  }
  if (used_ + bytes > room_) {
    const size_t room = std::max({2 * room_, bytes, kLeastRoom});
    staging_.push_back(allocate_pinned(driver, room));
    room_ = room;
    used_ = 0;
  }
  std::byte* staged = staging_.back().get() + used_;
  used_ = std::min(room_, used_ + (bytes + 63) / 64 * 64);
  return staged;
}

std::shared_ptr<std::byte> Uploads::upload(const void* from, size_t bytes) {
  if (bytes == 0) return nullptr;
  const InContext here(queue_.driver(), queue_.context());
  std::shared_ptr<std::byte> memory = allocate_device(queue_.driver(), bytes);
  std::byte* staged = stage(bytes);
  std::memcpy(staged, from, bytes);
  queue_.to_device(memory.get(), staged, bytes);
  queue_.record(*copied_);
  return memory;
}

}  // namespace cgx::device
