// Puts the call of a move together: which memory goes where, of tensors of the host or of a GPU.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "backend/adapters/torch_types.h"
#include "backend/call_options.h"
#include "backend/engine_call.h"
#include "backend/gpu/group.h"
#include "base/dtype.h"
#include "reduce/engine.h"
#include "reduce/moves/plans.h"

namespace cgx {

/// The type as which values are moved: bytes, if the engine has no name for it.
DType moved_as(const at::Tensor& tensor);
/// Of that type.
size_t values_in(const at::Tensor& tensor);

/// The values of a dense tensor. `first`: place of its values in the call's input.
Piece piece_of(const at::Tensor& tensor, size_t first = 0);
/// The same, in equal parts.
Piece part_of(const at::Tensor& tensor, int part, int parts);

/// A call that is being put together. Tensors are of one device. ValueError: they are not.
class MoveBuilder {
 public:
  /// Collective where `like` is the first tensor of a GPU. All outlive this object.
  MoveBuilder(GpuGroup& gpu, Engine& host, MovePlans& plans, c10d::OpType op, const char* title,
              const at::Tensor& like, const CallOptions& call);

  EngineCall& call() { return call_; }
  /// The engine that runs it.
  const Engine& engine() const;
  /// One move more, without pieces so far. ConfigError: a bucket does not fit into a message.
  Move& begin(const MoveShape& shape);

  /// Memory that is only read. It is another one than that of the outputs, which are written while
  /// it is read; `own`: an output that gets these very values.
  at::Tensor source(const at::Tensor& tensor, const Tensors& outputs, const at::Tensor& own = {});
  /// Memory that is written as a whole, or with `reads` also read.
  at::Tensor target(const at::Tensor& tensor, bool reads = false);
  Tensors targets(const Tensors& tensors);

  EngineCall done() { return std::move(call_); }

 private:
  /// ValueError: another device than that of the call.
  void check_device(const at::Tensor& tensor) const;

  Engine& host_;
  MovePlans& plans_;
  const at::Tensor like_;
  EngineCall call_;
};

}  // namespace cgx
