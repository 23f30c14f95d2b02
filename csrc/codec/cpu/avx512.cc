// The loops of the level avx512.
//
// All headers come before the target pragma, and nothing of the standard library is instantiated
// after it: an inline function compiled for avx512 under a name that other files share could be the
// copy that the linker keeps.
#if defined(__x86_64__)

// The intrinsics headers of GCC 12 trip over their own "undefined" vectors (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include "base/half.h"
#include "codec/cpu/kernels.h"
#include "codec/cpu/tables.h"
#include "codec/cpu/types.h"
#include "codec/maxmin.h"
#include "codec/random.h"

#if defined(__clang__)
#pragma clang attribute push(                                                    \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq"))), \
    apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")
#endif

namespace cgx::cpu {
namespace avx512 {
namespace {

#include "codec/cpu/simd_avx512-inl.h"
// After the vector operations.
#include "codec/cpu/maxmin-inl.h"
// After the bounds helpers of maxmin.
#include "codec/cpu/elementwise-inl.h"

constexpr Kernels kKernels{"avx512",     maxmin_encode, maxmin_decode, all_finite, values_to_float,
                           add_to_float, from_float,    add_pair,      divide,     scan};

}  // namespace
}  // namespace avx512

const Kernels& avx512_kernels() { return avx512::kKernels; }

}  // namespace cgx::cpu

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
