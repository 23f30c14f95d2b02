// 64-byte aligned memory of the relay, grown on demand.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.h"

namespace cgx {

class RelayBlock {
 public:
  std::byte* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }

  /// Makes room for `bytes` and keeps the first `kept` ones. No transfer may be using the block.
  void grow(size_t bytes, size_t kept = 0) {
    if (bytes <= bytes_) return;
    size_t rounded = bytes_ < 4096 ? 4096 : bytes_;
    while (rounded < bytes) rounded += rounded / 2;
    rounded = (rounded + 63) / 64 * 64;
    std::unique_ptr<std::byte, Free> fresh(
        static_cast<std::byte*>(std::aligned_alloc(64, rounded)));
    if (!fresh) throw ResourceError(str_of("cannot allocate ", rounded, " bytes for messages"));
    if (kept != 0) std::memcpy(fresh.get(), data_.get(), kept);
    data_ = std::move(fresh);
    bytes_ = rounded;
  }

  /// Keeps the memory until the process ends: a transfer that cannot be called back may still write
  /// to it.
  void abandon() {
    static std::mutex mutex;
    static auto* kept = new std::vector<std::unique_ptr<std::byte, Free>>;
    std::lock_guard lock(mutex);
    if (data_) kept->push_back(std::move(data_));
    bytes_ = 0;
  }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t bytes_ = 0;
};

}  // namespace cgx
