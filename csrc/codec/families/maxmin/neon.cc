// The loops of `maxmin` at the level neon.
#if defined(__aarch64__)

#include <arm_neon.h>

#include "base/half.h"
#include "codec/families/maxmin/formulas.h"
#include "codec/families/maxmin/loops.h"
#include "codec/ops/kernels.h"
#include "codec/ops/random.h"
#include "codec/ops/tables.h"
#include "codec/ops/types.h"
#include "codec/ops/zeros.h"

namespace cgx::maxmin {
namespace neon {
namespace {

using namespace cgx::cpu;

#include "codec/ops/simd_neon-inl.h"
// These need the vector operations.
#include "codec/ops/extremes-inl.h"
#include "codec/ops/nans-inl.h"
#include "codec/ops/random-inl.h"
// This needs the headers above.
#include "codec/ops/pack-inl.h"
// This needs all headers above.
#include "codec/families/maxmin/loops-inl.h"

}  // namespace
}  // namespace neon

const Loops kNeonLoops{neon::encode, neon::decode};

}  // namespace cgx::maxmin

#endif
