// The shared loops of the level neon. Every aarch64 CPU has it, so nothing is asked of the
// compiler.
#if defined(__aarch64__)

#include <arm_neon.h>

#include "base/half.h"
#include "codec/ops/kernels.h"
#include "codec/ops/tables.h"
#include "codec/ops/types.h"

namespace cgx::cpu {
namespace neon {
namespace {

#include "codec/ops/simd_neon-inl.h"
// These need the vector operations.
#include "codec/ops/extremes-inl.h"
#include "codec/ops/nans-inl.h"
#include "codec/ops/random-inl.h"
// This needs the headers above.
#include "codec/ops/elementwise-inl.h"

constexpr Kernels kKernels{"neon",          Level::kNeon, all_finite,
                           values_to_float, add_to_float, from_float,
                           add_pair,        divide,       scan};

}  // namespace
}  // namespace neon

const Kernels& neon_kernels() { return neon::kKernels; }

}  // namespace cgx::cpu

#endif
