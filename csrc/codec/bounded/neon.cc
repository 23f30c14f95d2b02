// The loops of the error-bounded compressor at the level neon.
#if defined(__aarch64__)

#include "codec/bounded/loops.h"

namespace cgx::bounded {
namespace neon {
namespace {

#include "codec/bounded/vector-inl.h"
// This needs the header above.
#include "codec/bounded/loops-inl.h"

}  // namespace
}  // namespace neon

const Loops kNeonLoops{neon::word_loops<int32_t>(), neon::word_loops<int64_t>()};

}  // namespace cgx::bounded

#endif
