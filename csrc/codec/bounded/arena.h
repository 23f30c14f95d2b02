// A payload in the making. Blocks have any size up to that of their values, so room is reserved for
// the worst case, touched as it is used, and given back at the end. The payload stays where it is:
// new memory may take longer to get than all the rest, and would be needed twice for a copy.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <span>
#include <vector>

namespace cgx::bounded {

/// Asks the system for pages of 2 MiB instead of 4 KiB for memory that will be written: new pages cost
/// a fault each. A system that has none goes on as before.
void prefer_large_pages(void* memory, size_t bytes);

class Arena {
 public:
  /// For a head of that many bytes, and blocks of at most so many together. ResourceError: the
  /// system has no room for that many bytes of addresses.
  Arena(size_t head, size_t blocks);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Puts a copy of a block behind the one before it, as soon as that is there. May be called by
  /// several threads, once for each number from 0 on. ResourceError: the arena is full.
  void put(size_t number, std::span<const std::byte> block);

  /// The blocks, once all of them are there.
  std::span<const std::span<const std::byte>> blocks() const { return blocks_; }
  /// Writes the head, and gives back the room behind the last block.
  void close(std::span<const std::byte> head);
  /// Head and blocks.
  std::span<std::byte> bytes() const { return {base_, used_}; }

 private:
  std::byte* take(size_t bytes);

  size_t reserved_;
  size_t used_;
  std::byte* base_ = nullptr;
  std::mutex mutex_;  // of what follows, and used_
  std::vector<std::span<const std::byte>> blocks_;
  std::map<size_t, std::vector<std::byte>>
      early_;  // blocks that were finished before another's turn
};

}  // namespace cgx::bounded
