// The loops of the error-bounded compressor at the level avx2.
#if defined(__x86_64__)

#include <immintrin.h>

#include "codec/bounded/loops/loops.h"
#include "codec/bounded/loops/quick.h"
#include "codec/ops/target_avx2-inl.h"

namespace cgx::bounded {
namespace avx2 {
namespace {

#include "codec/bounded/loops/vector_avx2-inl.h"
// This needs the header above.
#include "codec/bounded/loops/quick-inl.h"
// And this needs both.
#include "codec/bounded/loops/loops-inl.h"

}  // namespace
}  // namespace avx2

const Loops kAvx2Loops{avx2::make_loops<int32_t>(), avx2::make_loops<int64_t>()};

}  // namespace cgx::bounded

#include "codec/ops/target_end-inl.h"

#endif
