// Bytes on a GPU over a backend of torch whose collectives follow streams (ProcessGroupNCCL).
#pragma once

#include <c10/core/Stream.h>

#include <memory>

#include "backend/adapters/torch_types.h"
#include "comm/gpu/lockstep.h"

namespace cgx {

/// `stream`: of the queue that the communicator works on. `name`: "nccl".
std::unique_ptr<ByteCollectives> make_byte_collectives(BackendPtr backend, c10::Stream stream,
                                                       const char* name);

}  // namespace cgx
