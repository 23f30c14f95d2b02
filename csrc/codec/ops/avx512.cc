// The shared loops of the level avx512.
#if defined(__x86_64__)

// The intrinsics headers of GCC 12 trip over their own "undefined" vectors (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include "base/half.h"
#include "codec/ops/kernels.h"
#include "codec/ops/tables.h"
#include "codec/ops/target_avx512-inl.h"
#include "codec/ops/types.h"

namespace cgx::cpu {
namespace avx512 {
namespace {

#include "codec/ops/simd_avx512-inl.h"
// These need the vector operations.
#include "codec/ops/extremes-inl.h"
#include "codec/ops/nans-inl.h"
#include "codec/ops/random-inl.h"
// This needs the headers above.
#include "codec/ops/elementwise-inl.h"

constexpr Kernels kKernels{"avx512",        Level::kAvx512, all_finite,
                           values_to_float, add_to_float,   from_float,
                           add_pair,        divide,         scan};

}  // namespace
}  // namespace avx512

const Kernels& avx512_kernels() { return avx512::kKernels; }

}  // namespace cgx::cpu

#include "codec/ops/target_end-inl.h"

#endif
