// One side of a message: a send or a receive.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "comm/failure.h"

namespace cgx {

/// Both sides must have the same. `type` is a number of the caller's.
struct MailShape {
  uint32_t type = 0;
  uint64_t values = 0;
  uint64_t bytes = 0;

  bool operator==(const MailShape&) const = default;
};

class MailTransfer : public std::enable_shared_from_this<MailTransfer> {
 public:
  enum class Way : uint8_t { kSend, kReceive };
  static constexpr int kAnyRank = -1;

  /// `data`: of shape.bytes bytes, which a send only reads; it must live until over(). `peer`:
  /// kAnyRank for a receive from whoever sends first.
  MailTransfer(Way way, int peer, int tag, const MailShape& shape, std::byte* data)
      : way(way), peer(peer), tag(tag), shape(shape), data(data), source_(peer) {}
  virtual ~MailTransfer() = default;
  MailTransfer(const MailTransfer&) = delete;
  MailTransfer& operator=(const MailTransfer&) = delete;

  const Way way;
  const int peer, tag;
  const MailShape shape;
  std::byte* const data;

  /// From any thread.
  bool over() const { return over_.load(std::memory_order_acquire); }
  uint64_t moved() const { return moved_.load(std::memory_order_relaxed); }
  /// kAnyRank: not known yet.
  int source() const { return source_.load(std::memory_order_relaxed); }
  /// Once it is over; none: all bytes have been moved.
  const std::optional<Failure>& failure() const { return failure_; }

  /// Called once when it is over, on any thread, without locks. Must not throw.
  virtual void ended() {}

  // For Mail.
  using Clock = std::chrono::steady_clock;
  Clock::time_point since{};  // it was posted
  void matched(int source) { source_.store(source, std::memory_order_relaxed); }
  void count(uint64_t bytes) { moved_.store(moved() + bytes, std::memory_order_relaxed); }
  void end(std::optional<Failure> failure) {
    failure_ = std::move(failure);
    over_.store(true, std::memory_order_release);
  }

 private:
  std::atomic<int> source_;
  std::atomic<uint64_t> moved_{0};
  std::atomic<bool> over_{false};
  std::optional<Failure> failure_;
};

using MailTransferPtr = std::shared_ptr<MailTransfer>;

}  // namespace cgx
