// The loops of the error-bounded compressor at the level scalar.
#include "codec/bounded/loops/loops.h"

namespace cgx::bounded {
namespace scalar {
namespace {

#include "codec/bounded/loops/vector-inl.h"
// This needs the header above.
#include "codec/bounded/loops/loops-inl.h"

}  // namespace
}  // namespace scalar

const Loops kScalarLoops{scalar::make_loops<int32_t>(), scalar::make_loops<int64_t>()};

}  // namespace cgx::bounded
