// The loops of the level neon. Every aarch64 CPU has it, so nothing is asked of the compiler.
#if defined(__aarch64__)

#include <arm_neon.h>

#include "base/half.h"
#include "codec/cpu/kernels.h"
#include "codec/cpu/tables.h"
#include "codec/cpu/types.h"
#include "codec/maxmin.h"
#include "codec/random.h"

namespace cgx::cpu {
namespace neon {
namespace {

#include "codec/cpu/simd_neon-inl.h"
// After the vector operations.
#include "codec/cpu/maxmin-inl.h"
// After the bounds helpers of maxmin.
#include "codec/cpu/elementwise-inl.h"

constexpr Kernels kKernels{"neon",       maxmin_encode, maxmin_decode, all_finite, values_to_float,
                           add_to_float, from_float,    add_pair,      divide,     scan};

}  // namespace
}  // namespace neon

const Kernels& neon_kernels() { return neon::kKernels; }

}  // namespace cgx::cpu

#endif
