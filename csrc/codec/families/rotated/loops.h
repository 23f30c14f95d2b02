// The loops of `rotated`, by SIMD level.
#pragma once

#include "codec/rotation/loops.h"

namespace cgx::rotated {

extern const cpu::ByLevel<rotation::Loops> kLoops;

}  // namespace cgx::rotated
