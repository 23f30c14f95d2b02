// Creates the communicators and the engine of a group for the tensors of a GPU.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "backend/gpu/lane.h"
#include "backend/group_context.h"
#include "reduce/engine.h"

namespace cgx {

/// Collective over the group, whose ranks use `keys` once, and one device each. `host`: the group's
/// engine for tensors of the host. ConfigError: the configuration asks for what CUDA tensors cannot
/// have. ResourceError: no driver, or no kernels. MismatchError: another rank has failed.
std::unique_ptr<GpuLane> connect_gpu(const GroupContext& group, Engine& host, c10::Device device,
                                     const std::string& keys);

}  // namespace cgx
