// Communicators between ranks that are threads of one process: for tests of the reducers and for
// the N-rank simulator.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace cgx {

/// One communicator per rank, over common heap memory that lives until the last of them is
/// destroyed. Pages are touched when they are used, so a large group with large slots costs little
/// until then. `slot_bytes` is capacity(), `slots` is in_flight(). Errors: ConfigError (size or
/// slot_bytes below 1, slots outside of 2 to kMaxSlots), ResourceError (no address space).
std::vector<std::unique_ptr<Communicator>> make_in_process_group(int size, size_t slot_bytes,
                                                                 int slots = 2);

}  // namespace cgx
