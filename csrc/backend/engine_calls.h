// The collectives of the engine on tensors: checks them and makes the plan. The executor runs it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/adapters/torch_types.h"
#include "backend/call_options.h"
#include "backend/engine_call.h"
#include "backend/gpu/group.h"
#include "backend/group_context.h"
#include "reduce/engine.h"

namespace cgx {

/// The type of a tensor that the engine can reduce: dense, on the CPU; on a GPU one that codecs
/// take. None for other tensors.
std::optional<DType> reduced_dtype(const at::Tensor& tensor);

/// Tensors of reductions are such as have a reduced_dtype(), others such as have an engine_dtype().
/// `why`: the codec, for the log. ValueError: tensors that do not fit each other, an op that their
/// type has not. TypeError: AVG of bool, PREMUL_SUM of a type other than float32, float16, bfloat16
/// and float64.
class EngineCalls {
 public:
  /// All outlive this object. `engine`: for tensors of the host.
  EngineCalls(const GroupContext& group, Engine& engine, GpuGroup& gpu)
      : group_(group), engine_(engine), gpu_(gpu) {}

  /// `layers`: of each tensor.
  EngineCall all_reduce(const Tensors& tensors, const c10d::ReduceOp& op,
                        const std::vector<std::vector<Layer>>& layers, const CallOptions& call,
                        std::string why);
  /// Of each output from the input of the same number, in one call; codecs[i] is theirs.
  EngineCall reduce_scatter(const Tensors& outputs, const Tensors& inputs, const c10d::ReduceOp& op,
                            const std::vector<std::shared_ptr<const Codec>>& codecs,
                            const CallOptions& call, std::string why);
  /// inputs[r] is for rank r; those for other ranks may have other lengths.
  EngineCall reduce_scatter_list(const at::Tensor& output, const Tensors& inputs,
                                 const c10d::ReduceOp& op, const CallOptions& call);
  /// Only the root's tensor is written.
  EngineCall reduce(const at::Tensor& tensor, const c10d::ReduceOp& op, int root,
                    const CallOptions& call);
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
