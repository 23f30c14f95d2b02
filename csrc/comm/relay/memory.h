// 64-byte aligned memory of the relay, reused from message to message.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.h"

namespace cgx {

class RelayBuffer {
 public:
  RelayBuffer() = default;
  RelayBuffer(RelayBuffer&& other) noexcept
      : data_(std::move(other.data_)), bytes_(std::exchange(other.bytes_, 0)) {}
  RelayBuffer& operator=(RelayBuffer&& other) noexcept {
    data_ = std::move(other.data_);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }

  std::byte* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }

  /// Grows to `bytes` and keeps the first `kept` bytes. No transfer may be using the buffer.
  void grow(size_t bytes, size_t kept = 0) {
    if (bytes <= bytes_) return;
    const size_t rounded = (bytes + 4095) / 4096 * 4096;
    if (kept == 0) data_.reset();
    std::unique_ptr<std::byte, Free> fresh(
        static_cast<std::byte*>(std::aligned_alloc(64, rounded)));
    if (!fresh) {
      if (!data_) bytes_ = 0;
      throw ResourceError(str_of("cannot allocate ", rounded, " bytes for messages"));
    }
    if (kept != 0) std::memcpy(fresh.get(), data_.get(), kept);
    data_ = std::move(fresh);
    bytes_ = rounded;
  }

  /// Keeps the memory until the process ends: a transfer that cannot be cancelled may still write
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

/// All buffers of a relay: never more than were in use at once, and none larger than the largest
/// message needed. One thread takes and gives; bytes() may be called from any.
class RelayPool {
 public:
  /// A buffer of at least `bytes` bytes: the smallest free one that is large enough, and among equal
  /// ones the one used last (it is the likeliest to be in the cache); else the largest one, grown.
  RelayBuffer take(size_t bytes) {
    size_t best = 0;
    for (size_t i = 1; i < free_.size(); ++i) {
      const size_t has = free_[i].bytes(), had = free_[best].bytes();
      if (has >= bytes ? had < bytes || has <= had : has > had) best = i;
    }
    RelayBuffer buffer;
    if (!free_.empty()) {
      buffer = std::move(free_[best]);
      free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(best));
    }
    grow(buffer, bytes);
    return buffer;
  }

  /// A buffer that is kept for long: no larger one than is needed.
  RelayBuffer take_small(size_t bytes) {
    RelayBuffer buffer;
    for (size_t i = 0; i < free_.size(); ++i) {
      if (free_[i].bytes() < bytes || free_[i].bytes() > bytes + 4096) continue;
      buffer = std::move(free_[i]);
      free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
      return buffer;
    }
    grow(buffer, bytes);
    return buffer;
  }

  /// The same as RelayBuffer::grow, for a buffer taken here.
  void grow(RelayBuffer& buffer, size_t bytes, size_t kept = 0) {
    bytes_ -= buffer.bytes();
    try {
      buffer.grow(bytes, kept);
    } catch (...) {
      bytes_ += buffer.bytes();
      throw;
    }
    bytes_ += buffer.bytes();
  }

  void give(RelayBuffer&& buffer) {
    if (buffer.bytes() > 0) free_.push_back(std::move(buffer));
  }

  /// Bytes of all buffers, free or not.
  size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  std::vector<RelayBuffer> free_;
  std::atomic<size_t> bytes_{0};
};

}  // namespace cgx
