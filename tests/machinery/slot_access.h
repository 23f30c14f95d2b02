// What a peer that scribbles over the shared memory could write there.
#pragma once

#include <chrono>
#include <cstdint>

#include "comm/shm/slots.h"

namespace cgx {

struct SlotExchangeTestAccess {
  static PairSent& sent(SlotExchange& comm, int to) { return comm.memory_.sent(comm.rank_, to); }
  static PairSeen& seen(SlotExchange& comm, int from) {
    return comm.memory_.seen(comm.rank_, from);
  }
  static SlotHeader& header(SlotExchange& comm) { return comm.memory_.header(); }
  static void set_bell(SlotExchange& comm, uint32_t value) {
    comm.memory_.rank(comm.rank_).bell.store(value);
  }
  /// How long the next wait spins, at most, after sleeps that ended so long after their start.
  static std::chrono::nanoseconds spin_after(SlotExchange& comm, std::chrono::nanoseconds waited,
                                             int times) {
    for (int i = 0; i < times; ++i) comm.slept(waited);
    return comm.spin_;
  }
  static std::chrono::nanoseconds spin_limit(SlotExchange& comm) { return comm.spin_limit_; }
  /// The next message to `to`, as it would be after post().
  static void announce(SlotExchange& comm, int to, uint64_t offset, uint64_t bytes,
                       uint64_t posted) {
    PairSent& pair = sent(comm, to);
    for (PairSent::Posted& entry : pair.ring) {
      entry.offset = offset;
      entry.bytes = bytes;
    }
    pair.posted = posted;
  }
};

}  // namespace cgx
