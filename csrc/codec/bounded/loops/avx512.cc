// The loops of the error-bounded compressor at the level avx512.
#if defined(__x86_64__)

// The intrinsics headers of GCC 12 trip over their own "undefined" vectors (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include "codec/bounded/loops/loops.h"
#include "codec/bounded/loops/quick.h"
#include "codec/ops/target_avx512-inl.h"

namespace cgx::bounded {
namespace avx512 {
namespace {

#include "codec/bounded/loops/vector_avx512-inl.h"
// This needs the header above.
#include "codec/bounded/loops/quick-inl.h"
// And this needs both.
#include "codec/bounded/loops/loops-inl.h"

}  // namespace
}  // namespace avx512

const Loops kAvx512Loops{avx512::make_loops<int32_t>(), avx512::make_loops<int64_t>()};

}  // namespace cgx::bounded

#include "codec/ops/target_end-inl.h"

#endif
