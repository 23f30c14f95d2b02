// How a collective of the engine is called.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace cgx {

/// Who decides how many bits a call takes: the group's settings, or a policy, which the autotuner
/// may raise, or the call.
enum class Bits : uint8_t { kTunable, kFixed };

struct CallOptions {
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
  /// False: the caller waits for the work at once, so its own thread may do it.
  bool async = true;
  Bits bits = Bits::kFixed;
  /// Who chose the codecs of an explicit call, for the log; empty: the caller.
  std::string chosen_by{};
};

}  // namespace cgx
