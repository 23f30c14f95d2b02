// What a peer that scribbles over the shared memory could write there.
#pragma once

#include <cstdint>

#include "comm/slots.h"

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
  /// The next message to `to`, as it would be after post().
  static void announce(SlotExchange& comm, int to, uint64_t offset, uint64_t bytes,
                       uint64_t posted) {
    PairSent& pair = sent(comm, to);
    for (PairSent::Entry& entry : pair.ring) {
      entry.offset = offset;
      entry.bytes = bytes;
    }
    pair.posted = posted;
  }
};

}  // namespace cgx
