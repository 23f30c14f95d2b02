// The loops of `rotated` at the level neon.
#if defined(__aarch64__)

#include <arm_neon.h>

#include "base/half.h"
#include "codec/families/rotated/loops.h"
#include "codec/families/rotated/tables.h"
#include "codec/ops/tables.h"
#include "codec/ops/types.h"

namespace cgx::rotated {
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
// These need all headers above.
#include "codec/rotation/blocks-inl.h"
#include "codec/rotation/search-inl.h"
// This needs the headers above, too.
#include "codec/families/rotated/loops-inl.h"

}  // namespace
}  // namespace neon

const rotation::Loops kNeonLoops{neon::encode, neon::decode};

}  // namespace cgx::rotated

#endif
