// The loops of the level avx2.
//
// All headers come before the target pragma, and nothing of the standard library is instantiated
// after it: an inline function compiled for avx2 under a name that other files share could be the
// copy that the linker keeps.
#if defined(__x86_64__)

#include <immintrin.h>

#include "base/half.h"
#include "codec/cpu/kernels.h"
#include "codec/cpu/tables.h"
#include "codec/cpu/types.h"
#include "codec/maxmin.h"
#include "codec/random.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

namespace cgx::cpu {
namespace avx2 {
namespace {

#include "codec/cpu/simd_avx2-inl.h"
// After the vector operations.
#include "codec/cpu/maxmin-inl.h"
// After the bounds helpers of maxmin.
#include "codec/cpu/elementwise-inl.h"

constexpr Kernels kKernels{"avx2",       maxmin_encode, maxmin_decode, all_finite, values_to_float,
                           add_to_float, from_float,    add_pair,      divide,     scan};

}  // namespace
}  // namespace avx2

const Kernels& avx2_kernels() { return avx2::kKernels; }

}  // namespace cgx::cpu

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
