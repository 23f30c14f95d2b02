// Sends and receives under way over MPI, and the state that all transfers of a group share.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "comm/failure.h"

namespace cgx {

/// One group's transfers: a bell that rings at each end, and the reason why all of them must end.
/// Thread-safe.
class MpiChannel {
 public:
  /// Sets the reason why all transfers must end, and rings. Only the first reason is kept: true if
  /// it is this one.
  bool abort(const std::string& reason);
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  std::string reason() const;

  void ring();
  /// Changes with every ring.
  uint32_t rung() const { return rung_.load(std::memory_order_acquire); }
  /// Sleeps until the bell has rung since `seen` was read, at most `limit`.
  void sleep(uint32_t seen, std::chrono::nanoseconds limit);

 private:
  std::atomic<uint32_t> rung_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> aborted_{false};
  mutable std::mutex mutex_;
  std::string reason_;
};

/// A message on its way, of one or more parts. Made by the thread that posts it, ended by the
/// progress thread.
struct MpiTransfer {
  enum State : uint32_t { kUnderWay, kDone, kFailed };

  std::shared_ptr<MpiChannel> channel;
  /// Owner of the memory: alive as long as MPI may use it.
  std::shared_ptr<void> keep;
  bool receiving = false;
  /// No thread waits for it: it alone does not keep the progress thread busy.
  bool background = false;
  /// So long that MPI moves it in several steps.
  bool bulk = false;
  /// Runs on the progress thread when the message is there.
  std::function<void()> then;

  std::atomic<uint32_t> state{kUnderWay};
  /// Written before `state` becomes kFailed.
  Failure failure;
  /// The transfer shall end without a message (receives only).
  std::atomic<bool> cancel{false};
  /// Number of parts that have not ended. Used only by the thread that tests the requests.
  int parts = 0;
};

}  // namespace cgx
