// Memory of a payload that is being written. Addresses are reserved for the worst case, in which every
// block is as long as its values; pages are used as blocks arrive, and the rest is returned at the end.
// The payload is never moved: new pages can cost more time than the encoding, and a copy would need
// them twice.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <span>
#include <vector>

namespace cgx::bounded {

/// Asks the system for pages of 2 MiB instead of 4 KiB for memory that will be written, since every new
/// page costs a fault. Without effect where the system has none.
void prefer_large_pages(void* memory, size_t bytes);

class Arena {
 public:
  /// head: bytes of the header; blocks: the most that all blocks together can take. ResourceError: the
  /// system does not give that many bytes of addresses.
  Arena(size_t head, size_t blocks);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Appends a copy of block `number`; waits until the blocks before it are there. A short block that is
  /// as the one before shares its memory. Thread-safe; called once for each number from 0 on.
  /// ResourceError: the arena is full.
  void put(size_t number, std::span<const std::byte> block);

  /// The blocks, once all of them are there.
  std::span<const std::span<const std::byte>> blocks() const { return blocks_; }
  /// The bytes of all blocks. A block that shares the memory of the one before adds none.
  size_t block_bytes() const { return used_ - head_; }
  /// Writes the head before the blocks, and `padding` zeros behind them, and gives back the rest of the
  /// room.
  void close(std::span<const std::byte> head, size_t padding);
  /// Head, blocks and padding.
  std::span<std::byte> bytes() const { return {base_ + begin_, used_ - begin_}; }

 private:
  std::byte* take(size_t bytes);
  std::byte* take_block(size_t bytes);

  size_t reserved_;
  const size_t head_;
  size_t used_;
  size_t begin_ = 0;  // of the head
  std::byte* base_ = nullptr;
  std::mutex mutex_;  // of what follows, and used_
  std::vector<std::span<const std::byte>> blocks_;
  std::map<size_t, std::vector<std::byte>>
      early_;  // blocks that were finished before another's turn
};

}  // namespace cgx::bounded
