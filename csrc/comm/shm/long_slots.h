// Memory of messages of the SHM communicator that are too long for a slot: in the same file, behind
// all slots. Each slot of each rank has a place of its own there, most of which is a hole.
#pragma once

#include <memory>

#include "comm/shm/area.h"
#include "comm/shm/slots.h"

namespace cgx {

/// Where in the file things lie that most groups do not have. Memory that is not used is a hole.
struct AreaPlaces {
  explicit AreaPlaces(const SlotLayout& layout);

  size_t full;          // bytes of a place of long messages up to the capacity
  size_t begin;         // of these places
  size_t rings;         // of the rings of messages (mail/memory.h), by sender and receiver
  size_t ring_stride;   // bytes
  size_t longer_begin;  // of the places of longer messages
};

std::unique_ptr<LongSlots> make_shm_long_slots(std::shared_ptr<ShmArea> area,
                                               const SlotLayout& layout, int rank);

}  // namespace cgx
