// Decides when the calls that Gloo runs are given up because a connection has broken.
//
// Gloo loses the error of a transfer that is under way when its connection breaks, so the call would
// wait until its timeout. But a peer that has done its part may leave while the others go on: it
// says so in the store (ErrorStore::leave) before it closes its connections, and is no loss.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "backend/work/call_record.h"

namespace cgx {

/// Used by one thread only.
class ConnectionWatch {
 public:
  using Clock = std::chrono::steady_clock;

  /// How long a call may go on after a connection that it may need was seen broken: the transfer may
  /// have ended well, and the thread that waits for it not run since; and the store has this time to
  /// say whether the peer has left.
  static constexpr std::chrono::milliseconds kPatience{700};

  struct Lost {
    int peer;
    std::string why;
    CallRecordPtr call;
  };

  /// A look at the calls under way. `broken`: what has broken the connection to a rank, or empty.
  std::optional<Lost> look(const std::vector<CallRecordPtr>& calls, int rank, int size,
                           const std::function<std::string(int)>& broken, Clock::time_point now);
  /// Peers with broken connections that are not known to have left.
  std::vector<int> in_question() const;
  /// The peer has left after it had done its part.
  void left(int peer);
  /// No call is under way.
  void rest() { peers_.clear(); }

 private:
  struct Peer {
    int rank;
    Clock::time_point since;
    bool left;
  };
  std::vector<Peer> peers_;  // whose connections are broken
};

}  // namespace cgx
