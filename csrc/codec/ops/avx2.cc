// The shared loops of the level avx2.
#if defined(__x86_64__)

#include <immintrin.h>

#include "base/half.h"
#include "codec/ops/kernels.h"
#include "codec/ops/tables.h"
#include "codec/ops/target_avx2-inl.h"
#include "codec/ops/types.h"

namespace cgx::cpu {
namespace avx2 {
namespace {

#include "codec/ops/simd_avx2-inl.h"
// These need the vector operations.
#include "codec/ops/extremes-inl.h"
#include "codec/ops/nans-inl.h"
#include "codec/ops/random-inl.h"
// This needs the headers above.
#include "codec/ops/elementwise-inl.h"

constexpr Kernels kKernels{"avx2",          Level::kAvx2, all_finite,
                           values_to_float, add_to_float, from_float,
                           add_pair,        divide,       scan};

}  // namespace
}  // namespace avx2

const Kernels& avx2_kernels() { return avx2::kKernels; }

}  // namespace cgx::cpu

#include "codec/ops/target_end-inl.h"

#endif
