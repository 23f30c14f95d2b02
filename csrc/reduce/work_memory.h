// Memory that a group's reductions use again from call to call, aligned to 64 bytes.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/error.h"

namespace cgx {

class WorkMemory {
 public:
  /// Block number `index`, of at least `bytes` bytes; its content is lost when it grows.
  std::byte* block(size_t index, size_t bytes) {
    if (index >= blocks_.size()) blocks_.resize(index + 1);
    Block& block = blocks_[index];
    if (block.bytes < bytes) {
      const size_t rounded = (bytes + 4095) / 4096 * 4096;
      block.data.reset(static_cast<std::byte*>(std::aligned_alloc(64, rounded)));
      block.bytes = block.data ? rounded : 0;
      if (!block.data) throw ResourceError(str_of("cannot allocate ", rounded, " bytes"));
    }
    return block.data.get();
  }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  struct Block {
    std::unique_ptr<std::byte, Free> data;
    size_t bytes = 0;
  };
  std::vector<Block> blocks_;
};

}  // namespace cgx
