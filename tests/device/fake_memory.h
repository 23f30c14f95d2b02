// The fake device's memory, and pinned memory of the host.
#pragma once

#include <c10/core/Allocator.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "fake_streams.h"

namespace fake_cuda {

class CachingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const Device device(DeviceType::CUDA, current_device);
    if (bytes == 0) return {nullptr, nullptr, &release, device};
    const Stream stream = current_stream(current_device);
    const size_t rounded = (bytes + 511) / 512 * 512;
    attach();
    std::lock_guard<std::mutex> lock(mutex_);
    take_back();
    std::vector<Allocation>& free = free_[{stream.id(), stream.device_index(), rounded}];
    Allocation allocation{0, rounded, stream, {}};
    if (free.empty()) {
      STUB(allocate, &allocation.address, rounded);
      std::memset(reinterpret_cast<void*>(allocation.address), 0xff, rounded);
    } else {
      allocation = free.back();
      free.pop_back();
    }
    void* address = reinterpret_cast<void*>(allocation.address);
    used_.emplace(address, allocation);
    return {address, address, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    enqueue(current_stream(current_device), [=] { std::memcpy(to, from, bytes); });
  }

  void record(const c10::DataPtr& data, const Stream& stream) {
    if (data.get() == nullptr || data.get_deleter() != &release) return;
    std::lock_guard<std::mutex> lock(mutex_);
    ++records_[stream.id()];
    Allocation& allocation = used_.at(data.get());
    if (stream != allocation.stream) allocation.recorded.insert(stream.id());
  }
  int64_t records(c10::StreamId stream) {
    std::lock_guard<std::mutex> lock(mutex_);
    return records_[stream];
  }
  int64_t blocks(bool used) {
    std::lock_guard<std::mutex> lock(mutex_);
    take_back();
    size_t count = waiting_.size();
    for (const auto& [key, allocations] : free_) count += allocations.size();
    return static_cast<int64_t>(used ? used_.size() : count);
  }
  void empty_cache() {
    synchronize_all();
    std::lock_guard<std::mutex> lock(mutex_);
    take_back();
    for (const auto& [key, allocations] : free_) {
      for (const Allocation& allocation : allocations) STUB(free_memory, allocation.address);
    }
    free_.clear();
  }

 private:
  struct Allocation {
    uint64_t address;
    size_t bytes;
    Stream stream;
    std::set<c10::StreamId> recorded;
  };
  struct Waiting {
    Allocation allocation;
    std::vector<void*> events;
  };
  static void release(void* address);

  void give_back(void* address) {
    attach();
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = used_.find(address);
    if (found == used_.end()) return;
    Waiting waiting{found->second, {}};
    used_.erase(found);
    for (const c10::StreamId id : waiting.allocation.recorded) {
      void* event = nullptr;
      STUB(create_event, &event, 2);
      STUB(record_event, event,
           handle_of(Stream(Stream::UNSAFE, waiting.allocation.stream.device(), id)));
      waiting.events.push_back(event);
    }
    waiting.allocation.recorded.clear();
    waiting_.push_back(std::move(waiting));
    take_back();
  }
  // What no recorded stream has work for any more.
  void take_back() {
    std::erase_if(waiting_, [&](const Waiting& waiting) {
      for (void* event : waiting.events) {
        if (stub().query_event(event) == kNotReady) return false;
      }
      for (void* event : waiting.events) STUB(destroy_event, event);
      const Allocation& allocation = waiting.allocation;
      free_[{allocation.stream.id(), allocation.stream.device_index(), allocation.bytes}].push_back(
          allocation);
      return true;
    });
  }

  std::mutex mutex_;
  std::unordered_map<void*, Allocation> used_;
  std::vector<Waiting> waiting_;
  std::map<std::tuple<c10::StreamId, DeviceIndex, size_t>, std::vector<Allocation>> free_;
  std::map<c10::StreamId, int64_t> records_;
};
inline CachingAllocator& allocator() {
  static auto* one = new CachingAllocator;
  return *one;
}
inline void CachingAllocator::release(void* address) {
  if (address != nullptr) allocator().give_back(address);
}

// Host memory that a copy may read or write when its turn on the stream comes.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    std::lock_guard<std::mutex> lock(mutex_);
    if (memory != nullptr) sizes_[memory] = bytes;
    return {memory, memory, &release, Device(DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool owns(const void* address) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto next = sizes_.upper_bound(const_cast<void*>(address));
    if (next == sizes_.begin()) return false;
    --next;
    return static_cast<const char*>(address) < static_cast<char*>(next->first) + next->second;
  }

 private:
  static void release(void* memory);

  std::mutex mutex_;
  std::map<void*, size_t> sizes_;
};
inline PinnedAllocator& pinned() {
  static auto* one = new PinnedAllocator;
  return *one;
}
inline void PinnedAllocator::release(void* memory) {
  std::lock_guard<std::mutex> lock(pinned().mutex_);
  pinned().sizes_.erase(memory);
  std::free(memory);
}

}  // namespace fake_cuda
