// Random exchanges with checked contents: the acceptance test of a communicator.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.h"

namespace cgx {

struct StressTask {
  int exchanges = 1000;
  uint64_t seed = 0;
  size_t max_bytes = 65536;  // of one message; capped so that an exchange fits into capacity()
  double timeout_seconds = 60;
  int call_length = 0;  // begin_call() after so many exchanges; 0: never
};

/// Runs the task on one rank: sizes, receivers (some get nothing, some exchanges are broadcasts),
/// order of receiving and contents follow from (seed, exchange, rank), so every rank must run the
/// same task. Returns the number of messages received and found right, byte by byte. Errors:
/// MismatchError that names the first wrong byte; the communicator's own.
uint64_t stress_rank(Communicator& comm, const StressTask& task);

/// The same on every given communicator at once, one thread each. Returns the sum; throws the first
/// error.
uint64_t stress_group(const std::vector<Communicator*>& group, const StressTask& task);

}  // namespace cgx
