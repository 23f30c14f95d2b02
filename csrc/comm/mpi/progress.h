// Tests the requests of MPI, which moves messages only while it is called.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/mpi/api.h"
#include "comm/mpi/transfer.h"

namespace cgx {

/// The requests under way of one process. Thread-safe.
///
/// A thread that waits for a transfer calls help(), which tests all requests. Where none waits, the
/// thread in run() does: at once for a few microseconds after something has happened, then letting
/// other threads run in between, then with naps (nap_after). If no transfer is
/// waited for during a second, it looks only every 20 ms, and not at all once there are no
/// requests.
class MpiProgress {
 public:
  using Clock = std::chrono::steady_clock;

  explicit MpiProgress(const CgxMpiApi& api) : api_(api) {}

  /// Takes over the requests of a transfer: `transfer->parts` is their number.
  void submit(std::shared_ptr<MpiTransfer> transfer, const std::vector<uint64_t>& requests);
  /// Some transfer's `cancel` was set, or its channel was aborted.
  void cancel_marked();
  /// Notes the end of one part of a transfer that is not submitted.
  void end_part(MpiTransfer& transfer, const CgxMpiEnd& end) const;

  /// Tests all requests, unless another thread is just doing so; whether any has ended.
  bool help();

  void run();
  /// Ends run(): receives are cancelled; what does not end within a moment is abandoned, with its
  /// memory.
  void stop();

  /// Time to sleep between two looks when nothing has happened for `idle`: a twentieth of it,
  /// 50 us to 1 ms, and 50 us as long as bulk messages may be moving without an end of a part. A
  /// long wait costs little and ends with little delay.
  Clock::duration nap_after(Clock::duration idle) const;
  /// What to do before that, in the n-th look since something has happened: spin, then let other
  /// threads run. False when it is time to nap.
  static bool stay_awake(int n);

 private:
  struct WatchedRequest {
    std::shared_ptr<MpiTransfer> transfer;
    bool cancelled = false;  // MPI was asked to
  };

  // With poll_mutex_ held.
  bool look();
  bool take_news();
  void cancel_requests(bool all);
  bool poll();
  void drain();

  bool stopping();
  void pause(int& rounds);

  const CgxMpiApi& api_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<WatchedRequest> fresh_entries_;
  std::vector<uint64_t> fresh_requests_;
  bool cancel_seen_ = false;
  bool stopping_ = false;
  bool asleep_ = false;  // run(), for longer than the shortest nap

  std::mutex poll_mutex_;  // taken before mutex_
  std::vector<WatchedRequest> entries_;
  std::vector<uint64_t> requests_;  // of the entries with the same index
  std::vector<CgxMpiEnd> ends_;
  int foreground_ = 0;                     // entries that a thread waits for
  Clock::time_point last_ = Clock::now();  // when something happened
  Clock::time_point helped_{};             // when help() was last called
  bool ended_ = false;
  std::atomic<int> bulk_{0};  // entries of bulk messages
};

}  // namespace cgx
