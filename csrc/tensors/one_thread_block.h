// A thread block of the kernels' code, run by one thread of the CPU: the phases of codec/gpu/stages.h.
#pragma once

#include <cstdint>

#include "codec/gpu/run.h"

namespace cgx {

struct OneThreadBlock {
  template <typename Work>
  void phase(const Work& work) {
    for (uint32_t t = 0; t < gpu::kThreads; ++t) work(t);
  }

  template <typename Word, size_t n, typename Work>
  bool any_phase(Word (&warps)[n], const Work& work) {
    bool any = false;
    phase([&](uint32_t t) { any = work(t) || any; });
    for (Word& warp : warps) warp = any ? 1 : 0;
    return any;
  }
};

}  // namespace cgx
