// Creates the communicators and the engine of a group for the tensors of a GPU.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "backend/gpu/lane.h"
#include "backend/group_context.h"
#include "reduce/engine.h"
#include "reduce/plan/topology.h"

namespace cgx {

/// Collective over the group, whose ranks use `keys` once, and one device each. `host`: the group's
/// engine for tensors of the host. Errors: ConfigError for settings that CUDA tensors
/// do not support; ResourceError without a driver or kernels; MismatchError where another rank failed.
std::unique_ptr<GpuLane> connect_gpu(const GroupContext& group, Engine& host, c10::Device device,
                                     const std::string& keys);

/// What GpuGroup::moves() says. Where the configuration names NCCL for what the engine does not reduce,
/// NCCL moves, too.
bool gpu_moves(const GroupContext& group, const Topology& topology);

}  // namespace cgx
