// A communicator of GPUs by way of pinned host memory: for GPUs that cannot open each other's
// memory, and between hosts.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "device/queue.h"

namespace cgx {

/// A communicator of a GPU that copies messages to and from `host`, which handles headers, lengths,
/// deadlines and failures. post() waits until the device has written what is sent; received
/// messages are copied to the device in the order of the stream. `queue` outlives the result.
std::unique_ptr<Communicator> make_staged(const device::Queue& queue,
                                          std::unique_ptr<Communicator> host);

}  // namespace cgx
