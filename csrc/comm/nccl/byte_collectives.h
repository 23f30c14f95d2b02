// Bytes on a GPU over a backend of torch whose collectives follow streams (ProcessGroupNCCL).
#pragma once

#include <c10/core/Stream.h>

#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/gpu/lockstep.h"

namespace cgx {

/// `stream`: of the queue that the communicator works on. `name`: "nccl".
std::unique_ptr<ByteCollectives> make_byte_collectives(c10::intrusive_ptr<c10d::Backend> backend,
                                                       c10::Stream stream, const char* name);

}  // namespace cgx
