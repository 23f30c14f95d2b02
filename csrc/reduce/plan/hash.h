// The hash by which ranks compare their plans (docs/wire_format.md).
#pragma once

#include <cstdint>

#include "reduce/plan/plan.h"

namespace cgx {

/// Covers the operation, the layers with their codecs, the rounds and the hosts; no pointers.
uint64_t plan_hash(const Plan& plan, const PlanSpace& space);

}  // namespace cgx
