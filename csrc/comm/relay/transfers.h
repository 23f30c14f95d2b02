// What a relay has under way: its own messages, and those of its peers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "comm/relay/memory.h"
#include "comm/relay/point_to_point.h"

namespace cgx::relay {

/// Messages of one peer that travel or are read at once: a pipelined reducer reads one while two
/// kinds of two later rounds are on their way.
inline constexpr size_t kLanes = 6;

/// The messages of one exchange of this rank.
struct ChunkToSend {
  struct Part {
    int peer;
    size_t offset;
    size_t bytes;
  };
  struct Send {
    int peer;
    std::unique_ptr<Pending> pending;
  };
  RelayBlock block;
  std::vector<Part> parts;
  std::vector<Send> sends;
};

/// One incoming message.
struct Lane {
  RelayBlock block;
  bool announced = true;
  size_t promise = 0;  // of an announced one: the length that the reader believes in; 0: none
  std::unique_ptr<Pending> first;  // the first frame, or the whole of a message not announced
  std::unique_ptr<Pending> rest;   // null: the message came whole in `first`
  size_t bytes = 0;

  /// There is a beginning to look at, but the rest will not come here.
  bool broken() const { return promise != 0 && bytes != 0 && promise != bytes; }
  Pending* last() const { return rest ? rest.get() : first.get(); }
};

/// What begin_call() resets.
struct InCall {
  bool sent = false;
  bool expected = false;
};

/// A message that will come, and whether its length comes with it (and is known all the same).
struct Expected {
  size_t bytes;
  bool announced;
  bool promised;

  bool known() const { return !announced || promised; }
};

/// What comes from one peer. Numbers of messages: started >= measured >= taken >= released.
struct Peer {
  Lane lanes[kLanes];
  std::deque<Expected> expected;  // those that are not started
  uint64_t started = 0;           // its receive is posted
  uint64_t measured = 0;          // length known, receive of the rest posted
  uint64_t taken = 0;             // shown to the reader
  uint64_t released = 0;
  uint64_t unknown = 0;  // announced ones without a promise that are started and not measured
  InCall call;
  Lane& lane(uint64_t number) { return lanes[number % kLanes]; }
};

}  // namespace cgx::relay
