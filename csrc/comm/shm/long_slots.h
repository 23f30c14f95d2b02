// Memory of messages of the SHM communicator that are too long for a slot: in the same file, behind
// all slots. Each slot of each rank has a place of its own there, most of which is a hole.
#pragma once

#include <memory>

#include "comm/shm/area.h"
#include "comm/shm/slots.h"

namespace cgx {

std::unique_ptr<LongSlots> make_shm_long_slots(std::shared_ptr<ShmArea> area,
                                               const SlotLayout& layout, int rank);

}  // namespace cgx
