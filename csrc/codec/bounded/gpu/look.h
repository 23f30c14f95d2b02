// Collects the facts about each block by which the host chooses how it is written.
#pragma once

#include "codec/bounded/gpu/threads.h"

namespace cgx::bounded::on_gpu {

struct LookMemory {
  LookedAt own[kThreads], spare[kThreads];
};

struct Join {
  CGX_HD LookedAt operator()(const LookedAt& a, const LookedAt& b) const {
    return {a.greatest < b.greatest ? b.greatest : a.greatest, a.differ | b.differ, a.any | b.any,
            b.least < a.least ? b.least : a.least};
  }
};

/// Bits of value number i.
CGX_HD uint64_t bits_of(const ValueType& type, const unsigned char* x, uint64_t i) {
  if (type.bytes == 8) return reinterpret_cast<const uint64_t*>(x)[i];
  return plain_bits(type, load<int32_t>(type, x, i));
}

/// Of any type, and of one that curves are tried on.
CGX_HD void copy_value(const ValueType& type, const unsigned char* x, uint64_t i,
                       unsigned char* out, uint64_t to) {
  if (type.bytes == 8) {
    store(type, out, to, reinterpret_cast<const int64_t*>(x)[i]);
  } else {
    store(type, out, to, load<int32_t>(type, x, i));
  }
}

CGX_HD void copy_tried(const ValueType& type, const unsigned char* x, uint64_t i,
                       unsigned char* out, uint64_t to) {
  if (type.bytes == 8) {
    store_number(type, out, to, reinterpret_cast<const int64_t*>(x)[i]);
  } else {
    reinterpret_cast<int32_t*>(out)[to] = reinterpret_cast<const int32_t*>(x)[i];
  }
}

/// Block number i of the call.
template <typename Block>
CGX_HD void look_stage(Block& block, LookMemory& memory, const LookCall& call, uint64_t i) {
  const uint64_t first = i * call.block_values, left = call.values - first;
  const uint32_t n = left < call.block_values ? static_cast<uint32_t>(left) : call.block_values;
  const unsigned char* const x = call.x + first * call.type.bytes;
  unsigned char* const out = call.out + i * call.stride;
  block.phase([&](uint32_t t) {
    const FloatLayout& layout = call.type.layout;
    const uint64_t begin = bits_of(call.type, x, 0);
    LookedAt seen{0, 0, 0, layout.infinity};
    for (uint32_t at = t; at < n; at += kThreads) {
      const uint64_t bits = bits_of(call.type, x, at);
      seen = Join{}(seen, {0, bits ^ begin, bits, layout.infinity});
      if (call.type.floating == 0) continue;
      const uint64_t magnitude = bits & (layout.sign - 1);
      if (magnitude >= layout.infinity) continue;
      if (magnitude > seen.greatest) seen.greatest = magnitude;
      if (magnitude >= layout.least_normal && magnitude < seen.least) seen.least = magnitude;
    }
    memory.own[t] = seen;
  });
  scan(block, memory.own, memory.spare, Join{});
  block.phase([&](uint32_t t) {
    if (t == 0) *reinterpret_cast<LookedAt*>(out) = memory.own[kThreads - 1];
    unsigned char* const sample = out + sizeof(LookedAt);
    const uint32_t sampled = n < kSampled ? n : kSampled;
    CGX_LOOP for (uint32_t to = t; to < sampled; to += kThreads) {
      const uint32_t from = n <= kSampled ? to : start_of_run(n, to / kRun) + to % kRun;
      copy_value(call.type, x, from, sample, to);
    }
    if (call.tries_curves == 0 || n < kLeastForCurve) return;
    CGX_LOOP for (uint32_t to = t; to < kTried * kCurveRun; to += kThreads) {
      const uint32_t from = start_of_tried(n, to / kCurveRun) + to % kCurveRun;
      copy_tried(call.type, x, from, sample, kSampled + to);
    }
  });
}

}  // namespace cgx::bounded::on_gpu
