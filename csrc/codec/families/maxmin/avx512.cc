// The loops of `maxmin` at the level avx512.
#if defined(__x86_64__)

// The intrinsics headers of GCC 12 trip over their own "undefined" vectors (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include "base/half.h"
#include "codec/families/maxmin/formulas.h"
#include "codec/families/maxmin/loops.h"
#include "codec/ops/kernels.h"
#include "codec/ops/random.h"
#include "codec/ops/tables.h"
#include "codec/ops/target_avx512-inl.h"
#include "codec/ops/types.h"
#include "codec/ops/zeros.h"

namespace cgx::maxmin {
namespace avx512 {
namespace {

using namespace cgx::cpu;

#include "codec/ops/simd_avx512-inl.h"
// These need the vector operations.
#include "codec/ops/extremes-inl.h"
#include "codec/ops/nans-inl.h"
#include "codec/ops/random-inl.h"
// This needs the headers above.
#include "codec/ops/pack-inl.h"
// This needs all headers above.
#include "codec/families/maxmin/loops-inl.h"

}  // namespace
}  // namespace avx512

const Loops kAvx512Loops{avx512::encode, avx512::decode};

}  // namespace cgx::maxmin

#include "codec/ops/target_end-inl.h"

#endif
