#include "codec/gemm/loops.h"

#include "base/unroll.h"

#define CGX_LEVEL_FILE "codec/gemm/loops-inl.h"
#define CGX_LEVEL_SCALAR
#include "codec/ops/foreach_level-inl.h"

namespace cgx::gemm {

const Loops& loops() {
  static constexpr cpu::ByLevel<Loops> kByLevel = CGX_BY_LEVEL(kLoops);
  return cpu::at_level(kByLevel);
}

}  // namespace cgx::gemm
