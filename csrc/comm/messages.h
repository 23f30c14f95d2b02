// Messages between the ranks of one group: what reducers need of a communicator.
//
// Messages are sent in exchanges. In one exchange a rank sends at most one message to every peer:
//
//     comm.begin_call();                          // optional, see there
//     comm.expect(peer, bytes);                   // a message will come (receives may start)
//     comm.open(bytes_to, buffers, deadline);     // borrow memory for my next messages
//     ... write them ...
//     comm.post(deadline);                        // hand them over, and the memory with them
//     for each peer that sends to me, in any order:
//       Message m = comm.receive(peer, deadline); // shown in place where the communicator can
//       ... read it ...
//       comm.release(peer);
//
// Contract
// - Ordered pairs are FIFO: receive(p) shows the messages of p to me in the order in which p posted
//   them. There is no matching by tag: the plan defines for sender and receiver which exchange
//   carries which messages.
// - A message of 0 bytes is not sent: the receiver must not call receive() for it.
// - A rank may post in_flight() exchanges (at least 2) before its peers have released the messages
//   of the oldest one; open() waits for that. So ranks that all post first and receive afterwards
//   do not block each other.
// - All bytes of one exchange, over all receivers (a broadcast counts once), fit into capacity();
//   more is a ConfigError. make_room() raises the capacity of the calling rank.
// - The sender may read (not write) its posted messages until it has opened in_flight() - 1 more
//   exchanges and opens the next.
// - Lent memory is aligned so that (buffer + kPayloadOffset) is 64-byte aligned.
// - Communicators of a GPU (on_device()) lend and show memory of the device; what is written there
//   and read there is work on the communicator's stream. The first kPayloadOffset bytes of such a
//   message lie in host memory: header_of() and Message::header.
// - Every wait ends, and errors break the communicator: see communicator.h.
// Thread-safety: one thread sends and receives.
#pragma once

#include <cstddef>
#include <vector>

#include "base/deadline.h"

namespace cgx {

struct Message {
  const std::byte* data = nullptr;
  size_t bytes = 0;
  /// If `data` is device memory: host memory with the first bytes.
  const std::byte* shadow = nullptr;

  const std::byte* header() const { return shadow != nullptr ? shadow : data; }
};

class Messages {
 public:
  /// Payloads start this many bytes into a message (the reducer's header stands before them).
  static constexpr size_t kPayloadOffset = 56;

  virtual ~Messages() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Short name for errors, logs and statistics: "shm", "gloo", "in-process".
  virtual const char* name() const = 0;

  /// Bytes that one exchange may carry.
  virtual size_t capacity() const = 0;

  /// The largest capacity that make_room() can make.
  virtual size_t longest() const { return capacity(); }

  /// Makes the capacity at least `bytes`, at most longest(). Memory is allocated when an exchange
  /// of that size is opened, which may raise ResourceError. Messages of peers may be longer than
  /// the capacity here, except over a communicator that announces lengths.
  virtual void make_room(size_t bytes) = 0;

  /// Exchanges that may be under way at once; at least 2.
  virtual int in_flight() const { return 2; }

  /// True if the length of a message travels with it, because receivers must make room before the
  /// message can come. After begin_call() only the first message of each pair is announced.
  virtual bool announces() const { return false; }

  /// True if a message longer than expected can never land in the posted buffer. Then all messages
  /// of a call may be expected right after begin_call(), before the reader has seen that the sender
  /// is in the same call.
  virtual bool matches_lengths() const { return false; }

  /// Bytes that the communicator adds to an announced message on the wire (0 for shared memory).
  virtual size_t frame_bytes() const { return 0; }

  /// True if messages lie in memory of a GPU.
  virtual bool on_device() const { return false; }

  /// True if messages have a header; without one, mismatched calls go undetected, and peek()
  /// throws.
  virtual bool has_headers() const { return true; }

  /// True if every exchange is one collective of all ranks. Then all ranks post equally often, also
  /// where they send nothing, and number k of a call is the same for all; expect() is called for
  /// every message of a call, in the order of the exchanges, also for messages of 0 bytes.
  virtual bool lockstep() const { return false; }

  /// Host memory where the first kPayloadOffset bytes of a lent message are written, between open()
  /// and post().
  virtual std::byte* header_of(std::byte* message) { return message; }

  /// True if messages pass through host memory, so that their bytes can be inspected.
  virtual bool through_host() const { return true; }

  /// Only if messages pass through the host: copies a message that was written into lent memory of
  /// a device to header_of(), which then has the whole message.
  virtual void fetch(const Deadline& deadline) { (void)deadline; }

  /// Bytes of host memory that this rank holds for messages, sent and received, apart from memory
  /// that ranks share. From any thread.
  virtual size_t staging_bytes() const { return 0; }

  /// Begins, on all ranks, a sequence of messages of known lengths. From here on only the first
  /// message of each ordered pair is announced; before the first begin_call() all are.
  virtual void begin_call() {}

  /// The next message of `peer` that was not expected yet will have `bytes` bytes.
  /// Announced messages need no expect() (0: length not known); where the length is given in a call
  /// and matches_lengths(), receive() of a message of another length throws MismatchError.
  /// All other messages need it, in the order in which they come. Unless matches_lengths(), the
  /// reader must have looked at the first message of the call before (peek), and so know that the
  /// sender is in the same call and agrees on all lengths.
  virtual void expect(int peer, size_t bytes) {
    (void)peer;
    (void)bytes;
  }

  /// Borrows memory for the next exchange: bytes_to[p] bytes for rank p, bytes_to[rank()] is 0.
  /// Fills buffers[p] (nullptr where bytes_to[p] is 0).
  virtual void open(const std::vector<size_t>& bytes_to, std::vector<std::byte*>& buffers,
                    const Deadline& deadline) = 0;

  /// Borrows memory for an exchange in which every peer gets the same message.
  virtual std::byte* open_broadcast(size_t bytes, const Deadline& deadline) = 0;

  /// Sends the opened messages. Does not wait for the receivers.
  virtual void post(const Deadline& deadline) = 0;

  /// Waits until all posted messages have left this rank, so that they arrive even if this rank's
  /// process ends next. Does nothing where messages lie in memory that outlives the sender.
  virtual void flush(const Deadline& deadline) { (void)deadline; }

  /// Waits for the next message from `peer`. It stays valid until release(peer). One message per
  /// peer is shown at a time.
  virtual Message receive(int peer, const Deadline& deadline) = 0;

  /// Waits for the beginning of the next message from `peer` and shows it: at least kPayloadOffset
  /// bytes, or the whole of a shorter message. receive() still follows. So a reader can reject a
  /// message whose rest will never arrive.
  virtual Message peek(int peer, const Deadline& deadline) = 0;

  virtual void release(int peer) = 0;
};

}  // namespace cgx
