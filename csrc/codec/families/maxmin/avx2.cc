// The loops of `maxmin` at the level avx2.
#if defined(__x86_64__)

#include <immintrin.h>

#include "base/half.h"
#include "codec/families/maxmin/formulas.h"
#include "codec/families/maxmin/loops.h"
#include "codec/ops/kernels.h"
#include "codec/ops/random.h"
#include "codec/ops/tables.h"
#include "codec/ops/target_avx2-inl.h"
#include "codec/ops/types.h"
#include "codec/ops/zeros.h"

namespace cgx::maxmin {
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
// This needs all headers above.
#include "codec/families/maxmin/loops-inl.h"

}  // namespace
}  // namespace avx2

const Loops kAvx2Loops{avx2::encode, avx2::decode};

}  // namespace cgx::maxmin

#include "codec/ops/target_end-inl.h"

#endif
