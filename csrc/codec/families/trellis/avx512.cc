// The loops of `trellis` at the level avx512.
#if defined(__x86_64__)

// The intrinsics headers of GCC 12 trip over their own "undefined" vectors (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include "base/half.h"
#include "codec/families/trellis/formulas.h"
#include "codec/families/trellis/loops.h"
#include "codec/ops/tables.h"
#include "codec/ops/target_avx512-inl.h"
#include "codec/ops/types.h"
#include "codec/rotation/tree.h"

namespace cgx::trellis {
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
// These need all headers above.
#include "codec/rotation/blocks-inl.h"
#include "codec/rotation/search-inl.h"
// This needs the headers above, too.
#include "codec/families/trellis/loops-inl.h"

}  // namespace
}  // namespace avx512

const rotation::Loops kAvx512Loops{avx512::encode, avx512::decode};

}  // namespace cgx::trellis

#include "codec/ops/target_end-inl.h"

#endif
