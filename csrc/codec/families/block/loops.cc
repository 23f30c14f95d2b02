#include "codec/families/block/loops.h"

#include "base/unroll.h"

namespace cgx::blocks {
namespace {

constexpr size_t kLeastSize = 32;  // of a block

}  // namespace
}  // namespace cgx::blocks

#define CGX_LEVEL_FILE "codec/families/block/loops-inl.h"
#define CGX_LEVEL_SCALAR
#include "codec/ops/foreach_level-inl.h"

namespace cgx::blocks {

const WireLoops& wire_loops() {
  static constexpr cpu::ByLevel<WireLoops> kByLevel = CGX_BY_LEVEL(kLoops);
  return cpu::at_level(kByLevel);
}

}  // namespace cgx::blocks
