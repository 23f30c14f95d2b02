// The connections of one Gloo backend, which a group's relays, its sends and receives and Gloo's own
// collectives share.
//
// Gloo has no call that returns the state of a connection, and loses the error of a transfer that is
// under way when its connection breaks. So each rank posts a sentinel per peer: a receive that no
// send matches, and that fails when the connection breaks.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace cgx {

/// Tags from here on are left to relays and to what watches connections; the users' sends and
/// receives over the same backend have those below.
inline constexpr int kGlooReservedTags = 1 << 18;
inline constexpr int kFirstGlooReservedTag = INT32_MAX - kGlooReservedTags + 1;

/// Thread-safe.
class GlooConnections {
 public:
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

  /// Posts the sentinels, of a backend of Gloo. Each sends the peer a small message, which would
  /// reset the connection of a peer that is leaving: to be made before any rank may leave.
  explicit GlooConnections(BackendPtr backend);

  const BackendPtr& backend() const { return backend_; }
  /// What has broken the connection to `peer`; empty: nothing is known. Never waits.
  std::string broken(int peer);
  /// Drops all connections, so that every wait on them, here and on the peers, ends: what Gloo
  /// itself does after a wait that timed out. It has no other way.
  void close();

 private:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  const BackendPtr backend_;
  std::mutex mutex_;  // guards what follows
  bool closed_ = false;
  std::vector<WorkPtr> sentinels_;  // by rank; null for this one, or where posting failed
  std::vector<std::string> broken_;
};

}  // namespace cgx
