// Interface of a message library that a communicator can use: tagged sends and receives between
// pairs of ranks. comm/gloo implements it over ProcessGroupGloo, comm/mpi over MPI_Isend/Irecv.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "comm/pending.h"

namespace cgx {

/// Thread-safety: one thread calls send/receive; abort() and broken() come from any thread.
class PointToPoint {
 public:
  virtual ~PointToPoint() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// "gloo", "mpi", ...
  virtual const char* name() const = 0;
  /// True if Pending::done() becomes true without a wait(). ProcessGroupGloo's works learn only in
  /// wait() that they are done.
  virtual bool can_poll() const { return true; }
  /// True if a transfer that is destroyed before its end no longer touches its memory. Only then
  /// may it use memory that is not the library's own, as the tensors of a caller.
  virtual bool lets_go() const { return false; }
  /// Messages may have the tags 0 to tags() - 1, and receives of different tags never meet each
  /// other's messages.
  virtual int tags() const = 0;
  /// `data` must stay valid and unchanged until the send has ended.
  virtual std::unique_ptr<Pending> send(int peer, int tag, const std::byte* data, size_t bytes) = 0;
  /// Receives the next message of `peer` with this tag. The message may be shorter than `bytes`
  /// (the library does not report it); a longer one is undefined behaviour in some libraries, so
  /// the relay never lets it happen.
  virtual std::unique_ptr<Pending> receive(int peer, int tag, std::byte* data, size_t bytes) = 0;
  /// What has broken the connection to `peer`, so that no transfer with it can end well any more;
  /// empty: nothing is known. Never waits. For libraries whose waits may miss the end of a
  /// connection.
  virtual std::string broken(int peer) {
    (void)peer;
    return {};
  }
  /// Makes every wait, here and where the library can reach them on the peers, end with an error.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace cgx
