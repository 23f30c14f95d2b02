// Room for a tensor's finished blocks until their total is known. Blocks are put down in the order in
// which threads finish them, so the room is reserved for the worst case and touched as it is used.
#pragma once

#include <atomic>
#include <cstddef>

namespace cgx::bounded {

/// Asks the system for pages of 2 MiB instead of 4 KiB for memory that will be written: new pages cost
/// a fault each. A system that has none goes on as before.
void prefer_large_pages(void* memory, size_t bytes);

/// take() may be called by several threads.
class Arena {
 public:
  /// ResourceError: the system has no room for that many bytes of addresses.
  explicit Arena(size_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Room for a block. ResourceError: the arena is full.
  std::byte* take(size_t bytes);

 private:
  const size_t bytes_;
  std::byte* base_ = nullptr;
  std::atomic<size_t> used_{0};
};

}  // namespace cgx::bounded
