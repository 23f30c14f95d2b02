#include "codec/bounded/loops/loops.h"

#include "codec/bounded/loops/quick.h"

#define CGX_LEVEL_FILE "codec/bounded/loops/loops-inl.h"
#define CGX_LEVEL_SCALAR
#include "codec/ops/foreach_level-inl.h"

namespace cgx::bounded {

const Loops& loops() {
  static constexpr cpu::ByLevel<Loops> kByLevel = CGX_BY_LEVEL(kLoops);
  return cpu::at_level(kByLevel);
}

}  // namespace cgx::bounded
