// Direct transfers: values go from the tensor of one rank to the tensor of another, beside the
// exchanges of messages.h, without a copy. They have no headers: before it receives into a tensor,
// the reader must know by a message of the call that the sender is in the same call; else it must
// give room of its own. Transfers of one pair and lane match in the order in which both sides start
// them.
//
// Thread-safety: as messages, and on their thread.
#pragma once

#include <cstddef>
#include <memory>

#include "base/deadline.h"
#include "comm/pending.h"

namespace cgx {

class DirectTransfers {
 public:
  virtual ~DirectTransfers() = default;

  /// True if there are direct transfers.
  virtual bool direct() const { return false; }

  /// Lanes of direct transfers.
  static constexpr int kDirectLanes = 2;

  /// Size of the buffer for a receive of `bytes` bytes while the sender may be in another call: no
  /// message longer than this buffer matches the receive.
  virtual size_t direct_room(size_t bytes) const { return bytes; }

  /// Starts sending `bytes` bytes, from 1 on, which stay there unchanged until the transfer has
  /// ended or was destroyed. Never waits.
  virtual std::unique_ptr<Pending> send_from(int peer, int lane, const std::byte* data,
                                             size_t bytes) = 0;

  /// Starts receiving `bytes` bytes, from 1 on. room: size of the buffer at `data`,
  /// direct_room(bytes), or `bytes` if the sender is known to be in the same call. The buffer is
  /// written until the transfer has ended or was destroyed. Never waits.
  virtual std::unique_ptr<Pending> receive_into(int peer, int lane, std::byte* data, size_t bytes,
                                                size_t room) = 0;

  /// Waits for the end of a direct transfer with `peer`. Raises what receive() raises.
  virtual void finish(Pending& transfer, int peer, const Deadline& deadline) = 0;
};

}  // namespace cgx
