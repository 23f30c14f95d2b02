// One collective of the engine, as data: EngineCalls makes it of a call's tensors, the executor runs
// it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/adapters/torch_types.h"
#include "backend/call_options.h"
#include "backend/gpu/lane.h"
#include "backend/work/call_record.h"
#include "reduce/moves/move.h"
#include "reduce/plan/plan.h"

namespace cgx {

struct EngineCall {
  /// A plan, and the tensors that it runs on: dense, of one device.
  struct Part {
    std::shared_ptr<const Plan> plan;
    at::Tensor input, output;  // one tensor in all-reduces
    at::Tensor result;         // the caller's: gets a copy of `output` if that is another tensor
    Tensors shards{};          // of a reduce-scatter whose shards lie apart: `input` is the own one
  };

  /// What is left to do when the values are there.
  struct LastCopy {
    at::Tensor from, to;
  };

  CallShape shape;
  const char* title;        // for profilers: "cgx:all_reduce"
  Tensors inputs, outputs;  // the caller's
  GpuLane* lane;            // of tensors of a GPU; null: tensors of the host
  std::vector<Part> parts;  // run one after the other
  bool average;
  CallOptions options;
  std::string why;  // the codec, for the log
  // Run after the parts; `moved` is the memory of their pieces.
  std::vector<Move> moves{};
  Tensors moved{};
  std::vector<LastCopy> copies{};
};

}  // namespace cgx
