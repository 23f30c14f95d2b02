// The loops of `rotated`, by SIMD level.
#pragma once

#include "codec/rotation/loops.h"

namespace cgx::rotated {

extern const rotation::Loops kScalarLoops;
#if defined(__x86_64__)
extern const rotation::Loops kAvx2Loops, kAvx512Loops;
#elif defined(__aarch64__)
extern const rotation::Loops kNeonLoops;
#endif

}  // namespace cgx::rotated
