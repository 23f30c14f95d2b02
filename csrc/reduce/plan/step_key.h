// What keys the random numbers of a call instead of the call's number on its group: a step that a
// checkpoint holds. A resumed training then draws what it would have drawn without the stop.
#pragma once

#include <cstdint>

#include "codec/ops/random.h"

namespace cgx {

/// Equal on all ranks of a call; different for any two calls whose random numbers must differ.
struct StepKey {
  uint64_t step = 0;    // as the caller counts
  uint64_t tensor = 0;  // tells calls of one step apart

  bool operator==(const StepKey&) const = default;

  /// Takes the place of the sequence number in random_key(). Of one tensor: different for every
  /// step. Far from sequence numbers, which are small.
  uint64_t number() const { return number_of_step(step, tensor); }
};

}  // namespace cgx
