// Decides when a collective is given up because the process of a peer has ended.
//
// A rank that waits for the dead peer itself gets an error from the communicator at once. This
// class is for a rank that waits for a live peer, which may never come because it waits for the
// dead one. The watch looks at intervals. A peer that is slow or stopped has not ended and is not
// concerned.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>

namespace cgx {

/// Used by one thread only.
class CallPatience {
 public:
  using Clock = std::chrono::steady_clock;

  /// Time that a call may go on after the end of a peer's process was seen: messages that the peer
  /// has sent before may still be on their way. A call of the engine goes on for as long as bytes
  /// move.
  static constexpr std::chrono::milliseconds kAfterPeerEnded{250};

  /// A look at a group that has calls under way. moved: bytes that its engine has sent and received
  /// so far.
  void look(Clock::time_point now, uint64_t moved) {
    if (std::exchange(moved_, moved) != moved) last_move_ = now;
  }

  /// True if no bytes have moved for `time`.
  bool quiet(Clock::time_point now, std::chrono::milliseconds time) const {
    return now - last_move_ >= time;
  }

  /// ended: a peer of the oldest collective has ended before it had done its part. engine: it runs
  /// on the engine. True: it is to be given up.
  bool exhausted(Clock::time_point now, bool ended, bool engine) {
    if (!ended) {
      peer_ended_ = {};
      return false;
    }
    if (peer_ended_ == Clock::time_point{}) peer_ended_ = now;
    return now - peer_ended_ >= kAfterPeerEnded && (!engine || quiet(now, kAfterPeerEnded));
  }

  /// No call is under way.
  void rest() { peer_ended_ = {}; }

 private:
  uint64_t moved_ = 0;
  Clock::time_point peer_ended_{}, last_move_{};
};

}  // namespace cgx
