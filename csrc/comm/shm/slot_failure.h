// The first failure of a group, in the memory that its ranks share.
#pragma once

#include <functional>

#include "comm/failure.h"
#include "comm/shm/slot_memory.h"

namespace cgx {

/// False: another failure is the first. Wakes all ranks.
bool publish_failure(const SlotMemory& memory, int rank, const Failure& failure);

/// The failure that was published, as `rank` sees it; one is. `called`: the number of a rank in
/// errors.
Failure published_failure(const SlotMemory& memory, int rank,
                          const std::function<int(int)>& called);

}  // namespace cgx
