// Values to words. Quotients are made value by value, as neighbouring threads read neighbouring
// values; deltas and shuffle are a thread's for its group, in registers.
#pragma once

#include "codec/compat/gpu/call.h"

namespace cgx::cuda_float_compress::on_gpu {

struct EncodeMemory {
  Words quotients;
  int32_t misfits[kThreads];    // the first of each thread
  uint32_t any[kThreads / 32];  // of any_phase()
};

CGX_HD int32_t first_misfit(const EncodeMemory& memory) {
  int32_t first = kNoMisfit;
  CGX_LOOP for (uint32_t t = 0; t < kThreads; ++t) {
    if (memory.misfits[t] < first) first = memory.misfits[t];
  }
  return first;
}

/// Part number i of the call.
template <typename Block>
CGX_HD void encode_stage(Block& block, EncodeMemory& memory, const EncodeCall& call, uint64_t i) {
  const Part part = part_of(call.values, i);
  const bool any_misfit = block.any_phase(memory.any, [&](uint32_t t) {
    int32_t misfit = kNoMisfit;
    uint32_t at = t;
    for (; at < part.n; at += kThreads) {
      const float x = call.x[part.first + at];
      Quotient found = quotient_of(x, call.grid);
      if (found.room < 0) {
        const Fit fit = settle(x, call.grid, found.q);
        const bool fits = fit == Fit::kFits || (fit == Fit::kOutOfBound && call.keep_going != 0);
        if (!fits && misfit == kNoMisfit) misfit = static_cast<int32_t>(part.first + at);
      }
      memory.quotients[at] = static_cast<uint32_t>(found.q);
    }
    // The groups behind the last value are read whole.
    for (; at < kPartValues; at += kThreads) memory.quotients[at] = 0;
    memory.misfits[t] = misfit;
    return misfit != kNoMisfit;
  });
  block.phase([&](uint32_t t) {
    uint32_t words[kGroup][1];
    uint32_t before = t % kGroupsOfRun == 0 ? 0 : memory.quotients[t * kGroup - 1];
    CGX_UNROLL for (uint32_t w = 0; w < kGroup; ++w) {
      const uint32_t q = memory.quotients[t * kGroup + w];
      words[w][0] = t * kGroup + w < part.n ? zigzag(q - before) : 0;
      before = q;
    }
    transpose_fields(words);
    uint32_t* const out = call.raw + word_of(i, t);
    CGX_UNROLL for (uint32_t row = 0; row < kGroup; ++row) out[place(row)] = words[row][0];
    if (t == 0) call.misfits[i] = any_misfit ? first_misfit(memory) : kNoMisfit;
  });
}

}  // namespace cgx::cuda_float_compress::on_gpu
