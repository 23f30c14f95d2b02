// Options of one call of a collective of the engine.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "reduce/plan/step_key.h"

namespace cgx {

/// kTunable: the group's settings or a policy give the number of bits, and the autotuner may raise
/// it. kFixed: the call gives it.
enum class Bits : uint8_t { kTunable, kFixed };

struct CallOptions {
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
  /// False: the caller waits for the work at once, so its own thread may do it.
  bool async = true;
  Bits bits = Bits::kFixed;
  /// Origin of the codecs of an explicit call, for the log; empty: the caller.
  std::string chosen_by{};
  /// Error feedback: read and written until the work is complete. Undefined: none.
  at::Tensor residual{};
  /// Keys random numbers; none: the number of the call.
  std::optional<StepKey> key{};
};

}  // namespace cgx
