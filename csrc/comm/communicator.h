// Contract of a communicator: moves messages between the ranks of one group.
//
// A communicator does not interpret messages. The receiver gets the true length of each message, so
// it detects a disagreement, and there is never an overrun.
//
// A communicator has three sides, and a caller takes the one that it needs:
//
//   Messages          messages.h           exchanges of messages: reducers
//   DirectTransfers   direct_transfers.h   values from tensor to tensor: exact all-reduces
//   Liveness          liveness.h           failures, dead peers, fingerprints: the watchdog
//
// Contract
// - Every wait ends: at the deadline (TimeoutError), with the end of a peer (PeerLostError), or
//   after abort() (AbortedError). Error texts name the rank that was waited for. After an error the
//   communicator is broken: all calls throw the first cause, on this rank and, as soon as they can
//   be reached, on the others.
// Thread-safety: one thread drives a communicator; abort() may be called from any thread at any
// time.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "comm/direct_transfers.h"
#include "comm/liveness.h"
#include "comm/mail/memory.h"
#include "comm/messages.h"

namespace cgx {

class Communicator : public Messages, public DirectTransfers, public Liveness {
 public:
  /// Sets the numbers of the ranks in errors: in a sub-group, their ranks in the whole group. Must
  /// be called before the first exchange; without it ranks have their own numbers.
  void call_ranks(std::vector<int> names) { names_ = std::move(names); }

  /// The memory of messages between the same ranks (mail/mail.h), which is independent of this
  /// object; null: they share none. Called once.
  virtual std::unique_ptr<MailMemory> mail() { return nullptr; }

  // Of a communicator whose capacity is fixed, and of one without direct transfers: ConfigError.
  void make_room(size_t bytes) override;
  std::unique_ptr<Pending> send_from(int peer, int lane, const std::byte* data,
                                     size_t bytes) override;
  std::unique_ptr<Pending> receive_into(int peer, int lane, std::byte* data, size_t bytes,
                                        size_t room) override;
  void finish(Pending& transfer, int peer, const Deadline& deadline) override;

 protected:
  /// The number of a rank in errors.
  int called(int rank) const {
    return static_cast<size_t>(rank) < names_.size() ? names_[static_cast<size_t>(rank)] : rank;
  }

 private:
  std::vector<int> names_;
};

}  // namespace cgx
