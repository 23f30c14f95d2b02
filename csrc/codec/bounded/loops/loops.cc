#include "codec/bounded/loops/loops.h"

#include "codec/ops/kernels.h"

namespace cgx::bounded {

const Loops& loops() {
#if defined(__x86_64__)
  static constexpr const Loops* kByLevel[cpu::kLevels] = {&kScalarLoops, &kAvx2Loops, &kAvx512Loops,
                                                          nullptr};
#elif defined(__aarch64__)
  static constexpr const Loops* kByLevel[cpu::kLevels] = {&kScalarLoops, nullptr, nullptr,
                                                          &kNeonLoops};
#else
  static constexpr const Loops* kByLevel[cpu::kLevels] = {&kScalarLoops, nullptr, nullptr, nullptr};
#endif
  return cpu::at_level(kByLevel);
}

}  // namespace cgx::bounded
