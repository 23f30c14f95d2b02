// What watches over a communicator: how its waits end, and what is known of its peers.
//
// Thread-safety: all may be called from any thread at any time.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "comm/failure.h"
#include "comm/fingerprint.h"

namespace cgx {

class Liveness {
 public:
  virtual ~Liveness() = default;

  /// Unblocks every waiter, here and on the ranks that the communicator can reach: their errors
  /// have the kind and the text of the cause.
  virtual void abort(const Failure& cause) = 0;

  /// Aborts with PeerLostError if a wait goes on a second after the connection to the rank that it
  /// waits for has broken; the library may have lost the error. From any thread; to be called ten
  /// times a second while a call is under way.
  virtual void check_wait(std::chrono::steady_clock::time_point now) { (void)now; }

  // The following may be called from any thread at any time; they never wait.

  /// The cause if the communicator is broken, as far as it is known without waiting for a peer.
  virtual std::optional<Failure> failure() { return std::nullopt; }

  /// Publishes the fingerprint of the collective that this rank begins. Returns a peer's
  /// fingerprint for the same number if it differs. Of two ranks that disagree at least one gets
  /// the other's. Communicators without shared memory publish and return nothing.
  virtual std::optional<PeerFingerprint> compare_call(const Fingerprint& fingerprint) {
    (void)fingerprint;
    return std::nullopt;
  }

  /// The call of that number was not made after all.
  virtual void forget_call(uint64_t number) { (void)number; }

  /// This rank has done its part of the collective.
  virtual void finish_call(uint64_t number) { (void)number; }

  /// True if ended_peers() detects the end of every peer.
  virtual bool sees_ended() const { return false; }

  /// Peers whose process is known to have ended before it had done its part of the collective;
  /// number 0: peers whose process has ended.
  virtual std::vector<int> ended_peers(uint64_t number) {
    (void)number;
    return {};
  }
};

}  // namespace cgx
