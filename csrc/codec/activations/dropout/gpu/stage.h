// Dropout on a GPU: eight values of each thread, in registers.
#pragma once

#include "codec/activations/dropout/gpu/call.h"
#include "codec/gpu/eight.h"

namespace cgx::dropping::on_gpu {

template <typename Real>
CGX_HD void drop_eight(const Call& call, uint64_t first, uint32_t n) {
  gpu::Eight<Real> eight;
  load_eight(call.x, first, n, call.type, eight);
  CGX_UNROLL for (uint32_t k = 0; k < gpu::kGroup; ++k) {
    const bool stays = random_of(call.key, first + k) < call.keep;
    eight.values[k] = eight.values[k] * (stays ? static_cast<Real>(call.scale) : Real{});
  }
  store_eight(call.y, first, n, call.type, eight);
}

/// Part number i of the call.
template <typename Block>
CGX_HD void stage(Block& block, gpu::NoMemory&, const Call& call, uint64_t i) {
  gpu::each_eight(block, call.values, call.type, i, [&](auto real, uint64_t first, uint32_t n) {
    drop_eight<decltype(real)>(call, first, n);
  });
}

}  // namespace cgx::dropping::on_gpu
