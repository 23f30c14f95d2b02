// The sending half of a relay: lends memory for the messages of one exchange and sends them so
// that the receiver can take each transfer without a question.
//
// Contract: as Communicator's open(), open_broadcast(), post() and flush(). kExchanges exchanges
// travel at once; opening another one waits for the sends of the oldest, and messages that come
// meanwhile are received.
// Errors: as GuardedLibrary; ConfigError for calls out of order.
// Thread-safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/deadline.h"
#include "comm/relay/guarded_library.h"
#include "comm/relay/memory.h"
#include "comm/relay/receiver.h"

namespace cgx::relay {

inline constexpr int kExchanges = 4;

class Sender {
 public:
  /// receiver: takes messages while this one waits.
  Sender(GuardedLibrary& library, RelayPool& pool, Receiver& receiver);

  void begin_call();
  /// The arguments must have been checked (arguments.h).
  void open(const std::vector<size_t>& bytes_to, std::vector<std::byte*>& buffers,
            const Deadline& deadline);
  std::byte* open_broadcast(size_t bytes, const Deadline& deadline);
  void post();
  void flush(const Deadline& deadline);

  /// Drops all sends; returns whether any was still under way.
  bool cancel();
  /// Keeps the memory of cancelled sends for the life of the process.
  void abandon();

 private:
  /// The messages of one exchange: their places in memory, and the sends under way.
  struct OutgoingExchange {
    struct PeerMessage {
      int peer;
      size_t offset;
      size_t bytes;
    };
    struct Send {
      int peer;
      std::unique_ptr<Pending> pending;
    };
    RelayBuffer buffer;
    std::vector<PeerMessage> messages;
    std::vector<Send> sends;
  };

  /// The order of sends: if all ranks keep it, no two send to the same one at once.
  int nth_peer(int step) const { return (library_.rank() + step) % library_.size(); }
  OutgoingExchange& begin_exchange(const Deadline& deadline);
  void finish_sends(OutgoingExchange& out, const Deadline& deadline);

  GuardedLibrary& library_;
  RelayPool& pool_;
  Receiver& receiver_;
  OutgoingExchange exchanges_[kExchanges];
  std::vector<bool> sent_in_call_;  // by rank
  uint64_t exchange_ = 0;
  bool open_ = false;
};

}  // namespace cgx::relay
