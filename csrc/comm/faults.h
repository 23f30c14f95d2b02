// Injected faults: a communicator that kills or stops its process, fails, or alters a message at a
// chosen step. For tests of the other ranks' reaction.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/communicator.h"

namespace cgx {

enum class Fault : uint8_t {
  kNone,
  kKill,      // SIGKILL
  kStop,      // SIGSTOP; goes on after SIGCONT
  kError,     // throws an Error
  kAlter,     // flips a bit in the middle of the next message that is shown
  kTruncate,  // shows the next message one byte short
};

/// Every call of a communicator made by with_faults(), in this process, is a step.
struct FaultPlan {
  /// Whether communicators that the backend creates from now on have faults.
  static void allow(bool allow);
  static bool allowed();
  /// From now on: `fault` at step number `step` (0: the next one). kNone takes an order back.
  static void order(Fault fault, int64_t step);
  /// Steps since the last order().
  static int64_t steps();
};

/// `inner`, with faults.
std::unique_ptr<Communicator> with_faults(std::unique_ptr<Communicator> inner);

}  // namespace cgx
