// Kernels of warps on the host with a thread for each lane. Under ThreadSanitizer a lane that reads
// memory which another one has written, or writes what another one has read, with no share() in
// between is a race: exchanges of registers order nothing else, as on a device.
#pragma once

#include <atomic>
#include <barrier>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "codec/gpu/warp.h"

namespace cgx::native {

#if defined(__SANITIZE_THREAD__)
inline constexpr std::memory_order kGive = std::memory_order_relaxed;
inline constexpr std::memory_order kTake = std::memory_order_relaxed;
#else
inline constexpr std::memory_order kGive = std::memory_order_release;
inline constexpr std::memory_order kTake = std::memory_order_acquire;
#endif

/// Where the lanes of a warp meet.
class Meeting {
 public:
  /// Once all lanes have come here as often as this one, `come` times before. Ends the process if
  /// one does not come within a minute: it has taken another way, and a device would hang.
  void meet(uint64_t& come) {
    ++come;
    come_.fetch_add(1, kGive);
    const auto began = std::chrono::steady_clock::now();
    while (come_.load(kTake) < come * gpu::kLanes) {
      std::this_thread::yield();
      if (std::chrono::steady_clock::now() - began > std::chrono::minutes(1)) {
        std::fputs("a lane does not exchange what the others do\n", stderr);
        std::abort();
      }
    }
  }
  void share() { shared_.arrive_and_wait(); }

  static constexpr uint32_t kMost = 32;
  /// Values that lanes exchange. Exchanges use the two halves alternately: a fast lane writes to one
  /// half while slow lanes still read the other. It writes to that one again only after all lanes
  /// have come to the exchange between.
  std::atomic<uint32_t> words[2][kMost][gpu::kLanes];

 private:
  std::atomic<uint64_t> come_{0};
  std::barrier<> shared_{gpu::kLanes};
};

/// A warp as one of its lanes sees it.
class LaneWarp {
 public:
  template <typename T>
  struct Own {
    T value;
    T& operator()(uint32_t) { return value; }
    const T& operator()(uint32_t) const { return value; }
  };

  LaneWarp(Meeting& meeting, uint32_t lane) : meeting_(meeting), lane_(lane) {}

  template <typename Work>
  void each(const Work& work) {
    work(lane_);
  }
  template <typename T>
  Own<T> exchange(const Own<T>& own, uint32_t step) {
    return take(own, Own<uint32_t>{lane_ ^ step});
  }
  template <typename T, uint32_t n>
  Own<gpu::Array<T, n>> exchange(const Own<gpu::Array<T, n>>& own, uint32_t step) {
    Own<gpu::Array<T, n>> others;
    from<n>(&own.value[0], lane_ ^ step, &others.value[0]);
    return others;
  }
  template <typename T>
  Own<T> take(const Own<T>& own, const Own<uint32_t>& lane) {
    Own<T> other;
    from<1>(&own.value, lane.value % gpu::kLanes, &other.value);
    return other;
  }
  void share() { meeting_.share(); }

 private:
  template <uint32_t n, typename T>
  void from(const T* values, uint32_t lane, T* others) {
    static_assert(n <= Meeting::kMost);
    auto& words = meeting_.words[turn_];
    turn_ ^= 1;
    for (uint32_t i = 0; i < n; ++i) {
      words[i][lane_].store(std::bit_cast<uint32_t>(values[i]), kGive);
    }
    meeting_.meet(come_);
    for (uint32_t i = 0; i < n; ++i) others[i] = std::bit_cast<T>(words[i][lane].load(kTake));
  }

  Meeting& meeting_;
  const uint32_t lane_;
  uint64_t come_ = 0;
  uint32_t turn_ = 0;
};

/// A launch of two warps at a time, with memory that holds no zeros at first.
struct OnThreads {
  template <typename Family, typename Call, typename Work>
  static void launch(const Call& call, const Work& work) {
    struct Warp {
      Warp() { std::memset(static_cast<void*>(&memory), 0xff, sizeof memory); }
      Meeting meeting;
      typename Family::Memory memory;
    };
    constexpr uint32_t kWarps = 2;
    const auto warps = std::make_unique<Warp[]>(kWarps);
    const uint64_t items = call.table.tiles << call.table.split;
    std::vector<std::thread> threads;
    for (uint32_t number = 0; number < kWarps * gpu::kLanes; ++number) {
      threads.emplace_back([&, number] {
        Warp& own = warps[number / gpu::kLanes];
        LaneWarp warp(own.meeting, number % gpu::kLanes);
        for (uint64_t i = number / gpu::kLanes; i < items; i += kWarps) {
          work(warp, own.memory, call, i);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

}  // namespace cgx::native
