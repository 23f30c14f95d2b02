// The collectives of the engine on tensors: checks them and makes the plan. The executor runs it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/adapters/torch_types.h"
#include "backend/call_options.h"
#include "backend/engine_call.h"
#include "backend/gpu/group.h"
#include "backend/group_context.h"
#include "reduce/engine.h"

namespace cgx {

/// Tensors are such as have an engine_dtype(). `why`: the codec, for the log. ValueError: tensors
/// that do not fit each other.
class EngineCalls {
 public:
  /// All outlive this object. `engine`: for tensors of the host.
  EngineCalls(const GroupContext& group, Engine& engine, GpuGroup& gpu)
      : group_(group), engine_(engine), gpu_(gpu) {}

  /// `layers`: of each tensor.
  EngineCall all_reduce(const Tensors& tensors, const c10d::ReduceOp& op,
                        const std::vector<std::vector<Layer>>& layers, const CallOptions& call,
                        std::string why);
  EngineCall reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                            const c10d::ReduceOp& op, const std::shared_ptr<const Codec>& codec,
                            const CallOptions& call, std::string why);
  EngineCall all_gather(const at::Tensor& output, const at::Tensor& input,
                        const std::shared_ptr<const Codec>& codec, const CallOptions& call,
                        std::string why);

 private:
  /// The lane of a tensor of a GPU, or null. Collective where it is new.
  GpuLane* lane_of(const at::Tensor& tensor);
  Engine& engine_of(GpuLane* lane) { return lane != nullptr ? lane->engine() : engine_; }

  const GroupContext& group_;
  Engine& engine_;
  GpuGroup& gpu_;
};

}  // namespace cgx
