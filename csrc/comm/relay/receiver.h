// The receiving half of a relay: posts receives as early as the lengths of messages are known,
// finds the true length of each message, and shows messages to the reader in order.
//
// Contract: as Communicator's expect(), peek(), receive() and release(). Messages of one peer go
// through four states, each in order: expected, started (a receive is posted), measured (the length
// is known, and the receive of the rest posted), taken (shown to the reader). advance() moves them
// on and never waits; every wait of the relay, for a send as well, moves the messages of all peers
// on meanwhile.
// Where receives may stay posted (PointToPoint::lets_go()), a peer from which a call's first message
// has come has a receive of its next one standing: Gloo sends at once only what it knows a receive
// of, and the word of the receive takes as long as the message.
// Errors: MismatchError for a length that is not allowed or not the expected one; ConfigError for
// calls out of order; all others as GuardedLibrary.
// Thread-safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/deadline.h"
#include "comm/messages.h"
#include "comm/relay/guarded_library.h"
#include "comm/relay/memory.h"

namespace cgx::relay {

/// Messages of one peer that are pending or being read at a time: a pipelined reducer reads one
/// while two kinds of two later rounds travel.
inline constexpr size_t kIncoming = 6;

class Receiver {
 public:
  Receiver(GuardedLibrary& library, RelayPool& pool);

  void begin_call();
  void expect(int peer, size_t bytes);
  Message peek(int peer, const Deadline& deadline);
  Message receive(int peer, const Deadline& deadline);
  void release(int peer);

  /// Posts the receives from `peer` that are due. Never waits.
  void advance(int peer);

  /// Waits for a transfer with `peer` of any kind. `blocker` moves that transfer on and returns
  /// the library's transfer that it still waits for, null at its end. TimeoutError at the deadline.
  template <typename Blocker>
  void wait_for(int peer, const char* what, const Deadline& deadline, Blocker blocker);

  /// Drops all receives; returns whether any was still under way.
  bool cancel();
  /// Keeps the memory of cancelled receives for the life of the process.
  void abandon();

 private:
  /// One incoming message.
  struct IncomingMessage {
    RelayBuffer buffer;
    RelayBuffer beginning;  // the first frame lies here, until it has come
    bool announced = true;
    size_t promise = 0;  // of an announced one: the length that the reader expects; 0: none
    std::unique_ptr<Pending> first;  // the first frame, or the whole of a message not announced
    std::unique_ptr<Pending> rest;   // null: the message came whole in `first`
    size_t bytes = 0;

    /// The beginning has come, but the rest will never match the receive that is posted for it.
    bool mismatched() const { return promise != 0 && bytes != 0 && promise != bytes; }
    Pending* last() const { return rest ? rest.get() : first.get(); }
  };

  /// An expected message, and whether it announces its length (which may be known already).
  struct Expected {
    size_t bytes;
    bool announced;
    bool promised;

    bool known() const { return !announced || promised; }
  };

  /// Messages of one peer, counted: started >= measured >= taken >= released.
  struct Source {
    IncomingMessage messages[kIncoming];
    std::deque<Expected> expected;  // messages that are not started
    uint64_t started = 0;
    uint64_t measured = 0;
    uint64_t taken = 0;
    uint64_t released = 0;
    uint64_t unknown = 0;  // announced without a promise, started and not measured
    bool expected_in_call = false;
    RelayBuffer standing_buffer;
    std::unique_ptr<Pending> standing;  // receive of the next first frame
    IncomingMessage& message(uint64_t number) { return messages[number % kIncoming]; }
  };

  struct Wait {
    int peer;
    const char* what;
    const Deadline& deadline;
    Deadline started;
  };

  /// The next message of `peer` that the reader has not taken; the last one must be released.
  Source& next_of(int peer, const char* call);
  /// Makes sure that the next message that the reader has not taken is expected.
  void need_next(int peer);
  void start_receive(int peer);
  /// Posts the receive of the first frame of a later call.
  void stand(int peer);
  /// Puts a first frame that has come in front of the rest.
  void join(IncomingMessage& message);
  void measure(int peer, IncomingMessage& message);
  void start_rests(const Deadline& deadline);
  bool advance_others(int peer);
  void wait_once(Pending& pending, const Wait& wait, bool polls, int round);

  GuardedLibrary& library_;
  RelayPool& pool_;
  const bool stands_;
  std::vector<Source> sources_;  // by rank
};

template <typename Blocker>
void Receiver::wait_for(int peer, const char* what, const Deadline& deadline, Blocker blocker) {
  const Wait wait{peer, what, deadline, Deadline()};
  for (int round = 0;; ++round) {
    library_.check_usable();
    const bool others = library_.point_to_point().can_poll() && advance_others(peer);
    Pending* pending = blocker();
    if (pending == nullptr) return;
    wait_once(*pending, wait, others, round);
  }
}

}  // namespace cgx::relay
