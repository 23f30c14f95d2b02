// The loops of `trellis` at the level avx2.
#if defined(__x86_64__)

#include <immintrin.h>

#include "base/half.h"
#include "codec/families/trellis/formulas.h"
#include "codec/families/trellis/loops.h"
#include "codec/ops/tables.h"
#include "codec/ops/target_avx2-inl.h"
#include "codec/ops/types.h"
#include "codec/rotation/tree.h"

namespace cgx::trellis {
namespace avx2 {
namespace {

using namespace cgx::cpu;

#include "codec/ops/simd_avx2-inl.h"
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
}  // namespace avx2

const rotation::Loops kAvx2Loops{avx2::encode, avx2::decode};

}  // namespace cgx::trellis

#include "codec/ops/target_end-inl.h"

#endif
