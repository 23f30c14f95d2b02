// The loops of the error-bounded compressor at the level scalar.
#include "codec/bounded/loops.h"

namespace cgx::bounded {
namespace scalar {
namespace {

#include "codec/bounded/vector-inl.h"
// This needs the header above.
#include "codec/bounded/loops-inl.h"

}  // namespace
}  // namespace scalar

const Loops kScalarLoops{scalar::word_loops<int32_t>(), scalar::word_loops<int64_t>()};

}  // namespace cgx::bounded
