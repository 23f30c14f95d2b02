// The launches of host_kernels.h, compiled once: their templates take a compiler half a minute.
#pragma once

#include "codec/gpu/run_table.h"
#include "codec/gpu/stages.h"

namespace cgx::native {

/// What the launches of gpu::KernelModule do, without feedback. `split`: how many warps share a tile,
/// as a power of two.
void encode_all(const gpu::Tables& tables, const gpu::EncodeCall& call, uint32_t split = 0);
void decode_all(const gpu::Tables& tables, const gpu::DecodeCall& call, uint32_t split = 0);
void sum_all(const gpu::Tables& tables, const gpu::SumCall& call, uint32_t split = 0);

}  // namespace cgx::native
