// The hash by which ranks compare their plans (docs/wire_format.md).
#pragma once

#include <cstdint>

#include "reduce/plan/plan.h"
#include "reduce/plan/step_key.h"

namespace cgx {

/// The hash of a call with a step, of the hash of its plan.
uint64_t hash_with_step(uint64_t plan_hash, const StepKey& key);

/// Covers the operation, the layers with their codecs, the rounds and the hosts; no pointers.
uint64_t plan_hash(const Plan& plan, const PlanSpace& space);

/// The same of a move. Two ranks compare the numbers of values that they move themselves.
uint64_t move_hash(const Plan& plan);

}  // namespace cgx
