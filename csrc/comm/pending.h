// A pending send or receive.
#pragma once

#include "base/deadline.h"

namespace cgx {

/// Destroying it before it has ended must be safe: the memory it was given stays alive until the
/// PointToPoint itself is destroyed (the relay guarantees that), unless PointToPoint::lets_go().
class Pending {
 public:
  virtual ~Pending() = default;
  /// True after the end, with an error or without; wait() throws the error. Never blocks. Where
  /// PointToPoint::can_poll() is false, only true after wait().
  virtual bool done() = 0;
  /// Waits for the end; TimeoutError, PeerLostError or AbortedError otherwise. May be called again
  /// after success.
  virtual void wait(const Deadline& deadline) = 0;
};

}  // namespace cgx
