// The loops of the error-bounded compressor at the level neon.
#if defined(__aarch64__)

#include "codec/bounded/loops/loops.h"

namespace cgx::bounded {
namespace neon {
namespace {

#include "codec/bounded/loops/vector-inl.h"
// This needs the header above.
#include "codec/bounded/loops/loops-inl.h"

}  // namespace
}  // namespace neon

const Loops kNeonLoops{neon::make_loops<int32_t>(), neon::make_loops<int64_t>()};

}  // namespace cgx::bounded

#endif
