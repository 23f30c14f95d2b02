// The loops of `trellis`, by SIMD level.
#pragma once

#include "codec/rotation/loops.h"

namespace cgx::trellis {

extern const cpu::ByLevel<rotation::Loops> kLoops;

}  // namespace cgx::trellis
