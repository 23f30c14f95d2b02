// The engine's collectives that move values and compute nothing, on tensors: checks them, and says
// which memory goes to which rank. The executor runs the call.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/adapters/torch_types.h"
#include "backend/call_options.h"
#include "backend/engine_call.h"
#include "backend/gpu/group.h"
#include "backend/group_context.h"
#include "codec/codec.h"
#include "reduce/engine.h"
#include "reduce/moves/plans.h"

namespace cgx {

class MoveBuilder;

/// Tensors must be such that serves() is true. `codec`: raw_codec() moves exact values of any type.
/// ValueError, TypeError: tensors that do not fit each other or the call.
/// Thread-safe.
class MoveCalls {
 public:
  /// All outlive this object. `engine`: for tensors of the host.
  MoveCalls(const GroupContext& group, Engine& engine, GpuGroup& gpu)
      : group_(group), engine_(engine), gpu_(gpu) {}

  /// True if the engine moves the tensor: dense, on the CPU, or on a GPU where GpuGroup::moves().
  bool serves(const at::Tensor& tensor) const;
  bool serves(const Tensors& tensors) const;

  EngineCall broadcast(const at::Tensor& tensor, int64_t root,
                       const std::shared_ptr<const Codec>& codec, const CallOptions& call,
                       std::string why) const;
  /// outputs: one per rank, which may differ in size.
  EngineCall all_gather(const Tensors& outputs, const at::Tensor& input,
                        const CallOptions& call) const;
  /// outputs[rank][i]: of the rank's inputs[i].
  EngineCall all_gather_coalesced(const std::vector<Tensors>& outputs, const Tensors& inputs,
                                  const CallOptions& call) const;
  EngineCall all_gather_single(const at::Tensor& output, const at::Tensor& input,
                               const CallOptions& call) const;
  /// outputs: one per rank on the root, none elsewhere.
  EngineCall gather(const std::vector<Tensors>& outputs, const at::Tensor& input, int64_t root,
                    const CallOptions& call) const;
  EngineCall scatter(const at::Tensor& output, const std::vector<Tensors>& inputs, int64_t root,
                     const CallOptions& call) const;
  /// Splits: rows of the first dimension, by rank; empty: equal ones.
  EngineCall all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                               const std::vector<int64_t>& output_splits,
                               const std::vector<int64_t>& input_splits,
                               const std::shared_ptr<const Codec>& codec, const CallOptions& call,
                               std::string why) const;
  EngineCall all_to_all(const Tensors& outputs, const Tensors& inputs,
                        const CallOptions& call) const;
  EngineCall barrier(const CallOptions& call) const;

 private:
  /// Collective where `like` is the first tensor of a GPU.
  MoveBuilder begin(c10d::OpType op, const char* title, const at::Tensor& like,
                    const CallOptions& call) const;
  void gather_on_two_levels(EngineCall& call, const at::Tensor& from, const at::Tensor& to) const;

  const GroupContext& group_;
  Engine& engine_;
  GpuGroup& gpu_;
  mutable MovePlans plans_;
};

}  // namespace cgx
