// Memory of a group's reductions, reused from call to call, 64-byte aligned: of the host, or of a
// GPU.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "base/error.h"

namespace cgx {

class WorkMemory {
 public:
  using Memory = std::shared_ptr<std::byte>;
  using Allocate = std::function<Memory(size_t bytes)>;

  WorkMemory() : allocate_(&on_host) {}
  explicit WorkMemory(Allocate allocate) : allocate_(std::move(allocate)) {}

  /// Size of all blocks together.
  size_t bytes() const {
    size_t all = 0;
    for (const Block& block : blocks_) all += block.bytes;
    return all;
  }

  /// Block number `index`, of at least `bytes` bytes; its content is lost when it grows.
  std::byte* block(size_t index, size_t bytes) {
    if (index >= blocks_.size()) blocks_.resize(index + 1);
    Block& block = blocks_[index];
    if (block.bytes < bytes) {
      const size_t rounded = (bytes + 4095) / 4096 * 4096;
      block.bytes = 0;
      block.data = nullptr;
      block.data = allocate_(rounded);
      block.bytes = rounded;
    }
    return block.data.get();
  }

 private:
  static Memory on_host(size_t bytes) {
    auto* data = static_cast<std::byte*>(std::aligned_alloc(64, bytes));
    if (data == nullptr) throw ResourceError(str_of("cannot allocate ", bytes, " bytes"));
    return {data, [](std::byte* memory) { std::free(memory); }};
  }
  struct Block {
    Memory data;
    size_t bytes = 0;
  };

  Allocate allocate_;
  std::vector<Block> blocks_;
};

}  // namespace cgx
