// Direct transfers between ranks that are threads of one process: whichever starts its side second
// copies.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/pending.h"

namespace cgx {

/// Shared by the ranks of one group. Thread-safe; a transfer belongs to the thread that started it.
class HandOver {
 public:
  explicit HandOver(int size);

  /// Same as in DirectTransfers, except that arguments are not checked; `rank` is the caller's. A
  /// message that is longer than its receive ends both with a MismatchError.
  std::unique_ptr<Pending> send_from(int rank, int peer, int lane, const std::byte* data,
                                     size_t bytes);
  std::unique_ptr<Pending> receive_into(int rank, int peer, int lane, std::byte* data, size_t room);

  /// `rank` has left: waits for a transfer with it raise PeerLostError.
  void leave(int rank);

  /// Waits at most so long for the end of a transfer that was started here.
  static bool ended_within(Pending& transfer, std::chrono::nanoseconds limit);

  struct RankPair;

 private:
  std::shared_ptr<RankPair> pair(int from, int to);

  std::mutex mutex_;                                                // guards the rest
  std::map<std::pair<int, int>, std::shared_ptr<RankPair>> pairs_;  // made at first use
  std::vector<bool> left_;                                          // by rank
};

}  // namespace cgx
