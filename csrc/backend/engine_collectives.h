// The collectives of the engine on tensors: checks them, makes the plan, and has it run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/adapters/torch_types.h"
#include "backend/call_options.h"
#include "backend/executor.h"
#include "backend/gpu/group.h"
#include "backend/group_context.h"
#include "reduce/engine.h"

namespace cgx {

/// Tensors are such as have an engine_dtype(). `why`: the codec, for the log. ValueError: tensors
/// that do not fit each other.
class EngineCollectives {
 public:
  /// All outlive this object. `engine`: for tensors of the host.
  EngineCollectives(const GroupContext& group, Engine& engine, GpuGroup& gpu, Executor& executor)
      : group_(group), engine_(engine), gpu_(gpu), executor_(executor) {}

  /// `layers`: of each tensor.
  WorkPtr all_reduce(const Tensors& tensors, const c10d::ReduceOp& op,
                     const std::vector<std::vector<Layer>>& layers, const CallOptions& call,
                     std::string why);
  WorkPtr reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                         const c10d::ReduceOp& op, const std::shared_ptr<const Codec>& codec,
                         const CallOptions& call, std::string why);
  WorkPtr all_gather(const at::Tensor& output, const at::Tensor& input,
                     const std::shared_ptr<const Codec>& codec, const CallOptions& call,
                     std::string why);

 private:
  /// The engine that serves a tensor.
  Engine& engine_for(const at::Tensor& tensor);

  const GroupContext& group_;
  Engine& engine_;
  GpuGroup& gpu_;
  Executor& executor_;
};

}  // namespace cgx
