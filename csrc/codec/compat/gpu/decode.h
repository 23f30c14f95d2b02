// Words to values. A thread sums up the deltas of its group; the values, which neighbouring threads
// write, also need the sums of the groups before it in its run. Words may be anything.
#pragma once

#include "codec/compat/gpu/call.h"

namespace cgx::cuda_float_compress::on_gpu {

struct DecodeMemory {
  Words sums;  // of a group's deltas, up to each
};

/// Part number i of the call.
template <typename Block>
CGX_HD void decode_stage(Block& block, DecodeMemory& memory, const DecodeCall& call, uint64_t i) {
  const Part part = part_of(call.values, i);
  block.phase([&](uint32_t t) {
    const uint32_t* const in = call.raw + word_of(i, t);
    uint32_t words[kGroup][1];
    CGX_UNROLL for (uint32_t row = 0; row < kGroup; ++row) words[row][0] = in[place(row)];
    transpose_fields(words);
    uint32_t sum = 0;
    CGX_UNROLL for (uint32_t w = 0; w < kGroup; ++w) {
      sum += unzigzag(words[w][0]);
      memory.sums[t * kGroup + w] = sum;
    }
  });
  block.phase([&](uint32_t t) {
    for (uint32_t at = t; at < part.n; at += kThreads) {
      uint32_t q = memory.sums[at];
      for (uint32_t start = at / kRun * kRun; start + kGroup <= at; start += kGroup) {
        q += memory.sums[start + kGroup - 1];
      }
      call.y[part.first + at] = value_of(static_cast<int32_t>(q), call.step);
    }
  });
}

}  // namespace cgx::cuda_float_compress::on_gpu
