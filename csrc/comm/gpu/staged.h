// Carries memory of a GPU by way of pinned host memory: between GPUs without a way of their own,
// and over communicators of the host.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "device/queue.h"

namespace cgx {

/// Heads, lengths, deadlines and failures are those of `host`. post() waits until the device has
/// written what is sent; received messages are copied to the device in the order of the stream.
/// `queue` outlives the result.
std::unique_ptr<Communicator> make_staged(const device::Queue& queue,
                                          std::unique_ptr<Communicator> host);

}  // namespace cgx
