// The SHM communicator of GPUs: ranks of one host that open each other's device memory.
//
// Encoders write messages straight into the receiver's memory (a broadcast is written once and
// copied to every peer). A small communicator of the host (`control`) carries the headers and says
// in which order things were put on the streams; events that processes share order the streams
// themselves:
//
//   sender                                     receiver
//   control.open: the slot was released
//   wait for the receiver's event `consumed`
//   ... encode ...
//   record `ready`, control.post      --->     control.receive, wait for `ready`
//                                              ... decode ...
//                                     <---     record `consumed`, control.release
//
// No thread waits for a device.
//
// A communicator that ends tells its peers, over `control`, that it has closed their memory, and
// frees its own when all have said so. Where one has not within half a second, or the group has
// failed, the memory is kept until the process ends (ipc_memory.h).
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/gpu/ipc_memory.h"
#include "comm/rendezvous.h"
#include "device/queue.h"

namespace cgx {

/// Room that a message needs in `control`.
inline constexpr size_t kIpcControlBytes = Messages::kPayloadOffset + 16;

/// Collective. Each rank allocates in_flight() * (size + 1) * capacity bytes of device memory.
/// Null, on all ranks, if one of them cannot open another's memory: `why_not` names both and the
/// reason, and the caller keeps `control`. `queue` outlives the result. Writes to `log`
/// how much memory stays allocated at the end, if any does. TimeoutError: a rank is missing.
std::unique_ptr<Communicator> make_gpu_ipc(const device::Queue& queue,
                                           std::unique_ptr<Communicator>& control,
                                           Rendezvous& rendezvous, size_t capacity,
                                           const Deadline& deadline, std::string& why_not,
                                           IpcLog log = nullptr);

}  // namespace cgx
