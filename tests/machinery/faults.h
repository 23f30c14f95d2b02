// Injected faults: a communicator that kills or stops its process, fails, or alters a message at a
// chosen step. For tests of the other ranks' reaction.
#pragma once

#include <cstdint>

#include "comm/hooks.h"

namespace cgx {

enum class Fault : uint8_t {
  kNone,
  kKill,      // SIGKILL
  kStop,      // SIGSTOP; goes on after SIGCONT
  kError,     // throws an Error
  kAlter,     // flips a bit in the middle of the next message that is shown
  kTruncate,  // shows the next message one byte short
  // Ordered in pairs, one for each of two ranks, at a flush(): both ranks begin one more, long
  // message, and one is killed in the middle of it. Gloo loses the error of the other's transfer.
  kSendMore,       // posts its send, SIGSTOP, waits for it
  kKillReceiving,  // SIGSTOP, posts its receive, SIGKILL
  kReceiveMore,    // posts its receive, SIGSTOP, waits for it
  kKillSending,    // SIGSTOP, posts its send, SIGKILL
};

/// Every call of a communicator that was made while faults were allowed, in this process, is a
/// step.
struct FaultPlan {
  /// Whether communicators that process groups make from now on have faults. `hook`: the slot of
  /// the extension module that makes them, one and the same in all calls.
  static void allow(CommunicatorHook& hook, bool allow);
  /// From now on: `fault` at step number `step` (0: the next one). kNone takes an order back.
  static void order(Fault fault, int64_t step);
  /// Steps since the last order().
  static int64_t steps();
};

}  // namespace cgx
