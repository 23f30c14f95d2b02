// A message library over in-process queues, for the tests of the relay. Stricter than real ones: it
// checks that no message is longer than its receive, hands data over only when the receiver looks,
// and can misbehave on request.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "comm/relay/point_to_point.h"

namespace cgx {

/// Thread-safety: all methods may be called concurrently.
class MockNetwork {
 public:
  explicit MockNetwork(int size);

  /// The library as `rank` sees it. Destroying it ends the transfers of its peers with
  /// PeerLostError.
  std::shared_ptr<PointToPoint> endpoint(int rank);

  /// Transfers end up to `longest` after both sides have met, in no particular order.
  void set_delay(std::chrono::microseconds longest, uint64_t seed);

  /// done() stays false until wait() has returned, and can_poll() is false, as in gloo.
  void set_lazy(bool lazy);

  /// How many tags it takes, before an endpoint is used: many, unless this says otherwise.
  void set_tags(int tags);

  /// The next message with tag 0 that `rank` sends carries `length` in its first 8 bytes.
  void forge_length(int rank, uint64_t length);

  /// Everything that `rank` starts after `operations` more sends and receives fails with
  /// PeerLostError, here and there.
  void fail_after(int rank, int operations);

  /// Breaks the connections of `rank` without an error: sends and receives that are not matched yet
  /// wait until abort(). broken() returns the cause.
  void break_silently(int rank);

  /// Messages that were longer than their receive; real libraries kill the process.
  int overruns() const;

  /// Receives of `rank` that no message has met yet.
  int receives(int rank) const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace cgx
